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
from cirl.config import Run
from cirl.errors import UserError, reason, refuse
from cirl.files import read_json, write

RULES = ("source_val", "last", "oracle")
FIELDS = [field.name for field in fields(Run)]


def folder(run: Run) -> Path:
    """Where a run's files are."""
    return paths.RUNS / run.id


def is_finished(run: Run) -> bool:
    """Whether the run's last file is there."""
    return (folder(run) / "metrics.json").exists()


def other_fields(run: Run, config: dict) -> list[str]:
    """The fields of a run that a config.json gives otherwise."""
    return [name for name, value in asdict(run).items() if config.get(name) != value]


def pairs(rows: dict[str, list[Run]]) -> list[tuple[str, Run]]:
    """An item's runs, each with its row."""
    return [(row, run) for row, runs in rows.items() for run in runs]


def load_runs(rows: dict[str, list[Run]], rule: str = "source_val") -> pd.DataFrame:
    """One row per finished run of an item: the item's row, the run's fields, and its results under a selection rule.

    `accuracy` is that on the target domain, in per cent. `attrs` says what was expected, what is missing, and which
    folders were skipped and why; a skipped or unfinished run is read from the collected results, if they know it."""
    if rule not in RULES:
        raise refuse("rule", rule, RULES)
    collected = _collected("results.csv").set_index("id", drop=False)
    found, missing, skipped = [], [], {}
    for row, run in pairs(rows):
        record = _record(run, collected, skipped)
        if record is None:
            missing.append(run.id)
        else:
            found.append({"row": row, **asdict(run), **_under(record, rule), "rule": rule})
    table = pd.DataFrame(found, columns=None if found else ["row", *FIELDS, "accuracy", "source_val", "epoch", "rule"])
    expected = {run.id for _, run in pairs(rows)}
    table.attrs.update(expected=len(expected), missing=sorted(set(missing)), skipped=skipped)
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
    """How much of what was expected is there, and which folders were not read: `18 of 20 runs`."""
    expected, missing = table.attrs["expected"], table.attrs["missing"]
    skipped = "; ".join(f"{name}: {why}" for name, why in table.attrs.get("skipped", {}).items())
    return f"{expected - len(missing)} of {expected} runs" + f" (folders skipped: {skipped})" * bool(skipped)


def collect(runs: Iterable[Run], study: str) -> None:
    """Bring the study's finished runs into results.csv and history.csv; the rows of other runs stay as they are."""
    results, history = _collected("results.csv"), _collected("history.csv")
    done, skipped = [], {}
    new_results = []
    for run in runs:
        record = _own(run, skipped)
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


def _record(run, collected, skipped):
    """The flat results of a finished run, or None."""
    own = _own(run, skipped)
    if own is None and run.id in collected.index:
        return collected.loc[run.id].to_dict()
    return own


def _own(run, skipped):
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
        return _flat(metrics | {name: origin.get(name, "unknown") for name in ("commit", "data_digest")})
    return None


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
        if key.startswith("importance") or key in ("floor", "seconds", "commit", "data_digest")
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
