"""Where a run's files are, and whether a config.json matches a run. Does not import torch."""

import os
from dataclasses import asdict, fields
from pathlib import Path

from cirl import paths
from cirl.errors import UserError
from cirl.run.config import SETTINGS, Run, Settings, settings
from cirl.run.files import read_json

RULES = ("source_val", "last", "oracle")  # which epoch is reported: best on source validation, last, best on the target
LATER = ("precision", "compile")  # fields that older versions did not record; their runs have the defaults


def folder(run: Run) -> Path:
    """The folder of a run."""
    return paths.RUNS / run.id


def is_finished(run: Run) -> bool:
    """Whether the run's last file exists; False if the folder may not be read."""
    return os.path.exists(folder(run) / "metrics.json")


def has_weights(run: Run) -> bool:
    """Whether the run is finished and its weights are in its folder."""
    return is_finished(run) and (folder(run) / "model.pt").exists()


def other_fields(run: Run, config: dict) -> list[str]:
    """The fields of a run whose value in a config.json differs. A field that the config lacks counts as equal."""
    return [name for name, value in asdict(run).items() if config.get(name, value) != value]


class SavedRun(Run):
    """A run as recorded in its config.json. Nothing is resolved or looked up, so its data set may be gone."""

    _id: str
    _domains: tuple[str, ...]

    def __init__(self, config: dict, id: str):
        for field in fields(Run):
            object.__setattr__(self, field.name, config.get(field.name, field.default))
        object.__setattr__(self, "_id", id)
        object.__setattr__(self, "_domains", tuple(config.get("domains", ())))

    @property
    def id(self) -> str:
        return self._id

    @property
    def settings(self) -> Settings:
        """Those of the benchmark, or of a folder that has the recorded domains."""
        return settings(self.dataset) if self.dataset in SETTINGS or not self._domains else Settings(self._domains)


def locate(place: str | Path) -> Path:
    """The folder of a run that is named by its path, by the path of its model.pt, or by its id."""
    path = Path(place).expanduser()
    path = path.parent if path.name == "model.pt" else path
    for folder in (path, paths.RUNS / path):
        if os.path.isfile(folder / "config.json"):  # False also if the folder may not be read
            return folder
    raise UserError(
        f"{str(place)!r} is not a run: there is no config.json in {path}, and no run with this id in {paths.RUNS}."
    )


def saved_run(place: Path) -> SavedRun:
    """The run of a folder, which may have been copied from another machine."""
    config = read_json(place / "config.json")
    lacks = [field.name for field in fields(Run) if field.name not in (*config, *LATER)]
    if lacks:
        raise UserError(f"{place / 'config.json'} lacks {', '.join(lacks)}; it is from another version of the code.")
    metrics, name = place / "metrics.json", place.resolve().name
    return SavedRun(config, read_json(metrics).get("id", name) if metrics.exists() else name)
