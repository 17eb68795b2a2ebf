"""Choose any runs by id or pattern, and group them into rows of a table."""

from dataclasses import fields
from fnmatch import fnmatchcase

from cirl import paths
from cirl.errors import UserError
from cirl.methods.table import LABELS
from cirl.run.config import Run
from cirl.run.folder import SavedRun, saved_run
from cirl.run.parse import split
from cirl.study.records import FIELDS, read_collected

TEXT = [field.name for field in fields(Run) if field.type is str]


def choose(patterns: str, weights: bool = False) -> list[Run]:
    """The finished runs that match ids or patterns such as `tiny-*-s0`, separated by spaces; `latest` is the newest.

    Runs are looked for in `data/runs` and, unless their weights are needed, in the collected results."""
    files = sorted(paths.RUNS.glob("*/metrics.json"), key=lambda file: file.stat().st_mtime_ns)
    here = [file.parent.name for file in files if not weights or (file.parent / "model.pt").exists()]
    collected = {} if weights else _collected()
    chosen: list[str] = []
    for pattern in patterns.split():
        names = [*here, *(name for name in collected if name not in here)]
        found = here[-1:] if pattern == "latest" else sorted(name for name in names if fnmatchcase(name, pattern))
        if not found:
            known = ", ".join(names[-3:]) or "none"
            raise UserError(f"runs={pattern!r} matches no finished run; {paths.RUNS} has {len(names)}: {known}.")
        chosen += found
    if not chosen:
        raise UserError("runs is empty: name run ids or patterns, separated by spaces.")
    return [saved_run(paths.RUNS / name) if name in here else collected[name] for name in dict.fromkeys(chosen)]


def by_row(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs that differ in target and seed alone share a row, named by its method and by what not all rows have."""
    rows: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        parts = run.id.split("-")
        if len(parts) < 5 or split(parts[2])[0] not in LABELS:
            raise UserError(f"{run.id!r} is not the id of a run of this project.")
        dataset, backbone, method, _, _, *departures = parts
        rows.setdefault((method, dataset, backbone, *departures), []).append(run)
    common = set.intersection(*(set(key[1:]) for key in rows))
    return {_label(key, common): rows[key] for key in rows}


def _label(key, common):
    name, changes = split(key[0])
    values = "".join(f"+{word}={value}" for word, value in changes.items())
    return ", ".join([LABELS[name] + values, *(word for word in key[1:] if word not in common)])


def _collected():
    """The runs of the collected results, by id."""
    text = dict.fromkeys(("id", *TEXT), str)
    known = ("id", *FIELDS)
    table = read_collected("results.csv", usecols=lambda name: name in known, dtype=text, keep_default_na=False)
    return {record["id"]: SavedRun(record, record["id"]) for record in table.to_dict("records")}
