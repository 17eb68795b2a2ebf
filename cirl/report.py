"""How results are shown: one style, one colour per method, every figure saved with its numbers and its study."""

import matplotlib
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from cirl import paths
from cirl.errors import refuse

STUDIES = ("tiny", "digits", "lite", "paper")
COLORS = {"deepall": "#777777", "cirl": "#D55E00"}  # colour-blind safe (Okabe and Ito)
LABELS = {"deepall": "DeepAll", "cirl": "CIRL"}


def style() -> None:
    """The look of every figure."""
    sns.set_theme("notebook", "ticks", font_scale=0.9)
    matplotlib.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.dpi": 200,
            "savefig.bbox": "tight",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "image.interpolation": "nearest",
            "pdf.fonttype": 42,
        }
    )


def save(figure: Figure, stem: str, study: str, numbers: pd.DataFrame | None = None) -> None:
    """Write `figures/<study>/<stem>` as png and pdf, the plotted numbers as csv, and stamp the study on the figure."""
    if study not in STUDIES:
        raise refuse("study", study, STUDIES)
    place = paths.FIGURES / study
    place.mkdir(parents=True, exist_ok=True)
    figure.text(1, 0, f"study: {study}", ha="right", va="top", fontsize=7, color="#999999")
    figure.savefig(place / f"{stem}.png")
    figure.savefig(place / f"{stem}.pdf", metadata={"CreationDate": None})
    if numbers is not None:
        numbers.to_csv(place / f"{stem}.csv", index=False)
