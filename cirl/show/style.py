"""The look of every figure: one style, pinned fonts, one colour per method."""

import logging
import re
from collections.abc import Container
from typing import Any

import matplotlib
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

COLORS = {  # fixed, colour-blind safe (Okabe and Ito); methods without a colour share one
    "DeepAll": "#777777",
    "Mix": "#009E73",
    "FACT": "#0072B2",
    "MatchDG": "#CC79A7",
    "CIRL": "#D55E00",
    "others": "#56B4E9",
    "paper": "#BBBBBB",
}


def use() -> None:
    """Make this the style of all figures that follow. The fonts are those that ship with matplotlib."""
    logging.getLogger("fontTools").setLevel(logging.ERROR)  # it warns about the dates of matplotlib's fonts
    matplotlib.style.use([f"seaborn-v0_8-{name}" for name in ("ticks", "deep", "notebook")])
    matplotlib.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.dpi": 150,
            "savefig.bbox": "tight",
            "font.family": "DejaVu Sans",
            "mathtext.fontset": "dejavusans",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "image.interpolation": "nearest",
            "pdf.fonttype": 42,
        }
    )


def color(row: str) -> str:
    """The colour of a row's method; variants and recipes have CIRL's."""
    name = re.split(r"[,(]", row)[0].strip()
    own = "CIRL" if name.startswith(("Variant", "released:", "paper:")) else "others"
    return COLORS.get(name, COLORS[own])


def dots(ax: Axes, table: pd.DataFrame, marks: str = "oD^sv", measured: Container[str] = ()) -> None:
    """A line per row, a mark per column, in the colour of the row's method.

    A row without numbers is labelled `missing`, or `undefined` if it is among the measured."""
    for column, mark in zip(table, marks, strict=False):
        look: dict[str, Any] = dict(marker=mark, s=36, zorder=3, linewidths=0.5)
        look |= {} if mark == "|" else dict(edgecolors="white")
        ax.scatter(table[column].astype(float), range(len(table)), c=[color(row) for row in table.index], **look)
        ax.scatter([], [], c="#444444", label=column, **look)
    for place in np.flatnonzero(table.isna().all(axis=1)).tolist():
        word = "undefined" if table.index[place] in measured else "missing"
        look = dict(fontsize=8, va="center", color="#888888", bbox=dict(fc="white", ec="none", pad=1), zorder=4)
        ax.text(0.03, place, word, transform=ax.get_yaxis_transform(), **look)
    ax.set_yticks(range(len(table)), table.index)
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.grid(axis="y", color="#eeeeee")
