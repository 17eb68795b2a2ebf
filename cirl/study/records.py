"""Reading finished runs back, from their folders or from the two committed files that collect them.

    data/results.csv    one row per finished run
    data/history.csv    one row per epoch of a finished run

A run's folder speaks first; where there is none, the collected files do, so that tables and curves render on a machine
without a GPU and without checkpoints. What neither knows is missing, and said to be.
"""

import json
import warnings
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd

from cirl import paths
from cirl.errors import UserError, reason, refuse
from cirl.run.config import Run
from cirl.run.digest import training_digest
from cirl.run.files import read_json, write
from cirl.run.folder import RULES, folder, is_finished, other_fields

FIELDS = [field.name for field in fields(Run)]
ORIGIN = ("commit", "code", "data_digest", "weights_digest", "cpu", "threads")  # what a record keeps of its provenance


def pairs(rows: dict[str, list[Run]]) -> list[tuple[str, Run]]:
    """An item's runs, each with its row."""
    return [(row, run) for row, runs in rows.items() for run in runs]


def load_runs(rows: dict[str, list[Run]], rule: str = "source_val", importance: bool = False) -> pd.DataFrame:
    """One row per finished run of an item: the item's row, the run's fields, and its results under a selection rule.

    `accuracy` is that on the target domain, in per cent. `attrs` says what was expected, what is missing, which folders
    were skipped and why, and which runs come from other code than the present; a skipped or unfinished run is read from
    the collected results, if they know it. With `importance` the readings of Table 6 are computed from the weights."""
    if rule not in RULES:
        raise refuse("rule", rule, RULES)
    collected = _collected("results.csv").set_index("id", drop=False)
    found, missing, skipped, other_code = [], [], {}, set()
    for row, run in pairs(rows):
        record = _record(run, collected, skipped, importance)
        if record is None:
            missing.append(run.id)
        else:
            found.append({"row": row, **asdict(run), **_under(record, rule), "rule": rule})
            other_code |= set() if record.get("code") == training_digest(run) else {run.id}
    table = pd.DataFrame(found, columns=None if found else ["row", *FIELDS, "accuracy", "source_val", "epoch", "rule"])
    if importance:
        from cirl.metrics import READINGS  # late: most tables need no torch

        readings = [f"importance_{reading}.{part}" for reading in READINGS for part in ("mean", "std")]
        table = table.reindex(columns=[*table.columns, *(name for name in readings if name not in table)])
    expected = {run.id for _, run in pairs(rows)}
    table.attrs.update(expected=len(expected), missing=sorted(set(missing)), skipped=skipped)
    table.attrs["other_code"] = sorted(other_code)
    return table


def load_history(rows: dict[str, list[Run]]) -> pd.DataFrame:
    """One row per epoch of the finished runs of an item, with the item's row and the run's seed and target."""
    collected = _collected("history.csv")
    parts, skipped = [], {}
    for row, run in pairs(rows):
        own = folder(run) / "history.csv"
        sound = _own(run, skipped) is not None and own.exists()
        epochs = pd.read_csv(own) if sound else collected[collected["id"] == run.id]
        epochs = epochs.rename(columns={"target": "accuracy"}).dropna(axis=1, how="all")
        parts.append(epochs.assign(row=row, id=run.id, seed=run.seed, target=run.target))
    known = ["row", "id", "seed", "target", "epoch", "accuracy", "source_val", "independence", "floor", "invariance"]
    parts = [part for part in parts if len(part)]
    table = pd.concat(parts) if parts else pd.DataFrame(columns=known)
    expected = {run.id for _, run in pairs(rows)}
    table.attrs.update(expected=len(expected), missing=sorted(expected - set(table["id"])), skipped=skipped)
    return table


def coverage(table: pd.DataFrame) -> str:
    """How many of the expected runs are there (`18 of 20 runs`), come from other code, or were skipped."""
    expected, missing = table.attrs["expected"], table.attrs["missing"]
    found = expected - len(missing)
    parts = [f"{found} of {expected} runs"]
    if table.attrs.get("other_code"):
        parts.append(f"{len(table.attrs['other_code'])} of {found} runs come from other code")
    if table.attrs.get("skipped"):
        parts.append("folders skipped: " + "; ".join(f"{name}: {why}" for name, why in table.attrs["skipped"].items()))
    return parts[0] + (f" ({'; '.join(parts[1:])})" if parts[1:] else "")


def collect(runs: Iterable[Run], study: str) -> None:
    """Bring the study's finished runs into results.csv and history.csv; the rows of other runs stay as they are."""
    results, history = _collected("results.csv"), _collected("history.csv")
    done, skipped = [], {}
    new_results = []
    for run in runs:
        record = _own(run, skipped, importance=True)
        if record is not None:
            done.append(run)
            new_results.append({"id": run.id, "study": study, **asdict(run), **record})
    for name, why in skipped.items():
        warnings.warn(f"skipped {name}: {why}", stacklevel=2)
    ids = {run.id for run in done}
    new_history = [pd.read_csv(folder(run) / "history.csv").assign(id=run.id) for run in done]
    results = pd.concat([results[~results["id"].isin(ids)], pd.DataFrame(new_results)])
    history = pd.concat([history[~history["id"].isin(ids)], *new_history])
    history = history[["id", *[column for column in history.columns if column not in ("id", "seconds")]]]
    write(paths.DATA / "results.csv", results.sort_values("id").to_csv(index=False))
    write(paths.DATA / "history.csv", history.sort_values(["id", "epoch"]).to_csv(index=False))


def _record(run, collected, skipped, importance):
    """The flat results of a finished run, or None."""
    own = _own(run, skipped, importance)
    if own is None and run.id in collected.index:
        return collected.loc[run.id].to_dict()
    return own


def _own(run, skipped, importance=False):
    """The flat record in the run's own folder, None where there is none or it cannot be trusted; `skipped` says why."""
    if not is_finished(run):
        return None
    try:
        config, metrics = read_json(folder(run) / "config.json"), read_json(folder(run) / "metrics.json")
    except (UserError, OSError) as error:
        skipped[run.id] = reason(error)
        return None
    other = other_fields(run, config)
    lacks = [name for name in (*RULES, "floor") if name not in metrics]
    if metrics.get("id") != run.id:
        skipped[run.id] = f"metrics.json is the record of {metrics.get('id')}"
    elif other:
        skipped[run.id] = f"config.json says {', '.join(f'{name}={config.get(name)!r}' for name in other)}"
    elif lacks:
        skipped[run.id] = f"metrics.json lacks {', '.join(lacks)}, perhaps an older version's"
    else:
        origin = config.get("provenance", {})
        metrics = {name: value for name, value in metrics.items() if name != "model_sha256"}
        metrics |= importances(folder(run) / "model.pt") if importance else {}
        return _flat(metrics | {name: origin.get(name) for name in ORIGIN})
    return None


def importances(weights: Path) -> dict[str, dict[str, float]]:
    """The readings of Table 6 from the weights of a finished run; none where the weights are gone."""
    if not weights.exists():
        return {}
    import torch  # late: most tables need no weights

    from cirl.metrics import READINGS, representation_importance

    W = torch.load(weights, map_location="cpu", weights_only=True, mmap=True)["h1.weight"]
    readings = {reading: representation_importance(W, reading) for reading in READINGS}
    return {f"importance_{name}": {"mean": r.mean().item(), "std": r.std().item()} for name, r in readings.items()}


def _flat(metrics):
    """`source_val.target` and so on: a record in one row."""
    flat = {}
    for name, value in metrics.items():
        values = value.items() if isinstance(value, dict) else [(None, value)]
        flat |= {f"{name}.{key}" if key else name: each for key, each in values}
    return flat


def _under(record, rule):
    """The columns of a record under one rule; accuracy on the target is `accuracy`, since `target` is the domain."""
    chosen = {key.removeprefix(f"{rule}."): value for key, value in record.items() if key.startswith(f"{rule}.")}
    chosen["accuracy"] = chosen.pop("target")
    rest = {
        key: value
        for key, value in record.items()
        if key.startswith("importance") or key in ("floor", "seconds", *ORIGIN)
    }
    return rest | chosen


def _collected(name):
    """A collected file, empty where there is none; a damaged one is named with its line."""
    file = paths.DATA / name
    if not file.exists():
        return pd.DataFrame({"id": pd.Series(dtype=str)})
    lines = file.read_text().splitlines()
    width = lines[0].count(",") if lines else 0
    for number, line in enumerate(lines, 1):
        if line.count(",") != width or (number == 1 and not line.startswith("id,")):
            raise UserError(
                f"{file}, line {number}, is damaged: {json.dumps(line[:60])}. Restore it with git checkout."
            )
    return pd.read_csv(file, keep_default_na=True)
