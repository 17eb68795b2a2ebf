"""A run's folder `data/runs/<run id>/`: resume, checkpoint, finish.

    config.json    all fields of the run, and where it comes from; written first
    history.csv    one row per epoch
    last.pt        everything needed to go on after the last finished epoch; gone when the run is finished
    model.pt       the weights of the epoch with the best source-validation accuracy
    metrics.json   written last: it is the mark of a finished run

Every file is there whole or not at all (`files.write`).
"""

import io
import json
import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from cirl import metrics
from cirl.config import Run
from cirl.data import Loaders, content_digest
from cirl.errors import UserError
from cirl.files import read_json, training_digest, write
from cirl.methods import METHODS
from cirl.methods.base import Method
from cirl.results import RULES, folder, is_finished
from cirl.weights import weights_digest

PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "matplotlib", "pillow")


def seed_epoch(run: Run, epoch: int) -> None:
    """Make all randomness of an epoch a function of (seed, epoch), so that a resumed run repeats it."""
    torch.manual_seed(int(np.random.SeedSequence((run.seed, epoch)).generate_state(1, np.uint64)[0]))
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def resume(run: Run, method: Method, data: Loaders) -> list[dict]:
    """Bring the method to where the run stands; the history so far, empty for a new run.

    A run that other code has left half done begins anew: one run is never the work of two codes."""
    place = folder(run)
    if not (place / "config.json").exists():
        return begin(run, data)
    kept = read_json(place / "config.json")
    different = [name for name, value in asdict(run).items() if kept.get(name) != value]
    if different:
        says = ", ".join(f"{name}={kept.get(name)!r} (asked for: {getattr(run, name)!r})" for name in different)
        raise UserError(f"{place} holds another run: {says}. Move that folder away, or ask for the run that it holds.")
    if is_finished(run):
        method.load_state_dict(torch.load(place / "model.pt", map_location="cpu", weights_only=True))
        return pd.read_csv(place / "history.csv").to_dict("records")
    if kept["provenance"]["code"] != training_digest() or not (place / "last.pt").exists():
        return begin(run, data)
    state = torch.load(place / "last.pt", map_location="cpu", weights_only=True)
    method.restore(state["method"])
    return state["history"]


def begin(run: Run, data: Loaders) -> list[dict]:
    """A new folder, or one made new: the config, and an empty history."""
    (folder(run) / "last.pt").unlink(missing_ok=True)
    write(folder(run) / "config.json", json.dumps({**asdict(run), "provenance": provenance(data)}, indent=2))
    return []


def checkpoint(run: Run, method: Method, history: list[dict]) -> None:
    """Keep the epoch that has just ended: the history, the weights if they are the best, and the state."""
    place = folder(run)
    if select(history, "source_val") is history[-1]:
        write(place / "model.pt", serialized(method.state_dict()))
    write(place / "last.pt", serialized({"method": method.state(), "history": history}))
    write(place / "history.csv", pd.DataFrame(history).to_csv(index=False))


def finish(run: Run, method: Method, history: list[dict]) -> dict:
    """Write metrics.json, once; the method is left with the weights that source validation chose."""
    place = folder(run)
    if is_finished(run):
        return read_json(place / "metrics.json")
    method.load_state_dict(torch.load(place / "model.pt", map_location="cpu", weights_only=True))
    result = {"id": run.id, "seconds": sum(row["seconds"] for row in history)}
    for rule in RULES:
        row = select(history, rule)
        result[rule] = {name: row[name] for name in ("epoch", "source_val", "target", "invariance", "independence")}
    result["floor"] = history[-1]["floor"]
    for reading in metrics.READINGS:
        importance = metrics.representation_importance(method.h1.weight.detach(), reading)
        result[f"importance_{reading}"] = {"mean": importance.mean().item(), "std": importance.std().item()}
    write(place / "metrics.json", json.dumps(result, indent=2))
    (place / "last.pt").unlink(missing_ok=True)
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
    method = METHODS[run.method_name](run, classes)
    method.load_state_dict(torch.load(folder(run) / "model.pt", map_location="cpu", weights_only=True))
    return method.eval()


def provenance(data: Loaders) -> dict:
    """Where a run comes from: code, packages, machine, data and weights."""
    device = data.device.type if data.device.type == "cpu" else torch.cuda.get_device_name(data.device)
    return {
        "commit": commit(),
        "code": training_digest(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "device": device,
        "data_digest": content_digest(data.table.images),
        "weights_digest": weights_digest(data.run.backbone, data.run.weights),
    }


def commit() -> str:
    """The commit of the code, `-dirty` where the package differs from it, or `unknown` outside of git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "."], capture_output=True, text=True).stdout.strip()
    except OSError:
        return "unknown"
    return f"{head}{'-dirty' if changed else ''}" if head else "unknown"


def serialized(state: dict) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
