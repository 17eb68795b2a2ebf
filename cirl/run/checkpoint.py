"""A run's folder `data/runs/<run id>/`: resume, checkpoint, finish.

    config.json    all fields of the run and its provenance; written first
    history.csv    one row per epoch
    lock           the process that trains it (`lock`)
    last.pt        everything needed to resume after the last finished epoch, best weights included, with a checksum
    before.pt      the same for the epoch before; both are removed when the run is finished
    model.pt       the weights of the epoch with the best source-validation accuracy
    metrics.json   written last: it marks a finished run

Every file is written atomically (`files.write`). A run that is killed at any moment resumes with bit-identical results.
Code, data and initial weights are part of a run: it is neither resumed nor shown as finished with different ones.
"""

import copy
import hashlib
import io
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from cirl import metrics
from cirl.data.batches import Batch, Loaders
from cirl.errors import UserError, reason
from cirl.methods import build
from cirl.methods.base import Method
from cirl.run import lock
from cirl.run.config import Run
from cirl.run.digest import training_digest
from cirl.run.files import is_intact, read_checked, read_json, write, write_checked
from cirl.run.folder import RULES, folder, is_finished, other_fields
from cirl.run.provenance import hardware, inputs, provenance

STATES = ("last.pt", "before.pt")
READ_EVERY = 50  # steps between two reads of the terms from the device: a read synchronises with it


def seed_epoch(run: Run, epoch: int) -> None:
    """Make all randomness of an epoch a function of (seed, epoch), so that a resumed run repeats it."""
    torch.manual_seed(int(np.random.SeedSequence((run.seed, epoch)).generate_state(1, np.uint64)[0]))
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def train_epoch(
    method: Method, data: Loaders, epoch: int, watch: Callable[[Iterable[Batch]], Iterable[Batch]] = iter
) -> dict[str, float]:
    """One epoch of training and its row of the history. `watch` wraps the batches, for a progress bar."""
    start = time.perf_counter()
    seed_epoch(data.run, epoch)
    method.begin_epoch(data, epoch)
    terms: Any
    terms, unread = [], []
    for step, batch in enumerate(watch(data.train(epoch))):
        unread.append(method.update(*batch, epoch + step / data.steps))
        if len(unread) == READ_EVERY or step == data.steps - 1:
            terms += read_terms(unread, epoch, len(terms))
            unread = []
    terms = pd.DataFrame(terms).mean().to_dict()
    return {"epoch": epoch, **terms, **metrics.evaluate(method, data), "seconds": time.perf_counter() - start}


def read_terms(steps: list[dict[str, torch.Tensor]], epoch: int, first: int) -> list[dict[str, float]]:
    """The terms of several steps as numbers, in one read from the device; raises if one is not finite."""
    values = iter(torch.stack([value for terms in steps for value in terms.values()]).tolist())
    return [finite({name: next(values) for name in terms}, epoch, first + i) for i, terms in enumerate(steps)]


def resume(run: Run, method: Method, data: Loaders, again: bool = False) -> list[dict]:
    """Restore the method from the last checkpoint and return the history so far, empty for a new run.

    An unfinished run is locked by this process; if it was started by other code, it restarts from epoch 0. A finished
    run is loaded; with `again`, a stale one is set aside and trained again."""
    place = folder(run)
    _refuse_other_fields(run)
    if not is_finished(run) or (again and _is_stale(run)):
        lock.take(place)
        if is_finished(run) and again and _is_stale(run):
            set_aside(place)
            lock.take(place)
    if is_finished(run):
        return _load_finished(run, method, data)
    _remove(place.glob(".*.tmp"))  # left by a process that was killed while writing
    if _is_stale(run):
        return begin(run, data)
    state = last_good_state(run)
    if state is None:
        return begin(run, data)
    _refuse_other_inputs(run, data)
    _warn_of_other_machine(run, data)
    _load(place / STATES[0], method.restore, state["method"])
    method.best = state["best"]
    return state["history"]


def _load_finished(run, method, data):
    """The history of a finished run; the method gets its weights."""
    place = folder(run)
    with suppress(UserError):  # a finished run may be read-only
        _remove([*place.glob(".*.tmp"), *(place / name for name in STATES)])  # left by a kill after metrics.json
    lock.release(place)
    if _is_stale(run):
        warnings.warn(
            f"{place} was trained by another version of the code; delete the folder to train it again.", stacklevel=3
        )
    _refuse_other_inputs(run, data)
    _load(place / "model.pt", method.load_state_dict, read_weights(place))
    try:
        return pd.read_csv(place / "history.csv").to_dict("records")
    except (OSError, ValueError) as error:
        raise UserError(f"{place / 'history.csv'} cannot be read ({reason(error)}); delete the folder.") from None


def _load(file, load, state):
    try:
        load(state)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{file} holds the state of another network ({reason(error)}); move it away.") from None


def _remove(files):
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"{file} cannot be removed ({reason(error)}); make the folder writable.") from None


def _config(run):
    """config.json; empty if there is none, or if the folder may not be read: then it cannot be locked."""
    file = folder(run) / "config.json"
    return read_json(file) if os.path.exists(file) else {}


def _recorded(run):
    """The provenance in config.json; empty if there is none."""
    recorded = _config(run).get("provenance")
    return recorded if isinstance(recorded, dict) else {}


def _is_stale(run):
    return _recorded(run).get("code") != training_digest(run)


def _refuse_other_fields(run):
    """Refuse a folder whose config.json belongs to a different run."""
    place, kept = folder(run), _config(run)
    different = other_fields(run, kept)
    if different:
        says = ", ".join(f"{name}={kept.get(name)!r} (asked for: {getattr(run, name)!r})" for name in different)
        raise UserError(f"{place} holds another run: {says}. Move that folder away, or ask for the run that it holds.")


def _refuse_other_inputs(run, data):
    """Refuse to resume or show a run with other data or weights than it was started with."""
    place, recorded, classes = folder(run), _recorded(run), _config(run).get("classes")
    now = inputs(data)
    for name, what in (("data_digest", "data"), ("weights_digest", "weights")):
        if recorded.get(name) not in (None, now[name]):
            raise UserError(
                f"{place} was trained with other {what} (digest {recorded[name]}, now {now[name]}); restore "
                f"the {what}, or move the folder away to train again."
            )
    if classes not in (None, data.classes):
        raise UserError(f"{place} was trained on the classes {', '.join(map(str, classes))}; now they are others.")


def _warn_of_other_machine(run, data):
    """Warn if threads, instruction set or device differ: results then differ in the last bits."""
    recorded = _recorded(run)
    now = hardware(data)
    changed = [f"{name} {recorded[name]} -> {now[name]}" for name in now if recorded.get(name, now[name]) != now[name]]
    if changed:
        warnings.warn(
            f"{run.id} resumes on another machine or setting ({'; '.join(changed)}): its results will differ in the "
            "last bits from those of an uninterrupted run.",
            stacklevel=3,
        )


def set_aside(place: Path) -> None:
    """Move a finished run that is to be trained again into `data/runs/.replaced`; results are never deleted."""
    kept = place.parent / ".replaced" / f"{place.name}.{time.strftime('%Y%m%d-%H%M%S')}"
    lock.release(place)
    try:
        kept.parent.mkdir(exist_ok=True)
        place.rename(kept)
    except OSError as error:
        raise UserError(f"{place} cannot be moved to {kept} ({reason(error)}).") from None
    warnings.warn(f"{place} was trained by another version of the code: moved to {kept}.", stacklevel=3)


def begin(run: Run, data: Loaders) -> list[dict]:
    """Start a run from epoch 0: write its config, return an empty history."""
    _remove(folder(run) / name for name in STATES)
    names = {"classes": data.classes, "domains": run.settings.domains}
    config = {**asdict(run), **names, "provenance": provenance(data)}
    _write(run, "config.json", json.dumps(config, indent=2))
    return []


def _write(run, name, content):
    """Write a file into the run's folder, unless another process has taken over the run."""
    write(folder(run) / name, content, before=lambda: lock.check(folder(run)))


def last_good_state(run: Run) -> dict | None:
    """The newest intact checkpoint; warns when it falls back to the one before."""
    for name in STATES:
        file = folder(run) / name
        content = read_checked(file)
        if content is not None:
            return _as_state(file, loaded(file, content))
        if file.exists():
            warnings.warn(f"{file} is damaged (wrong checksum); resuming from the checkpoint before it.", stacklevel=3)
    return None


def _as_state(file, state):
    history = state.get("history") if isinstance(state, dict) else None
    rows = isinstance(history, list) and history and all(isinstance(row, dict) for row in history)
    if not rows or not {"method", "best"} <= state.keys():
        raise UserError(f"{file} is not a checkpoint of this project; move it away.")
    return state


def checkpoint(run: Run, method: Method, history: list[dict]) -> None:
    """Save the state after an epoch, with the best weights so far, and the history."""
    place = folder(run)
    lock.check(place)
    weights = method.state_dict()
    finite({name: value.sum().item() for name, value in weights.items()}, history[-1]["epoch"])
    if select(history, "source_val") is history[-1]:
        method.best = {name: value.clone() for name, value in weights.items()}
    state = {"method": method.state(), "best": method.best, "history": history}
    write_checked(place / STATES[0], serialized(state), before=lambda: _rotate(place))
    _write(run, "history.csv", _as_csv(history))


def _rotate(place):
    """Rename last.pt to before.pt once its successor is written; a damaged file never replaces an intact one."""
    lock.check(place)
    if is_intact(place / STATES[0]):
        os.replace(place / STATES[0], place / STATES[1])
        lock.check(place)


def _as_csv(history):
    return pd.DataFrame(history).to_csv(index=False)


def finite(terms: dict[str, float], epoch: int, step: int | None = None) -> dict[str, float]:
    """The terms unchanged; raises UserError if one is NaN or infinite, so that a diverging run stops early."""
    for name, value in terms.items():
        if not math.isfinite(value):
            raise UserError(
                f"{name} became {value} in epoch {epoch + 1}{'' if step is None else f', step {step + 1}'}: the run "
                "diverges and stops; the last finished epoch is kept. A smaller lr, or a bound on the gradient "
                "(recipe +clip=1), may help."
            )
    return terms


def finish(run: Run, method: Method, history: list[dict]) -> dict:
    """Write the results, metrics.json last; the method is left with the weights that source validation chose."""
    place = folder(run)
    if is_finished(run):
        return read_json(place / "metrics.json")
    lock.check(place)
    method.load_state_dict(method.best)
    weights = serialized(method.best)
    _write(run, "model.pt", weights)
    _write(run, "history.csv", _as_csv(history))  # a kill may have come between the last checkpoint and its history
    result = {"id": run.id, "seconds": sum(row["seconds"] for row in history)}
    for rule in RULES:
        row = select(history, rule)
        result[rule] = {name: row[name] for name in ("epoch", "source_val", "target", "invariance", "independence")}
    result["floor"] = history[-1]["floor"]
    result["model_sha256"] = hashlib.sha256(weights).hexdigest()
    _write(run, "metrics.json", json.dumps(result, indent=2))
    _remove(place / name for name in STATES)
    lock.release(place)
    return result


def select(history: list[dict], rule: str) -> dict:
    """The epoch that a rule chooses: best on source validation, last, or best on the target (oracle).

    The latest of several equally good ones."""
    if rule == "last":
        return history[-1]
    column = {"source_val": "source_val", "oracle": "target"}[rule]
    return max(reversed(history), key=lambda row: row[column])


def load_model(run: Run, classes: int) -> Method:
    """The finished run's method with the weights that source validation chose, ready to predict."""
    return trained_method(run, classes, folder(run) / "model.pt", read_weights(folder(run)))


def trained_method(run: Run, classes: int, file: Path, weights: dict) -> Method:
    """The run's method with the weights of a file, in evaluation mode.

    The file of its initial weights is not needed. The random state of torch is left unchanged."""
    untrained = copy.copy(run)
    for field, value in (("weights", "none"), ("compile", False)):
        object.__setattr__(untrained, field, value)
    with torch.random.fork_rng(devices=[]):
        method = build(untrained, classes)
    _load(file, method.load_state_dict, weights)
    method.run = run
    return method.eval()


def read_weights(place: Path) -> dict:
    """model.pt in a folder, checked against the checksum in metrics.json if there is one."""
    file, metrics_file = place / "model.pt", place / "metrics.json"
    try:
        content = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise UserError(f"{file} cannot be read ({reason(error)}).") from None
    expected = read_json(metrics_file).get("model_sha256") if metrics_file.exists() else None
    if not content or (expected and hashlib.sha256(content).hexdigest() != expected):
        raise UserError(f"{file} is missing or damaged; delete the folder {file.parent} to train the run again.")
    return loaded(file, content)


def loaded(file: Path, content: bytes) -> dict:
    """Tensors and numbers only: other objects, which could run code when loaded, are refused."""
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # torch's own message advises to load the file without this check
        raise UserError(f"{file} holds more than tensors and numbers, or is not a file of torch.save.") from None


def serialized(state: dict) -> bytes:
    """The bytes of torch.save."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
