"""Where a run's files are, and what its config.json says. Needs no torch."""

from dataclasses import asdict
from pathlib import Path

from cirl import paths
from cirl.run.config import Run

RULES = ("source_val", "last", "oracle")  # which epoch is reported: best on source validation, last, best on the target


def folder(run: Run) -> Path:
    """Where a run's files are."""
    return paths.RUNS / run.id


def is_finished(run: Run) -> bool:
    """Whether the run's last file is there."""
    return (folder(run) / "metrics.json").exists()


def other_fields(run: Run, config: dict) -> list[str]:
    """The fields of a run that a config.json gives otherwise."""
    return [name for name, value in asdict(run).items() if config.get(name) != value]
