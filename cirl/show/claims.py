"""The paper's claims, each once, and what a study's records say about them.

A claim compares two rows. It holds, or is refuted, only if the paired difference over seeds and targets has a 95 %
interval on one side of zero (or, for "does not matter", inside or outside of a margin) and both rows have converged
(`records.late_changes`); otherwise it is undecided.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd

from cirl import paths
from cirl.data.benchmarks import DATASETS
from cirl.run.config import BACKBONES
from cirl.show.tables import UNKNOWN, half_width
from cirl.study import catalog, records
from cirl.study.studies import study as study_of

_BOTH = "CIRL", "DeepAll"
POINTS = ("accuracy", "inferior half")  # values in per cent; others are shares or degrees
MARKS = {"holds": "✓", "refuted": "✗", "undecided": "?"}


@dataclass(frozen=True)
class Claim:
    """`more` exceeds `less` in `value`, or the two are within a margin of each other; several rows are averaged."""

    item: str
    text: str
    more: str | tuple[str, ...]
    less: str | tuple[str, ...]
    value: str = "accuracy"
    within: float | None = None
    control: bool = False  # not a claim of the paper but a control for one
    source: str = "records"  # where the values are: records, history (first and last epoch), drawn (the item's csv)


@dataclass(frozen=True)
class Verdict:
    """A claim in a study: the mean paired difference, its 95 % interval, the number of pairs, and the verdict."""

    claim: Claim
    items: tuple[str, ...]  # all items that rest on these runs
    mean: float
    low: float
    high: float
    n: int
    moving: tuple[str, ...] = ()  # the sides that have not converged, with their late change
    study: str = ""

    @property
    def word(self) -> str:
        """holds, refuted or undecided."""
        return "undecided" if self.moving else self.word_of_interval

    @property
    def word_of_interval(self) -> str:
        """The same, whether or not training has converged."""
        if math.isnan(self.low):
            return "undecided"
        margin = self.claim.within
        if margin is None:
            return "holds" if self.low > 0 else "refuted" if self.high < 0 else "undecided"
        inside, outside = -margin < self.low and self.high < margin, self.low > margin or self.high < -margin
        return "holds" if inside else "refuted" if outside else "undecided"

    @property
    def interval(self) -> str:
        """The mean difference with its interval."""
        if not self.n:
            return UNKNOWN
        known = [value for value in (self.mean, self.low, self.high) if not math.isnan(value)]
        digits = 1 if self.claim.value in POINTS else 3 if max(map(abs, known)) < 1 else 0
        mean, *ends = (f"{value:+.{digits}f}" for value in known)
        return f"{mean} [{', '.join(ends)}]" if ends else mean

    @property
    def note(self) -> str:
        """Which side has not converged, if that leaves undecided what the interval would decide."""
        decides = self.word_of_interval != "undecided"
        return f"; not converged: {', '.join(self.moving)}" if self.moving and decides else ""

    def __str__(self) -> str:
        return f"{MARKS[self.word]} {self.word}: {self.claim.text}: {self.interval}, n = {self.n}{self.note}"


def claims(study: str) -> list[Claim]:
    """The claims whose items a study draws, in the order of the paper."""
    builders = (_properties, _results, _attention, _ablation, _importance, _independence, _sensitivity, _sweeps)
    return [claim for build in builders for claim in build(study) if catalog.has(study, claim.item)]


def judge(claim: Claim, values: pd.DataFrame, late: dict[str, float]) -> Verdict:
    """The verdict on a claim from values with the columns row, target, seed and the claim's value.

    `late` is how far the source validation of each row still moves at the end of training."""
    sides = [_side(values, rows, claim.value) for rows in (claim.more, claim.less)]
    paired = (sides[0] - sides[1]).dropna()
    n, mean, std = len(paired), paired.mean(), paired.std()
    half = half_width(std, n) if n > 1 else float("nan")
    moving = tuple(text for rows in (claim.more, claim.less) if (text := _moving(rows, late)))
    return Verdict(claim, (claim.item,), float(mean), float(mean - half), float(mean + half), n, moving)


def _moving(rows, late):
    """A row, or several rows, with the late change if it is too large; otherwise an empty text."""
    rows = _listed(rows)
    changes = [late[row] for row in rows if row in late]
    change = sum(changes) / len(changes) if changes else 0.0
    name = rows[0] if len(rows) == 1 else f"mean of {len(rows)} rows"
    return f"{name} ({change:+.1f})" if abs(change) >= records.CONVERGED else ""


def _listed(rows):
    return [rows] if isinstance(rows, str) else list(rows)


def verdicts(study: str, item: str | None = None) -> list[Verdict]:
    """All claims of a study, or those of an item, each once: a comparison that several items share counts once."""
    merged: dict[str, Verdict] = {}
    values: dict[tuple[str, str], pd.DataFrame] = {}
    late: dict[str, dict[str, float]] = {}
    for claim in claims(study):
        if claim.text in merged:
            merged[claim.text] = replace(merged[claim.text], items=(*merged[claim.text].items, claim.item))
        elif item in (None, claim.item):
            place = claim.source, claim.item
            if place not in values:
                values[place] = _SOURCES[claim.source](claim.item, study)
                values[place].attrs.clear()  # pandas copies them at every operation
            if claim.item not in late:
                late[claim.item] = records.late_changes(records.load_history(catalog.rows(claim.item, study)))
            merged[claim.text] = replace(judge(claim, values[place], late[claim.item]), study=study)
    return list(merged.values())


def scoreboard(found: list[Verdict], named: bool = False) -> list[list[str]]:
    """Verdicts as a table: verdict, claim, difference with interval, n, where it is made (`named`: in which study)."""
    lines = [["Verdict", "Claim", "Paired difference [95 % interval]", "n", "Where"]]
    for verdict in sorted(found, key=lambda verdict: verdict.claim.control):
        where = ", ".join(catalog.ITEMS[item].title for item in verdict.items)
        where += f" ({verdict.study})" if named else ""
        text = verdict.claim.text + (" (control)" if verdict.claim.control else "")
        difference = verdict.interval + verdict.note
        lines.append([f"{MARKS[verdict.word]} {verdict.word}", text, difference, str(verdict.n), where])
    return lines


def frame(found: list[Verdict]) -> pd.DataFrame:
    """Verdicts as a table of numbers."""
    columns = ["items", "claim", "control", "difference", "low", "high", "n", "verdict"]
    lines = [(" ".join(v.items), v.claim.text, v.claim.control, v.mean, v.low, v.high, v.n, v.word) for v in found]
    return pd.DataFrame(lines, columns=columns)


def counts(found: list[Verdict]) -> str:
    """`Of the paper's 9 claims 5 hold, 1 is refuted and 3 are undecided; of these 2 for lack of runs`."""
    ours = [verdict for verdict in found if not verdict.claim.control]
    words = [verdict.word for verdict in ours]
    holds, refuted, undecided = (words.count(word) for word in MARKS)
    text = f"Of the paper's {len(ours)} claims {holds} {'holds' if holds == 1 else 'hold'}, "
    text += f"{refuted} {_are(refuted)} refuted and {undecided} {_are(undecided)} undecided"
    reasons = {
        "for lack of runs": sum(not verdict.n for verdict in ours),
        "because training has not converged": sum(bool(verdict.note) for verdict in ours),
    }
    why = [f"{count} {reason}" for reason, count in reasons.items() if count]
    return f"{text}; of these {' and '.join(why)}" if why else text


def _are(count):
    return "is" if count == 1 else "are"


def _side(values, rows, value):
    """The value of a row, or the mean over several rows (NaN if one is missing), for each target and seed."""
    rows = _listed(rows)
    if value not in values:
        return pd.Series(dtype=float)
    kept = values[values["row"].isin(rows)].astype({value: float})
    wide = kept.pivot_table(index=["target", "seed"], columns="row", values=value).reindex(columns=rows)
    return wide.mean(axis=1, skipna=False)


def _from_records(item, study):
    importance = item == "table06"
    return records.load_runs(catalog.rows(item, study), importance=importance)


def _from_history(item, study):
    """The last epoch under the row's name, and the first under `<row>, first epoch`."""
    history = records.load_history(catalog.rows(item, study))
    if history.empty:
        return history
    last = history.loc[history.groupby(["row", "id"])["epoch"].transform("max") == history["epoch"]]
    first = history.loc[history.groupby(["row", "id"])["epoch"].transform("min") == history["epoch"]]
    return pd.concat([last, first.assign(row=first["row"] + ", first epoch")])


def _from_csv(item, study):
    """The numbers that the item's notebook has measured."""
    stems = ("figure4", "figure6") if item in ("figure4", "figure6") else (item,)
    files = [paths.FIGURES / study / f"{stem}.csv" for stem in stems]
    parts = [pd.read_csv(file) for file in files if file.exists() and file.stat().st_size > 1]
    parts = [part for part in parts if {"row", "target", "seed"} <= {*part}]
    return pd.concat(parts) if parts else pd.DataFrame(columns=["row", "target", "seed"])


_SOURCES: dict[str, Callable[[str, str], pd.DataFrame]] = {
    "records": _from_records,
    "history": _from_history,
    "drawn": _from_csv,
}


def _on(item, study):
    """`on PACS (resnet18)`: which data and network an item's runs have."""
    run = catalog.expected(item, study)[0]
    name = DATASETS[run.dataset].title if run.dataset in DATASETS else run.dataset
    return f"on {name} ({run.backbone})"


def _properties(study):
    item = "audit_true_intervention"
    text = "Separate: CIRL is more invariant to a true intervention than DeepAll"
    yield Claim(item, text, *_BOTH, "do_U", source="drawn")
    text = "Independent: CIRL's dimensions depend less on each other than DeepAll's"
    yield Claim(item, text, "DeepAll", "CIRL", "distance", source="drawn")
    text = "Sufficient: CIRL's weaker half of dimensions tells the class better than DeepAll's"
    yield Claim(item, text, *_BOTH, "inferior half", source="drawn")


def _results(study):
    for item in [f"table{number:02d}" for number in catalog.TABLES if number <= 10]:
        if not catalog.has(study, item):
            continue
        where = _on(item, study)
        for rival in [row for row in ("DeepAll", "FACT", "MatchDG") if row in catalog.rows(item, study)]:
            yield Claim(item, f"CIRL is above {rival} {where}", "CIRL", rival)
        if "Mix" in catalog.rows(item, study):
            yield Claim(item, f"CIRL is above its own augmentation alone, Mix, {where}", "CIRL", "Mix", control=True)
        for row in study_of(study).more_recipes:
            yield Claim(item, f"{row} is above CIRL {where}", row, "CIRL", control=True)


def _attention(study):
    for item in ("figure4", "figure6"):  # one claim over the targets of both
        if study == "tiny":
            yield Claim(item, "CIRL attends to the object more than DeepAll", *_BOTH, "on_strokes", source="drawn")
        text = "CIRL's attention matters more to its prediction than DeepAll's"
        yield Claim(item, text, *_BOTH, "deletion", source="drawn", control=True)


def _ablation(study):
    comparisons = {
        "Factorization adds to intervention (variant 3 above 1)": ("Variant 3", "Variant 1"),
        "Intervention adds to factorization (variant 3 above 2)": ("Variant 3", "Variant 2"),
        "The mask adds to factorization (variant 4 above 2)": ("Variant 4", "Variant 2"),
        "The mask adds to both (CIRL above variant 3)": ("CIRL", "Variant 3"),
        "The intervention adds to factorization and mask (CIRL above variant 4)": ("CIRL", "Variant 4"),
    }
    for text, (more, less) in comparisons.items():
        yield Claim("table05", text, more, less)
    yield Claim("table05", "The augmentation alone, Mix, is above DeepAll", "Mix", "DeepAll", control=True)


def _importance(study):
    deepall, cirl = "DeepAll, classifier at 1x", "CIRL, classifier at 10x"
    cirl_1x = "CIRL, classifier at 1x"
    mean, std = "importance_class.mean", "importance_class.std"
    yield Claim("table06", "CIRL's dimensions are more important on average than DeepAll's", cirl, deepall, mean)
    yield Claim("table06", "CIRL's importance is more even over the dimensions than DeepAll's", deepall, cirl, std)
    text = "CIRL's importance is more even at DeepAll's learning rate of the classifier, too"
    yield Claim("table06", text, deepall, cirl_1x, std, control=True)


def _independence(study):
    for item in ("figure5a", "figure5b"):
        network = "the small network" if item == "figure5a" else "the large network"
        for text, more in (
            (f"CIRL ends with a lower independence degree than DeepAll, {network}", "DeepAll"),
            (f"CIRL's independence degree falls during training, {network}", "CIRL, first epoch"),
        ):
            yield Claim(item, text, more, "CIRL", "independence", source="history")


def _sensitivity(study):
    for item in ("figure5c", "figure5d"):
        cells = {row: runs[0] for row, runs in catalog.rows(item, study).items()}
        inside = tuple(row for row, run in cells.items() if 5 <= run.tau <= 10 and run.kappa <= 0.6)
        outside = tuple(row for row in cells if row not in inside)
        if inside and outside:
            network = "the small network" if item == "figure5c" else "the large network"
            text = f"5 ≤ τ ≤ 10 with κ ≤ 0.6 is above the rest of the grid, {network}"
            yield Claim(item, text, inside, outside)


def _sweeps(study):
    this, rows = study_of(study), catalog.rows("table07", study)
    if rows:
        own = str(BACKBONES[next(iter(rows.values()))[0].backbone])
        for other in [dim for dim in dict.fromkeys((min(rows, key=int), max(rows, key=int))) if dim != own]:
            yield Claim("table07", f"N = {other} is within 2 points of N = {own}", other, own, within=2)
    for dim in this.kappa_dims if catalog.has(study, "table08") else ():
        others = tuple(f"N = {dim}, kappa = {kappa}" for kappa in this.kappas if kappa != 0.6)
        yield Claim("table08", f"κ = 0.6 is above the other κ at N = {dim}", f"N = {dim}, kappa = 0.6", others)
    for other in ("intra", "inter"):
        yield Claim("table09", f"Random sampling is above {other}-domain sampling", "random", other)
    yield Claim("table09", "Intra- and inter-domain sampling are within 2 points", "intra", "inter", within=2)
