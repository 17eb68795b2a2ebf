"""Where things are. Nothing is created here."""

import os
from pathlib import Path

ROOT = Path(os.environ.get("CIRL_ROOT", Path(__file__).parent.parent)).absolute()
DATA = ROOT / "data"
RAW = DATA / "raw"
CACHE = DATA / "cache"
RUNS = DATA / "runs"
PAPER = DATA / "paper"
ATTENTION = DATA / "attention"
FIGURES = ROOT / "figures"
NOTEBOOKS = ROOT / "notebooks"


def located(path: str) -> Path:
    """A path given by the user: relative to the working directory if it exists there, otherwise to the root."""
    here = Path(os.path.abspath(os.path.expanduser(path)))
    return here if here.exists() else Path(os.path.abspath(ROOT / os.path.expanduser(path)))
