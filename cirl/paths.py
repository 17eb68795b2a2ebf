"""Where things are. Constants only; nothing is created here."""

import os
from pathlib import Path

ROOT = Path(os.environ.get("CIRL_ROOT", Path(__file__).resolve().parent.parent))
DATA = ROOT / "data"
RAW = DATA / "raw"
CACHE = DATA / "cache"
RUNS = DATA / "runs"
PAPER = DATA / "paper"
FIGURES = ROOT / "figures"
NOTEBOOKS = ROOT / "notebooks"
