"""Tables: ours beside the published numbers, as lines of cells, markdown and LaTeX."""

import re

import numpy as np
import pandas as pd

from cirl import paths
from cirl.data.benchmarks import DATASETS
from cirl.errors import invalid
from cirl.run.config import SETTINGS, Run

UNKNOWN = "–"
_SIGNS = str.maketrans(  # in LaTeX
    {"±": r"$\pm$", UNKNOWN: "--", "×": r"$\times$", "≤": r"$\le$", "κ": r"$\kappa$", "τ": r"$\tau$"}
    | {"✓": r"\checkmark{}", "✗": r"$\times$", "†": r"$\dagger$"}
)
_ALL_DOMAINS = {domain for known in SETTINGS.values() for domain in known.domains}


def published(number: int) -> pd.DataFrame:
    """A table of the paper, laid out like the page."""
    file = paths.PAPER / f"table{number:02d}.csv"
    if not file.exists():
        raise invalid("table", number, "the paper's Tables 1 to 14")
    return pd.read_csv(file)


def half_width(std: float | pd.Series, n: int | pd.Series) -> float | pd.Series:
    """Half of the 95 % confidence interval (Student's t) of a mean of n values; NaN for a single value."""
    from scipy.special import stdtrit  # late: the line of progress before each run does not need it

    return stdtrit(np.maximum(n - 1, 1), 0.975) * std / np.sqrt(n)


def summary(runs: pd.DataFrame, targets: list[str], value: str = "accuracy") -> pd.DataFrame:
    """For each row, each target and their average: mean, std, 95 % confidence interval and n over the seeds."""
    if runs.empty:
        return pd.DataFrame(columns=["row", "column", "mean", "std", "low", "high", "n"])
    wide = runs.pivot_table(index=["row", "seed"], columns="target", values=value, sort=False).reindex(columns=targets)
    wide["avg"] = wide.mean(axis=1, skipna=False)  # seed by seed, only if every target has a value
    long = wide.melt(ignore_index=False, var_name="column", value_name=value).dropna().reset_index()
    out = long.groupby(["row", "column"], sort=False)[value].agg(["mean", "std", "count"]).reset_index()
    out = out.rename(columns={"count": "n"})
    half = half_width(out["std"], out["n"])
    return out.assign(low=out["mean"] - half, high=out["mean"] + half)


def compare(found: pd.DataFrame, paper: pd.DataFrame, rows: dict[str, list[Run]]) -> pd.DataFrame:
    """One line per cell of the page: ours (a `summary` of the records), the paper's (rows as index), the difference.

    On stand-in data only the averages stand side by side, and no difference is taken."""
    runs = [run for row in rows.values() for run in row]
    targets = list(dict.fromkeys(run.target for run in runs))
    same = {*runs[0].settings.domains} == {*_domains(paper)}
    if same and len(targets) < len(_domains(paper)):
        paper = paper.assign(avg=paper[targets].mean(axis=1, skipna=False))  # over our targets
    theirs = paper if same else paper.filter(regex="^avg")
    columns = [*targets, "avg"]
    cells = pd.MultiIndex.from_product([rows, columns], names=["row", "column"])
    table = summary(found, targets).set_index(["row", "column"]).reindex(cells).reset_index()
    for name, suffix in (("paper", ""), ("paper_std", "_std")):
        values = theirs.reindex(index=list(rows), columns=[f"{column}{suffix}" for column in columns])
        table[name] = values.to_numpy(dtype=float).ravel()
    table = table.assign(difference=table["mean"] - table["paper"] if same else np.nan)
    table.attrs["benchmark"] = None if same else _benchmark(paper)
    return table


def page(table: pd.DataFrame, first: str, digits: int = 1) -> list[list[str]]:
    """A comparison as lines of cells, the header first: ours ± std (paper's) per target, then the average's details.

    A column without any number is left out, and so is the average over a single target. On stand-in data the paper's
    average names its benchmark."""
    best = table.groupby("column")["mean"].max()
    columns = list(dict.fromkeys(table["column"]))
    kept = columns if len(columns) > 2 else columns[:1]
    theirs = "paper avg" if "avg" in kept else "paper"
    theirs = f"paper avg ({benchmark})" if (benchmark := table.attrs["benchmark"]) else theirs
    lines = [[first, *kept, "95 % CI", "n", theirs, "difference"]]
    for row in dict.fromkeys(table["row"]):
        cells = {cell.column: cell for cell in table[table["row"] == row].itertuples()}
        last = cells["avg"]
        shown = [_cell(cells[column], best[column], digits, column != "avg") for column in kept]
        spread = [interval(last.low, last.high, digits), number(last.n, 0)]
        lines.append([row, *shown, *spread, number(last.paper, 2), number(last.difference, digits, "+")])
    filled = [place for place, cells in enumerate(zip(*lines[1:], strict=True)) if set(cells) != {UNKNOWN}]
    return [[line[place] for place in filled] for line in lines]


def markdown(lines: list[list[str]]) -> str:
    """Lines of cells, the header first, as a table in markdown."""
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(str(cell).replace("|", r"\|") for cell in line) + " |" for line in lines)


def latex(lines: list[list[str]]) -> str:
    """The same as a LaTeX table (package booktabs)."""
    frame = pd.DataFrame([[_latex(cell) for cell in line] for line in lines[1:]], columns=map(_latex, lines[0]))
    return frame.to_latex(index=False, escape=False, column_format="l" + "r" * (len(lines[0]) - 1))


def number(value: float, digits: int, sign: str = "") -> str:
    """A number with `digits` decimals, or a dash if it is unknown."""
    return UNKNOWN if pd.isna(value) else f"{value:{sign}.{digits}f}"


def interval(low: float, high: float, digits: int = 1, sign: str = "") -> str:
    """The ends of an interval in brackets, or a dash if they are unknown."""
    return UNKNOWN if pd.isna(low) else f"[{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def _domains(paper):
    return [column for column in paper if column in _ALL_DOMAINS]


def _benchmark(paper):
    """The title of the data set that a table of the paper is about."""
    return next(data.title for name, data in DATASETS.items() if {*SETTINGS[name].domains} == {*_domains(paper)})


def _latex(cell):
    text = re.sub(r"([&%$#_{}])", r"\\\1", str(cell).replace("\\", r"\textbackslash "))
    text = re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text)
    return text.translate(_SIGNS)


def _cell(cell, best, digits, with_paper):
    ours = number(cell.mean, digits)
    ours = f"**{ours}**" if not pd.isna(cell.mean) and cell.mean == best else ours
    ours += f" ± {cell.std:.{digits}f}" if not pd.isna(cell.std) else ""
    theirs = number(cell.paper, 1) + (f" ± {cell.paper_std:.1f}" if not pd.isna(cell.paper_std) else "")
    return f"{ours} ({theirs})" if with_paper and not pd.isna(cell.paper) else ours
