"""The panels of the benchmark: ratios as dots on log axes, the profile of a step, and how costs grow."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, NullFormatter

GREY, BLUE = "#BBBBBB", "#0072B2"
PARTS = ["#BBBBBB", "#56B4E9", "#0072B2", "#E69F00", "#F0E442", "#CC79A7", "#D55E00", "#009E73"]
LINES = {  # of the growth: mark and colour
    "step, seconds": ("o-", BLUE),
    "mask alone, seconds": ("^-", "#009E73"),
    "step, MB": ("s--", "#D55E00"),
    "epoch, seconds": ("o-", BLUE),
    "epoch, MB": ("s--", "#D55E00"),
}
STEP_GOALS = {  # at most, over the encoder alone and over the released way
    "ConvNet, 128 + 128 at 32": (1.25, 1 / 3),
    "ConvNet, 128 + 128 at 32, not pinned": (1.25, 1 / 3),
    "ResNet-18, 16 + 16 at 224": (1.1, 1 / 2),
}
KEYS = ["group", "what", "base", "way"]


def summary(measured: pd.DataFrame) -> pd.DataFrame:
    """Median and quartiles of each cost (group, what, base, way, value), and its ratio to the base of its group."""
    table = measured.groupby(KEYS, sort=False)["value"].quantile([0.25, 0.5, 0.75]).unstack().reset_index()
    table.columns = [*KEYS, "low", "median", "high"]
    base = table[table["way"] == table["base"]].set_index(["group", "what"])["median"].rename("of")
    table = table.join(base, on=["group", "what"])
    return table.assign(ratio=table["median"] / table.pop("of"))


def lines_of(part: pd.DataFrame) -> list[tuple[str, pd.Series | None]]:
    """The lines of a panel: each cost under its name, below a headline where the panel has several."""
    lines = []
    for what, some in part.groupby("what", sort=False):
        lines += [(what, None)] if part["what"].nunique() > 1 else []
        lines += [(row["way"], row) for _, row in some.iterrows()]
    return lines


def ratios(ax: Axes, part: pd.DataFrame, unit: str = "ms") -> None:
    """A line per cost: its ratio to the base as a dot on a log axis, in numbers at the right, outside of the axes."""
    lines = lines_of(part)
    for i, (_, row) in enumerate(lines):
        if row is None:
            continue
        color = GREY if row["way"] == row["base"] else BLUE
        ax.plot([1, row["ratio"]], [i, i], color=color, linewidth=2.5, solid_capstyle="butt")
        ax.plot(row["ratio"], i, "o", color=color, markersize=4)
        amount = row["median"] if unit == "MB" else 1000 * row["median"]
        text = f"{row['ratio']:.2g} × ({amount:,.{amount < 10:d}f} {unit})"
        ax.text(1.02, i, text, transform=ax.get_yaxis_transform(), va="center", fontsize=7)
    ax.axvline(1, color="#777777", linewidth=0.8)
    ax.set_xscale("log")
    ax.set_xlim(min(0.5, 0.8 * part["ratio"].min()), max(2, 1.25 * part["ratio"].max()))
    _in_ratios(ax.xaxis)
    ax.set_yticks(range(len(lines)), [name for name, _ in lines], fontsize=7)
    for label, (_, row) in zip(ax.get_yticklabels(), lines, strict=True):
        label.set_fontweight("bold" if row is None else "normal")
    ax.set_ylim(len(lines) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelsize=7)


def _in_ratios(axis: Axis) -> None:
    """Label a log axis as 0.5 ×, 1 ×, 2 ×; over many decades only the decades."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,)))
    axis.set_major_formatter("{x:g} ×")
    axis.set_minor_formatter(NullFormatter())


def profile(ax: Axes, part: pd.DataFrame) -> None:
    """A stacked bar for each `what`: the parts of a step in units of its base, which comes first."""
    names = sorted(part["way"].unique(), key=lambda way: way != part["base"].iloc[0])
    bars = part.pivot(index="what", columns="way", values="ratio").loc[part["what"].unique(), names]
    left = pd.Series(0.0, bars.index)
    for name, color in zip(names, PARTS, strict=True):
        ax.barh(bars.index, bars[name], left=left, color=color, label=name, height=0.6)
        for i, ratio in enumerate(bars[name]):
            if ratio > 0.045:
                ax.text(left.iloc[i] + ratio / 2, i, f"{ratio:.2f}", ha="center", va="center", fontsize=6.5)
        left += bars[name]
    for i, total in enumerate(left):
        ax.text(1.02, i, f"{total:.2f} × in all", transform=ax.get_yaxis_transform(), va="center", fontsize=7)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.02 * left.max())
    ax.tick_params(labelsize=7)
    ax.tick_params(axis="y", length=0)
    ax.legend(fontsize=6.5, ncols=4, loc="upper left", bbox_to_anchor=(-0.2, -0.28), handlelength=1, columnspacing=1)


def growth(ax: Axes, table: pd.DataFrame, exponents: pd.Series, varied: str) -> None:
    """Costs against what is varied, on log axes, each over its first; the fitted exponents in the legend."""
    part = table[table["varied"] == varied]
    for what, some in part.groupby("what", sort=False):
        look, color = LINES[what]
        name = f"{what.replace('seconds', 'time').replace('MB', 'memory')}: exponent {exponents[what, varied]:.2f}"
        ax.plot(some["x"], some["value"] / some["value"].iloc[0], look, color=color, label=name, markersize=4)
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(part["x"].unique(), [f"{x:g}" for x in part["x"].unique()])
    ax.set_xticks([], minor=True)
    _in_ratios(ax.yaxis)
    ax.tick_params(labelsize=7)
    ax.legend(fontsize=6.5, loc="upper left")


def goals(table: pd.DataFrame, exponents: pd.Series) -> list[tuple[str, float, float]]:
    """What should hold of the summary and of the exponents: a cost, as measured, and at most."""
    ratio = table.set_index(["group", "what", "way"])["ratio"].sort_index()
    eq16, fused = "CIRL, draws of Eq. 16", "Eq. 16, fused"
    found = []
    for what, (over_encoder, over_released) in STEP_GOALS.items():
        if what not in ratio["step"]:
            continue
        step = ratio["step", what]
        found.append((f"a CIRL step over the encoder alone, {what}", step[eq16], over_encoder))
        if "released way" in step:
            found.append(
                (f"a CIRL step over the released way, {what}", step[eq16] / step["released way"], over_released)
            )
    for what, value in ratio["mask"].xs(fused, level="way").items():
        found.append((f"the fused mask over k sequential draws, {what}", value, 1 / 5))
    memory = table[table["group"] == "memory of the mask"].set_index("way")["median"]
    found += [(f"memory of {way}, MB", value, 300) for way, value in memory.items() if "fused" in way]
    for what, value in ratio["amplitude mix"].xs("batched", level="way").items():
        found.append((f"the batched amplitude mix over numpy, {what} pixels", value, 1 / 3 if "224" in what else 1 / 5))
    methods = ratio["method"].droplevel("what")
    found.append((f"the dearest method's step over DeepAll's, {methods.idxmax()}", methods.max(), 12))
    for (what, varied), value in exponents.items():
        most = 0 if what == "epoch, MB" else 2 if varied == "N" else 1
        found.append((f"exponent of {what.split(',')[0]} in {varied}, {what.split(', ')[1]}", value, most + 0.1))
    return found


def beyond_the_encoder(table: pd.DataFrame) -> str:
    """What a CIRL step adds to its encoder, part by part, the dearest first."""
    parts = table[table["group"] == "profile"].set_index(["way", "what"])["ratio"].unstack().drop("encoder")
    parts = parts.sort_values("pinned", ascending=False)
    words = [f"{way} {row['pinned']:.2f} ({row['not pinned']:.2f})" for way, row in parts.iterrows()]
    total = parts.sum()
    return (
        "What a CIRL step adds to its encoder, in units of the encoder's time, with the pinned instruction sets (with "
        f"those that the libraries choose): {', '.join(words)}; in all {total['pinned']:.2f} "
        f"({total['not pinned']:.2f})."
    )
