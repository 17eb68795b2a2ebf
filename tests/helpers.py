"""What several test modules need."""

import copy
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from cirl import paths
from cirl.data.batches import Batch, loaders
from cirl.methods import build
from cirl.methods.base import Method
from cirl.run import checkpoint, files
from cirl.run.config import Run
from cirl.run.digest import training_digest
from cirl.run.folder import RULES


class Step(NamedTuple):
    """What one optimizer was asked to do in an update: the gradient of each of its parameters, by name."""

    optimizer: int
    gradients: dict[str, Tensor]


def steps_of(learner: Method, batch: Batch, epoch: float, seed: int = 3) -> tuple[dict[str, float], list[Step]]:
    """Run one `update` with fixed noise; return its terms and the gradients that reached each optimizer, in order."""
    names = {id(parameter): name for name, parameter in learner.named_parameters()}
    steps, move = [], learner.move

    def caught(optimizer, gradients, epoch):
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        given = {
            names[id(parameter)]: torch.zeros_like(parameter) if gradient is None else gradient.detach().clone()
            for parameter, gradient in zip(parameters, gradients, strict=True)
        }
        steps.append(Step(learner.optimizers.index(optimizer), given))
        move(optimizer, gradients, epoch)

    learner.move = caught
    torch.manual_seed(seed)
    terms = {name: term.item() for name, term in learner.update(*batch, epoch).items()}
    del learner.move
    return terms, steps


def assert_minimises(step: Step, learner: Method, loss: Tensor, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """The step's gradients are those of `loss`, a function of `learner`'s parameters (a copy from before the update).

    Compared one by one, relative to the largest of the parameter, so that a small term cannot hide in rounding."""
    parameters = dict(learner.named_parameters())
    wanted = torch.autograd.grad(
        loss, [parameters[name] for name in step.gradients], allow_unused=True, retain_graph=True
    )
    for (name, given), expected in zip(step.gradients.items(), wanted, strict=True):
        expected = torch.zeros_like(given) if expected is None else expected
        scale = expected.abs().max().item()
        torch.testing.assert_close(
            given, expected, rtol=rtol, atol=atol + rtol * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


def before(learner: Method) -> Method:
    """A copy of the learner, to compute by hand what the next update of the original should minimise."""
    return copy.deepcopy(learner)


CLASSES = 4


def batch() -> Batch:
    """Twelve fixed images of four classes and of the source domains of target `street`."""
    x = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    return x, torch.arange(12) % CLASSES, torch.tensor([0, 1, 3] * 4)


def nearly_uniform_batch() -> Batch:
    """The first image hardly varies, so that the small number under the root counts."""
    x, y, d = batch()
    x[0] = 0.5 + 1e-3 * x[0]
    return x, y, d


def make(method: str = "cirl", **more) -> Method:
    """A method on tiny's data, for a step by hand."""
    return build(Run(method=method, **{"epochs": 5, "lr": 0.03, "batch_size": 16, **more}), CLASSES)


def record(run, accuracy, seconds=1.0, weights="0"):
    """A finished run's folder, as `checkpoint.finish` leaves it."""
    chosen = {"epoch": 1, "source_val": 90.0, "target": accuracy, "invariance": 0.5, "independence": 100.0}
    metrics = {"id": run.id, "seconds": seconds, "model_sha256": weights, "floor": 30.0}
    metrics |= {rule: chosen for rule in RULES}
    metrics["oracle"] = {**chosen, "target": accuracy + 5}
    place = paths.RUNS / run.id
    files.write(
        place / "config.json",
        json.dumps({**asdict(run), "provenance": {"commit": "abc", "code": training_digest(run)}}),
    )
    files.write(
        place / "history.csv", f"epoch,loss,source_val,target,independence,floor,seconds\n0,1,80,{accuracy},5,3,1\n"
    )
    files.write(place / "metrics.json", json.dumps(metrics))


def short(folder, method="deepall", **more) -> Run:
    """A run of seconds on the images of the fixture `folder`."""
    size = dict(backbone="convnet32", image_size=32, batch_size=8, epochs=3, lr=0.01)
    return Run(f"folder:{folder}", "wool", method, **(size | more))


def train(run, stop_after=None):
    """The loop of 02_train."""
    data = loaders(run)
    learner = build(run, len(data.classes))
    history = checkpoint.resume(run, learner, data)
    for epoch in range(len(history), learner.epochs):
        if epoch == stop_after:
            return None
        history.append({**checkpoint.train_epoch(learner, data, epoch), "seconds": 0.0})
        checkpoint.checkpoint(run, learner, history)
    return checkpoint.finish(run, learner, history)


def papermill(notebook, out, root, *parameters, **popen):
    """Start papermill on a notebook, with `root` as the project's root."""
    command = [
        str(Path(sys.executable).parent / "papermill"),
        str(paths.NOTEBOOKS / f"{notebook}.ipynb"),
        str(out),
        "--no-progress-bar",
    ]
    for name, value in parameters:
        command += ["-p", name, str(value)]
    environment = {**os.environ, "CIRL_ROOT": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **popen
    )
