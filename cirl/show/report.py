"""How results are shown: one style, one colour per method, every item saved with its numbers, caption and study."""

import io
import re
from collections.abc import Container

import matplotlib
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import stdtrit

from cirl import paths
from cirl.data.benchmarks import NOTES
from cirl.errors import refuse
from cirl.run.config import SETTINGS, Run
from cirl.run.files import write
from cirl.study import studies
from cirl.study.records import coverage

COLORS = {  # fixed, colour-blind safe (Okabe and Ito); methods that no curve shows share one
    **{"DeepAll": "#777777", "Mix": "#009E73", "FACT": "#0072B2", "MatchDG": "#CC79A7", "CIRL": "#D55E00"},
    **{"others": "#56B4E9", "paper": "#BBBBBB"},
}
FINDING = "What we found: "
PARTS = {"plain": "photo", "photo": "art_painting", "street": "sketch", "print": "cartoon"}  # of tiny for PACS
_ALL_DOMAINS = {domain for known in SETTINGS.values() for domain in known.domains}


def style() -> None:
    """The look of every figure."""
    matplotlib.style.use([f"seaborn-v0_8-{name}" for name in ("ticks", "deep", "notebook")])
    matplotlib.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.dpi": 150,
            "savefig.bbox": "tight",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "image.interpolation": "nearest",
            "pdf.fonttype": 42,
        }
    )


def color(row: str) -> str:
    """The colour of the method that a row is of; variants and recipes are CIRL's."""
    name = re.split(r"[,(]", row)[0].strip()
    own = "CIRL" if name.startswith(("Variant", "released:", "paper:")) else "others"
    return COLORS.get(name, COLORS[own])


def dots(ax: Axes, table: pd.DataFrame, marks: str = "oD^sv", measured: Container[str] = ()) -> None:
    """A line per row, a mark per column, in the colour of the row's method.

    A row without numbers is said to be missing, or undefined where it was measured."""
    for column, mark in zip(table, marks, strict=False):
        look = dict(marker=mark, s=36, zorder=3, edgecolors="white", linewidths=0.5)
        ax.scatter(table[column].astype(float), range(len(table)), c=[color(row) for row in table.index], **look)
        ax.scatter([], [], c="#444444", label=column, **look)
    for place in np.flatnonzero(table.isna().all(axis=1)):
        word = "undefined" if table.index[place] in measured else "missing"
        ax.text(0.03, place, word, transform=ax.get_yaxis_transform(), fontsize=8, va="center", color="#888888")
    ax.set_yticks(range(len(table)), table.index)
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.grid(axis="y", color="#eeeeee")


def title(stem: str) -> str:
    """`table02` is Table 2, `figure5a` Figure 5a; others are called by their own words."""
    for kind in ("table", "figure"):
        if stem.startswith(kind) and stem.removeprefix(kind)[:1].isdigit():
            return f"{kind.capitalize()} {stem.removeprefix(kind).lstrip('0')}"
    return stem.replace("audit_", "audit: ").replace("_", " ").capitalize()


def paper_table(number: int) -> pd.DataFrame:
    """A table of the paper as published, laid out like the page."""
    file = paths.PAPER / f"table{number:02d}.csv"
    if not file.exists():
        raise refuse("table", number, "the paper's Tables 1 to 14")
    return pd.read_csv(file)


def summary(runs: pd.DataFrame, targets: list[str], value: str = "accuracy") -> pd.DataFrame:
    """For each row, each target and their average: mean, std, 95 % confidence interval and n over the seeds."""
    if runs.empty:
        return pd.DataFrame(columns=["row", "column", "mean", "std", "low", "high", "n"])
    wide = runs.pivot_table(index=["row", "seed"], columns="target", values=value, sort=False).reindex(columns=targets)
    wide["avg"] = wide.mean(axis=1, skipna=False)  # seed by seed, where every target is there
    long = wide.melt(ignore_index=False, var_name="column", value_name=value).dropna().reset_index()
    out = long.groupby(["row", "column"], sort=False)[value].agg(["mean", "std", "count"]).reset_index()
    out = out.rename(columns={"count": "n"})
    half = stdtrit((out["n"] - 1).clip(lower=1), 0.975) * out["std"] / np.sqrt(out["n"])
    return out.assign(low=out["mean"] - half, high=out["mean"] + half)


def columns_of(paper: pd.DataFrame, runs: list[Run]) -> dict[str, str]:
    """Our targets, and the column of the paper's table that each stands for (`PARTS`, or else by position)."""
    domains = [column for column in paper if column in _ALL_DOMAINS]
    ours = runs[0].settings.domains
    parts = {domain: domain for domain in ours} if set(ours) == set(domains) else dict(zip(ours, domains, strict=True))
    if runs[0].dataset == "tiny" and set(domains) == set(PARTS.values()):
        parts = PARTS
    return {target: parts[target] for target in dict.fromkeys(run.target for run in runs)} | {"avg": "avg"}


def compare(ours: pd.DataFrame, paper: pd.DataFrame, rows: list[str], columns: dict[str, str]) -> pd.DataFrame:
    """Ours | paper | difference, one line per cell of the page; no difference is taken between different data.

    ours: a `summary`. paper: its rows as index. rows: all rows in order. columns: of `columns_of`."""
    domains = [column for column in columns.values() if column != "avg"]
    if len(domains) < sum(column in _ALL_DOMAINS for column in paper):  # its average over the columns that we have
        paper = paper.assign(avg=paper[domains].mean(axis=1, skipna=False))
    cells = pd.DataFrame([(row, column) for row in rows for column in columns], columns=["row", "column"])
    table = cells.merge(ours, "left", ["row", "column"])
    published = paper.reindex(rows)
    for name, suffix in (("paper", ""), ("paper_std", "_std")):
        long = {(r, c): published.get(columns[c] + suffix, {}).get(r, np.nan) for r in rows for c in columns}
        table[name] = [long[cell] for cell in zip(table["row"], table["column"], strict=True)]
    same = all(ours == theirs for ours, theirs in columns.items())
    return table.assign(difference=table["mean"] - table["paper"] if same else np.nan)


def markdown(table: pd.DataFrame, first: str, columns: dict[str, str], digits: int = 1) -> str:
    """The page: ours ± std (paper's) per cell; the average with its interval, n, the paper's and the difference."""
    best = table.groupby("column")["mean"].max()
    named = [ours if ours == theirs else f"{ours} (paper: {theirs})" for ours, theirs in columns.items()]
    lines = [[first, *named, "95 % CI", "n", "paper", "difference"]]
    for row in dict.fromkeys(table["row"]):
        cells = {cell.column: cell for cell in table[table["row"] == row].itertuples()}
        last = cells["avg"]
        shown = [_cell(cells[column], best[column], digits, column != "avg") for column in columns]
        interval = "–" if pd.isna(last.low) else f"[{last.low:.{digits}f}, {last.high:.{digits}f}]"
        tail = [_number(last.n, 0), _number(last.paper, 2), _number(last.difference, digits, "+")]
        lines.append([row, *shown, interval, *tail])
    return as_markdown(lines)


def as_markdown(lines: list[list[str]]) -> str:
    """Rows of words, the first of them the head, as a table in markdown."""
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def save(
    content: Figure | str,
    stem: str,
    study: str,
    caption: str,
    numbers: pd.DataFrame | None = None,
    runs: pd.DataFrame | None = None,
    claims: dict[str, bool | None] | None = None,
    finding: str | None = None,
) -> str:
    """Write an item into `figures/<study>/`: a figure as png and pdf, a table as md, the numbers as csv.

    The md of either carries caption, study, coverage and the claims, ticked or crossed; it is returned. The finding of
    an audit, one line, is what the README quotes (`page.findings`)."""
    label, place = studies.study(study).label, paths.FIGURES / study
    if isinstance(content, Figure):
        stamp = f"study {study}" if runs is None else f"study {study}: {label}".replace("`", "")
        content.text(1, -0.01, stamp, ha="right", va="top", fontsize=7, color="#888888")
        for kind in ("png", "pdf"):
            buffer = io.BytesIO()
            dated = {"metadata": {"CreationDate": None}} if kind == "pdf" else {}
            content.savefig(buffer, format=kind, **dated)
            write(place / f"{stem}.{kind}", buffer.getvalue())
    if numbers is not None:
        write(place / f"{stem}.csv", numbers.to_csv(index=False, float_format="%.6g"))
    parts = [f"**{title(stem)}.** {caption}", f"Study `{study}`: {label}."]
    if runs is not None:
        digests = runs["data_digest"].unique() if "data_digest" in runs else []
        parts[-1] += " ".join(["", f"{coverage(runs)}.", *(NOTES[digest] for digest in digests if digest in NOTES)])
    parts += [content] if isinstance(content, str) else []
    parts += [FINDING + re.sub(r"\bnan\b", "–", finding)] if finding else []
    marks = {True: "✓", False: "✗", None: "–"}
    parts += ["\n".join(f"- {marks[holds]} {claim}" for claim, holds in claims.items())] if claims else []
    if runs is not None and runs.attrs["missing"]:
        parts.append("Missing runs: " + ", ".join(f"`{run}`" for run in runs.attrs["missing"]) + ".")
    text = "\n\n".join(parts) + "\n"
    write(place / f"{stem}.md", text)
    return text


def holds(condition: object, *needed: float) -> bool | None:
    """A claim's mark: unknown where a number that it needs is missing."""
    return None if any(pd.isna(number) for number in needed) else bool(condition)


def _number(value, digits, sign=""):
    return "–" if pd.isna(value) else f"{value:{sign}.{digits}f}"


def _cell(cell, best, digits, paper):
    ours = _number(cell.mean, digits)
    ours = f"**{ours}**" if not pd.isna(cell.mean) and cell.mean == best else ours
    ours += f" ± {cell.std:.{digits}f}" if not pd.isna(cell.std) else ""
    theirs = _number(cell.paper, 1) + (f" ± {cell.paper_std:.1f}" if not pd.isna(cell.paper_std) else "")
    return f"{ours} ({theirs})" if paper and not pd.isna(cell.paper) else ours
