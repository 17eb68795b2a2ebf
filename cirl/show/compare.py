"""Any runs side by side: seeds pooled, paired differences, and both as text."""

import pandas as pd

from cirl.errors import invalid
from cirl.show import tables


def pooled(runs: pd.DataFrame, value: str = "accuracy") -> pd.DataFrame:
    """For each row and target, and the average over the targets of a data set: mean, std, interval and n over seeds."""
    parts = [tables.summary(part, [*part["target"].unique()], value) for _, part in runs.groupby("dataset", sort=False)]
    return pd.concat(parts, ignore_index=True)


def paired(runs: pd.DataFrame, baseline: str, value: str = "accuracy") -> pd.DataFrame:
    """How far each row is above the baseline on the same targets with the same seeds: mean, 95 % interval, n pairs.

    The interval is Student's t over the pairs; a single pair has none."""
    if baseline not in set(runs["row"]):
        raise invalid("baseline", baseline, [*runs["row"].unique()])
    wide = runs.pivot_table(index=["dataset", "target", "seed"], columns="row", values=value, sort=False)
    differences = wide.drop(columns=baseline).sub(wide[baseline], axis=0)
    table = differences.agg(["mean", "std", "count"]).T.rename(columns={"count": "n"}).rename_axis("row")
    half = tables.half_width(table["std"], table["n"])
    table = table.assign(low=table["mean"] - half, high=table["mean"] + half, verdict="undecided").reset_index()
    table.loc[table["low"] > 0, "verdict"] = "above"
    table.loc[table["high"] < 0, "verdict"] = "below"
    return table.astype({"n": int})


def table_lines(table: pd.DataFrame) -> list[list[str]]:
    """A `pooled` table as lines of cells, the header first: mean ± std per target, the average, its interval, n.

    A single target has no column for the average."""
    targets = [column for column in dict.fromkeys(table["column"]) if column != "avg"]
    columns = [*targets, "avg"] if len(targets) > 1 else targets
    lines = [["", *columns, "95 % CI", "seeds"]]
    for row, part in table.groupby("row", sort=False):
        cells = part.set_index("column")
        average = cells.reindex(["avg"]).iloc[0]
        shown = [_spread(cells.loc[name]) if name in cells.index else tables.UNKNOWN for name in columns]
        lines.append([row, *shown, tables.interval(average["low"], average["high"]), tables.number(average["n"], 0)])
    return lines


def difference_lines(table: pd.DataFrame, baseline: str) -> list[list[str]]:
    """`paired` differences as lines of cells."""
    head = ["", f"above {baseline}", "95 % CI", "pairs", "verdict"]
    return [head] + [
        [row.row, f"{row.mean:+.1f}", tables.interval(row.low, row.high, sign="+"), str(row.n), row.verdict]
        for row in table.sort_values("mean", ascending=False).itertuples()
        if row.n
    ]


def _spread(cell):
    return f"{cell['mean']:.1f}" + ("" if pd.isna(cell["std"]) else f" ± {cell['std']:.1f}")
