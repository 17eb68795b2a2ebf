"""What Snakemake may skip: a file `trained` marks the finished runs of the present code, and the records are collected.

A run's folder decides, whoever trained it: Snakemake, papermill alone, or a process that outlived its driver.
"""

import csv
import os
from collections.abc import Iterable
from contextlib import suppress

from cirl import paths
from cirl.errors import UserError
from cirl.run.config import Run
from cirl.run.digest import training_digest
from cirl.run.files import read_json
from cirl.run.folder import folder, is_finished


def mark(run: Run) -> bool:
    """Mark a run that is finished, and no other; whether it is."""
    if os.path.exists(folder(run)) and not os.path.isdir(folder(run)):
        raise UserError(f"{folder(run)} is not a folder; move it away.")
    file, finished = folder(run) / "trained", is_finished(run) and not _is_of_other_code(run)
    with suppress(OSError):  # a folder that may not be written
        if not finished:
            file.unlink(missing_ok=True)
        elif not file.exists():
            file.touch()
            os.utime(file, ns=((folder(run) / "metrics.json").stat().st_mtime_ns,) * 2)
    return finished


def evidence(run: Run) -> str:
    """The file by which Snakemake sees that a run is trained: its mark, or metrics.json if no mark can be written."""
    place = folder(run)
    markable = (place / "trained").exists() or not is_finished(run) or os.access(place, os.W_OK)
    return f"data/runs/{run.id}/{'trained' if markable else 'metrics.json'}"


def _is_of_other_code(run):
    """Whether config.json names other code; if it cannot be read, the tables skip the run and say so."""
    try:
        recorded = read_json(folder(run) / "config.json").get("provenance")
    except UserError:
        return False
    return not isinstance(recorded, dict) or recorded.get("code") != training_digest(run)


def collected(name: str) -> dict[str, dict[str, str]]:
    """The rows of a collected file, the last of each run by its id; none if it is missing or damaged."""
    try:
        with open(paths.DATA / name, encoding="utf-8", newline="") as rows:
            return {row["id"]: row for row in csv.DictReader(rows) if row.get("id")}
    except (OSError, ValueError, csv.Error):
        return {}


def without_record(runs: Iterable[Run]) -> list[Run]:
    """The runs that the collected files lack, or have from other code."""
    results, history = collected("results.csv"), collected("history.csv")
    return [run for run in runs if run.id not in history or results.get(run.id, {}).get("code") != training_digest(run)]
