"""Records of finished runs: read from the runs' folders and from the two committed files that collect them.

    data/results.csv    one row per finished run
    data/history.csv    one row per epoch of a finished run

A run's folder takes precedence; without one, the collected files are read, so that tables and curves render on a
machine without a GPU and without checkpoints. A record that cannot be trusted is skipped, and the reason is shown.

In results.csv `target` is the domain; `<rule>.target` there, and `target` in history.csv, are the accuracy on it.
"""

import csv
import math
import os
import warnings
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd
from filelock import FileLock

from cirl import paths
from cirl.errors import UserError, invalid, reason
from cirl.run.config import Run
from cirl.run.digest import training_digest
from cirl.run.files import read_json, write
from cirl.run.folder import RULES, folder, is_finished, other_fields

FIELDS = [field.name for field in fields(Run)]
CHOSEN = ("epoch", "source_val", "target", "invariance", "independence")  # what a record holds of the epoch of a rule
_RESULTS = [f"{rule}.{name}" for rule in RULES for name in CHOSEN]
CONVERGED = 0.5  # points by which source validation may change over the last fifth of the epochs
# what a record keeps of its provenance
ORIGIN = ("commit", "code", "data_digest", "weights_digest", "cpu", "capability", "threads")


def pairs(rows: dict[str, list[Run]]) -> list[tuple[str, Run]]:
    """An item's runs, each with its row."""
    return [(row, run) for row, runs in rows.items() for run in runs]


def load_runs(rows: dict[str, list[Run]], rule: str = "source_val", importance: bool = False) -> pd.DataFrame:
    """One row per finished run of an item: the item's row, the run's fields, and its results under a selection rule.

    `accuracy` is on the target domain, in per cent. `attrs` holds the number of expected runs, the ids of missing runs
    and of runs of other code, and the skipped records with reasons. With `importance` the readings of Table 6 are
    computed from the weights."""
    if rule not in RULES:
        raise invalid("rule", rule, RULES)
    runs = {run.id: run for _, run in pairs(rows)}
    records, skipped = folder_records(runs.values(), importance)
    collected, damaged = collected_records(run for run in runs.values() if run.id not in records)
    records |= collected
    found = [
        {"row": row, **asdict(run), **_chosen(records[run.id], rule), "rule": rule}
        for row, run in pairs(rows)
        if run.id in records
    ]
    table = pd.DataFrame(found, columns=None if found else ["row", *FIELDS, "accuracy", "source_val", "epoch", "rule"])
    if importance:
        from cirl.metrics import READINGS  # slow import; most tables need no torch

        readings = [f"importance_{reading}.{part}" for reading in READINGS for part in ("mean", "std")]
        table = table.reindex(columns=[*table.columns, *(name for name in readings if name not in table)])
    table.attrs.update(expected=len(runs), missing=sorted(runs.keys() - records.keys()), skipped=damaged | skipped)
    other = [name for name, record in records.items() if record.get("code") != training_digest(runs[name])]
    table.attrs.update(other_code=sorted(other), here=len(records.keys() - collected.keys()))
    return table


def load_some(rows: dict[str, list[Run]], ready: list[tuple[str, Run]]) -> pd.DataFrame:
    """`load_runs` of some of an item's runs; the others count as missing."""
    table = load_runs({row: [run for its, run in ready if its == row] for row in rows})
    expected, found = ({run.id for _, run in some} for some in (pairs(rows), ready))
    table.attrs.update(expected=len(expected), missing=sorted(expected - found))
    return table


def load_history(rows: dict[str, list[Run]]) -> pd.DataFrame:
    """One row per epoch of the finished runs of an item, with the item's row and the run's seed and target."""
    runs = {run.id: run for _, run in pairs(rows)}
    histories, skipped = _folder_histories(runs.values())
    collected = read_collected("history.csv")
    wanted = collected[collected["id"].isin(runs.keys() - histories.keys())]
    for name, epochs in wanted.groupby("id", sort=False):
        try:
            histories[name] = _checked_history(epochs)
        except UserError as error:
            skipped[name] = f"history.csv: {error}"
    parts = []
    for row, run in pairs(rows):
        if run.id in histories:
            epochs = histories[run.id].rename(columns={"target": "accuracy"}).dropna(axis=1, how="all")
            parts.append(epochs.assign(row=row, id=run.id, seed=run.seed, target=run.target))
    known = ["row", "id", "seed", "target", "epoch", "accuracy", "source_val", "independence", "floor", "invariance"]
    table = pd.concat(parts) if parts else pd.DataFrame(columns=known)
    table.attrs.update(expected=len(runs), missing=sorted(runs.keys() - histories.keys()), skipped=skipped)
    return table


def whole_seeds(history: pd.DataFrame) -> pd.DataFrame:
    """A history without the seeds of a row that lack a target of its other seeds: their mean is of other targets."""
    targets = history.groupby(["row", "seed"])["target"].transform("nunique")
    return history[targets == targets.groupby(history["row"]).transform("max")]


def late_changes(history: pd.DataFrame) -> dict[str, float]:
    """For each row of a history, how far source validation moves over the last fifth of the epochs.

    It is the mean over targets and seeds; a row that moves by `CONVERGED` points or more has not converged."""
    curves = whole_seeds(history).groupby(["row", "epoch"], sort=False)["source_val"].mean()
    return {row: _late_change(curve) for row, curve in curves.groupby("row", sort=False)}


def not_converged(history: pd.DataFrame) -> dict[str, float]:
    """The rows of a history that have not converged, with their late change."""
    return {row: change for row, change in late_changes(history).items() if abs(change) >= CONVERGED}


def _late_change(curve):
    return curve.iloc[-1] - curve.iloc[-1 - max(1, round(len(curve) / 5))] if len(curve) > 1 else float("nan")


def recorded(ids: set[str]) -> set[str]:
    """Those of the run ids that have a finished folder or a row in results.csv, without a look at what they hold."""
    collected = {*read_collected("results.csv")["id"]}
    return {name for name in ids if name in collected or os.path.exists(paths.RUNS / name / "metrics.json")}


def coverage(table: pd.DataFrame) -> str:
    """How many of the expected runs have records (`18 of 20 runs`), come from other code, or were skipped."""
    expected, missing = table.attrs["expected"], table.attrs["missing"]
    found = expected - len(missing)
    parts = [f"{found} of {expected} runs"]
    if table.attrs.get("here"):
        parts.append(f"{table.attrs['here']} trained here")
    if table.attrs.get("other_code"):
        parts.append(f"{len(table.attrs['other_code'])} of {found} runs come from other code")
    if table.attrs.get("skipped"):
        parts.append("records skipped: " + "; ".join(f"{name}: {why}" for name, why in table.attrs["skipped"].items()))
    return parts[0] + (f" ({'; '.join(parts[1:])})" if parts[1:] else "")


def collect(runs: Iterable[Run], study: str) -> None:
    """Write the study's finished runs into results.csv and history.csv; rows of other runs are kept.

    Reading and writing happen under a lock, so that two processes at the same time lose nothing."""
    by_id = {run.id: run for run in runs}
    with collecting():
        text = dict(dtype=str, keep_default_na=False)  # lines of other runs are kept to the letter
        results, history = (read_collected(name, **text) for name in ("results.csv", "history.csv"))
        records, skipped = folder_records(by_id.values(), importance=True)
        histories, no_history = _folder_histories(by_id[name] for name in records)
        for name, why in (skipped | no_history).items():
            warnings.warn(f"skipped {name}: {why}", stacklevel=2)
        new = [{"id": name, "study": study, **asdict(by_id[name]), **records[name]} for name in histories]
        results = pd.concat([results[~results["id"].isin(histories)], pd.DataFrame(new, dtype=object)])
        new = [epochs.assign(id=name).astype(object) for name, epochs in histories.items()]
        history = pd.concat([history[~history["id"].isin(histories)], *new])
        history = history[["id", *[column for column in history.columns if column not in ("id", "seconds")]]]
        if histories:
            write(paths.DATA / "results.csv", results.sort_values("id").to_csv(index=False))
            history = history.sort_values(
                ["id", "epoch"], key=lambda cells: cells.astype(float) if cells.name == "epoch" else cells
            )
            write(paths.DATA / "history.csv", history.to_csv(index=False))


@contextmanager
def collecting():
    """One process at a time; what a killed one has left unfinished is removed."""
    lock = FileLock(paths.DATA / ".collect.lock")
    try:
        paths.DATA.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise UserError(f"{lock.lock_file} cannot be written ({reason(error)}); make the folder writable.") from None
    try:
        for leftover in (file for name in ("results", "history") for file in paths.DATA.glob(f".{name}.csv.*.tmp")):
            leftover.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def importances(place: Path) -> dict[str, float]:
    """The readings of Table 6 from the weights in a run's folder; none if the weights are gone."""
    if not (place / "model.pt").exists():
        return {}
    from cirl.metrics import READINGS, representation_importance  # late: most tables need no torch
    from cirl.run.checkpoint import read_weights

    weights = read_weights(place)
    W = weights.get("h1.weight") if isinstance(weights, dict) else None
    if W is None or getattr(W, "ndim", None) != 2 or not W.isfinite().all():
        raise UserError("model.pt has no classifier h1.weight with finite numbers")
    flat = {}
    for reading in READINGS:
        importance = representation_importance(W, reading)
        flat[f"importance_{reading}.mean"], flat[f"importance_{reading}.std"] = importance.mean(), importance.std()
    return {name: value.item() for name, value in flat.items()}


def folder_records(runs: Iterable[Run], importance: bool = False) -> tuple[dict[str, dict], dict[str, str]]:
    """The records of the runs with a finished folder, by id, and the folders skipped with reasons."""
    records, skipped = {}, {}
    for run in (run for run in runs if is_finished(run)):
        try:
            records[run.id] = _folder_record(run, importance)
        except (UserError, OSError) as error:
            skipped[run.id] = reason(error)
    return records, skipped


def _folder_record(run, importance):
    """The record in a run's folder as one flat row; raises UserError if it cannot be trusted."""
    config, metrics = (read_json(folder(run) / name) for name in ("config.json", "metrics.json"))
    if metrics.get("id") != run.id:
        raise UserError(f"metrics.json is the record of {metrics.get('id')}")
    if other := other_fields(run, config):
        raise UserError(f"config.json says {', '.join(f'{name}={config.get(name)!r}' for name in other)}")
    if lacks := [name for name in (*RULES, "floor") if name not in metrics]:
        raise UserError(f"metrics.json lacks {', '.join(lacks)}, perhaps an older version's")
    origin = config.get("provenance") or {}
    if not isinstance(origin, dict):
        raise UserError("config.json has a provenance that is not an object")
    if odd := [rule for rule in RULES if not isinstance(metrics[rule], dict)]:
        raise UserError(f"metrics.json has {odd[0]}={metrics[odd[0]]!r:.40}")
    record = {name: metrics.get(name) for name in ("seconds", "floor", "model_sha256")}
    record |= {f"{rule}.{name}": metrics[rule].get(name) for rule in RULES for name in CHOSEN}
    record |= importances(folder(run)) if importance else {}
    record |= {name: origin.get(name) for name in ORIGIN}
    return _checked_record(record, "metrics.json")


def collected_records(runs: Iterable[Run]) -> tuple[dict[str, dict], dict[str, str]]:
    """The collected records of the given runs, by id, and those skipped with reasons."""
    records, skipped = {}, {}
    by_id = {run.id: run for run in runs}
    collected = read_collected("results.csv")
    collected = collected[collected["id"].isin(by_id)].copy()
    for name in [name for name in collected if name in ("seconds", "floor", *_RESULTS)]:
        collected[name] = pd.to_numeric(collected[name], errors="coerce")  # one invalid cell makes a column text
    twice = set(collected["id"][collected["id"].duplicated()])
    for record in collected.to_dict("records"):
        name = record["id"]
        try:
            if name in twice:
                raise UserError("results.csv has two rows of this run")
            if other := [field for field in FIELDS if _differs(record.get(field), getattr(by_id[name], field))]:
                raise UserError(f"results.csv says {', '.join(f'{field}={record[field]}' for field in other)}")
            records[name] = _checked_record(record, "results.csv")
        except UserError as error:
            skipped[name] = str(error)
    return records, skipped


def _differs(cell, value):
    """Whether a cell of a csv file holds another value than a run's field; an empty cell predates the field."""
    if pd.isna(cell):
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return not _is_number(cell) or float(cell) != value
    return str(cell) != str(value)


def _checked_record(record, file):
    """The record, if its numbers are possible: accuracies from 0 to 100, all others numbers."""
    for rule in RULES:
        for name in CHOSEN:
            value = record.get(f"{rule}.{name}")
            high = 100 if name in ("source_val", "target") else math.inf
            low = 0 if name != "invariance" else -math.inf
            if not _is_number(value) or not low <= value <= high:
                raise UserError(f"{file} has {rule}.{name}={value!r:.40}")
    for name in ("seconds", "floor"):
        if not _is_number(record.get(name)):
            raise UserError(f"{file} has {name}={record.get(name)!r:.40}")
    return record


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _folder_histories(runs):
    """The histories of the runs whose folder can be trusted, by id, and those skipped with reasons."""
    runs = {run.id: run for run in runs}
    records, skipped = folder_records(runs.values())
    histories = {}
    for name in records:
        try:
            histories[name] = _checked_history(pd.read_csv(folder(runs[name]) / "history.csv"))
        except (UserError, OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
            skipped[name] = f"history.csv: {reason(error)}"
    return histories, skipped


def _checked_history(epochs):
    """The epochs, if they have the columns of a history and no epoch appears twice."""
    if lacks := [name for name in ("epoch", "source_val", "target", "independence") if name not in epochs]:
        raise UserError(f"lacks {', '.join(lacks)}")
    if not len(epochs) or epochs["epoch"].duplicated().any():
        raise UserError("has no epoch" if not len(epochs) else "has an epoch twice")
    accuracies = epochs[["source_val", "target"]].apply(pd.to_numeric, errors="coerce")
    if not ((accuracies >= 0) & (accuracies <= 100)).all(axis=None):
        raise UserError("has an accuracy that is not between 0 and 100")
    return epochs


def _chosen(record, rule):
    """A record's columns under one rule; the accuracy on the target is `accuracy`, as `target` is the domain."""
    always = [name for name in record if name.startswith("importance") or name in ("floor", "seconds", *ORIGIN)]
    chosen = {name: record[f"{rule}.{name}"] for name in CHOSEN}
    chosen["accuracy"] = chosen.pop("target")
    return {name: record[name] for name in always} | chosen


def read_collected(name: str, **how) -> pd.DataFrame:
    """A collected file, without rows if there is none or it is empty; raises UserError naming a damaged line.

    `how` is passed to `pandas.read_csv`."""
    file = paths.DATA / name
    if not file.exists() or not file.stat().st_size:
        if file.exists():
            warnings.warn(f"{file} is empty. Restore it with git checkout.", stacklevel=3)
        return pd.DataFrame({"id": pd.Series(dtype=str)})
    with open(file, newline="", encoding="utf-8") as lines:
        reader = csv.reader(lines, strict=True)
        try:
            head = next(reader)
            damaged = "id" not in head or any(len(cells) != len(head) for cells in reader)
        except (csv.Error, UnicodeDecodeError):
            damaged = True
        if damaged:
            raise UserError(f"{file}, line {reader.line_num}, is damaged. Restore it with git checkout.")
    return pd.read_csv(file, **how)
