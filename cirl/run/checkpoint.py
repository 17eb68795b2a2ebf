"""A run's folder `data/runs/<run id>/`: resume, checkpoint, finish.

    config.json    all fields of the run, and where it comes from; written first
    history.csv    one row per epoch
    lock           who is training it (`lock`)
    last.pt        everything needed to go on after the last finished epoch, best weights included, with a checksum
    before.pt      the same of the epoch before; both are gone when the run is finished
    model.pt       the weights of the epoch with the best source-validation accuracy
    metrics.json   written last: it is the mark of a finished run

Every file is there whole or not at all (`files.write`). Killed at any moment, a run goes on to the same bits.
"""

import hashlib
import io
import json
import math
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cirl import metrics
from cirl.data.batches import Loaders
from cirl.errors import UserError, reason
from cirl.methods import build
from cirl.methods.base import Method
from cirl.run import lock
from cirl.run.config import Run
from cirl.run.digest import training_digest
from cirl.run.files import read_checked, read_json, write, write_checked
from cirl.run.folder import RULES, folder, is_finished, other_fields
from cirl.run.provenance import provenance

STATES = ("last.pt", "before.pt")


def seed_epoch(run: Run, epoch: int) -> None:
    """Make all randomness of an epoch a function of (seed, epoch), so that a resumed run repeats it."""
    torch.manual_seed(int(np.random.SeedSequence((run.seed, epoch)).generate_state(1, np.uint64)[0]))
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def train_epoch(
    method: Method, data: Loaders, epoch: int, watch: Callable[[Iterable], Iterable] = iter
) -> dict[str, float]:
    """One epoch of training and its row of the history. `watch` wraps the batches, for a progress bar."""
    start = time.perf_counter()
    seed_epoch(data.run, epoch)
    method.begin_epoch(data, epoch)
    steps = []
    for step, batch in enumerate(watch(data.train(epoch))):
        steps.append(finite(method.update(*batch, epoch + step / data.steps), epoch, step))
    terms = pd.DataFrame(steps).mean().to_dict()
    return {"epoch": epoch, **terms, **metrics.evaluate(method, data), "seconds": time.perf_counter() - start}


def resume(run: Run, method: Method, data: Loaders) -> list[dict]:
    """Bring the method to where the run stands; the history so far, empty for a new run.

    An unfinished run is then ours (`lock`). One that other code has left half done begins anew: one run is never the
    work of two codes."""
    place = folder(run)
    _refuse_another(run)
    if not is_finished(run):
        lock.take(place)
        for leftover in place.glob(".*.tmp"):  # of a process that was killed while it wrote
            leftover.unlink(missing_ok=True)
    if is_finished(run):  # perhaps just now, by another
        lock.release(place)
        if _provenance(run).get("code") != training_digest(run):
            warnings.warn(
                f"{place} was trained by another version of the code; delete the folder to train it again.",
                stacklevel=2,
            )
        method.load_state_dict(chosen_weights(run))
        return pd.read_csv(place / "history.csv").to_dict("records")
    if not (place / "config.json").exists() or _provenance(run)["code"] != training_digest(run):
        return begin(run, data)
    state = last_good_state(run)
    if state is None:
        return begin(run, data)
    try:
        method.restore(state["method"])
    except (KeyError, RuntimeError, ValueError) as error:
        raise UserError(f"{place} holds the state of another network ({reason(error)}); move it away.") from None
    method.best = state["best"]
    return state["history"]


def _refuse_another(run):
    """A folder whose config names other fields than the run's is not touched."""
    place = folder(run)
    if not (place / "config.json").exists():
        return
    kept = read_json(place / "config.json")
    different = other_fields(run, kept)
    if different:
        says = ", ".join(f"{name}={kept.get(name)!r} (asked for: {getattr(run, name)!r})" for name in different)
        raise UserError(f"{place} holds another run: {says}. Move that folder away, or ask for the run that it holds.")


def _provenance(run):
    return read_json(folder(run) / "config.json")["provenance"]


def begin(run: Run, data: Loaders) -> list[dict]:
    """A new folder, or one made new: the config, and an empty history."""
    for name in STATES:
        (folder(run) / name).unlink(missing_ok=True)
    config = {**asdict(run), "classes": data.classes, "provenance": provenance(data)}
    write(folder(run) / "config.json", json.dumps(config, indent=2))
    return []


def last_good_state(run: Run) -> dict | None:
    """The newest state that is whole, and a word where that is not the last one."""
    for name in STATES:
        file = folder(run) / name
        content = read_checked(file)
        if content is not None:
            return loaded(file, content)
        if file.exists():
            warnings.warn(
                f"{file} is damaged (its checksum does not hold); going on from the state before it.", stacklevel=2
            )
    return None


def checkpoint(run: Run, method: Method, history: list[dict]) -> None:
    """Keep the epoch that has just ended: the state with the best weights so far, and the history."""
    place = folder(run)
    lock.check(place)
    weights = method.state_dict()
    finite({name: value.sum().item() for name, value in weights.items()}, history[-1]["epoch"])
    if select(history, "source_val") is history[-1]:
        method.best = {name: value.clone() for name, value in weights.items()}
    state = {"method": method.state(), "best": method.best, "history": history}
    if (place / STATES[0]).exists():
        os.replace(place / STATES[0], place / STATES[1])
    write_checked(place / STATES[0], serialized(state))
    write(place / "history.csv", _as_csv(history))


def _as_csv(history):
    return pd.DataFrame(history).to_csv(index=False)


def finite(terms: dict[str, float], epoch: int, step: int | None = None) -> dict[str, float]:
    """The terms of a step as they are; a run that diverges ends here, and what it has kept stays."""
    for name, value in terms.items():
        if not math.isfinite(value):
            raise UserError(
                f"{name} became {value} in epoch {epoch + 1}{'' if step is None else f', step {step + 1}'}: the run "
                "diverges and stops; the last finished epoch is kept. A smaller lr, or a bound on the gradient "
                "(recipe +clip=1), may help."
            )
    return terms


def finish(run: Run, method: Method, history: list[dict]) -> dict:
    """Write what is left, metrics.json last; the method is left with the weights that source validation chose."""
    place = folder(run)
    if is_finished(run):
        return read_json(place / "metrics.json")
    lock.check(place)
    method.load_state_dict(method.best)
    weights = serialized(method.best)
    write(place / "model.pt", weights)
    write(place / "history.csv", _as_csv(history))  # a kill may have come between the last state and its history
    result = {"id": run.id, "seconds": sum(row["seconds"] for row in history)}
    for rule in RULES:
        row = select(history, rule)
        result[rule] = {name: row[name] for name in ("epoch", "source_val", "target", "invariance", "independence")}
    result["floor"] = history[-1]["floor"]
    result["model_sha256"] = hashlib.sha256(weights).hexdigest()
    write(place / "metrics.json", json.dumps(result, indent=2))
    for name in STATES:
        (place / name).unlink(missing_ok=True)
    lock.release(place)
    return result


def select(history: list[dict], rule: str) -> dict:
    """The epoch that a rule reads: best on source validation, last, or best on the target (oracle).

    Where several are equally good, the latest."""
    if rule == "last":
        return history[-1]
    column = {"source_val": "source_val", "oracle": "target"}[rule]
    return max(reversed(history), key=lambda row: row[column])


def load_model(run: Run, classes: int) -> Method:
    """The finished run's method with the weights that source validation chose, ready to predict."""
    method = build(run, classes)
    method.load_state_dict(chosen_weights(run))
    return method.eval()


def chosen_weights(run: Run) -> dict:
    """model.pt, held to the checksum in metrics.json."""
    file = folder(run) / "model.pt"
    content = file.read_bytes() if file.exists() else b""
    expected = read_json(folder(run) / "metrics.json").get("model_sha256")  # records of before have none
    if not content or (expected and hashlib.sha256(content).hexdigest() != expected):
        raise UserError(f"{file} is missing or damaged; delete the folder {file.parent} to train the run again.")
    return loaded(file, content)


def loaded(file: Path, content: bytes) -> dict:
    """Tensors and numbers; anything else, which might run code of others, is refused."""
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise UserError(f"{file} holds more than tensors and numbers, or is no such file: {reason(error)}") from None


def serialized(state: dict) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
