"""The figures and tables: one `Item` each, and one function that gives its rows and their runs for any study.

Rows are a dict from a row's label to its runs. A run that two items need is the same run. The Snakefile trains from
these lists, the notebooks load them, and the tests count them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

from cirl.errors import invalid
from cirl.methods.table import LABELS
from cirl.run.config import Run, settings
from cirl.run.recipe import parse_recipe
from cirl.study.studies import study

Rows = dict[str, list[Run]]
VARIANTS = {  # Table 5
    "Variant 1": dict(cint=True, cfac=False, advm=False),
    "Variant 2": dict(cint=False, cfac=True, advm=False),
    "Variant 3": dict(cint=True, cfac=True, advm=False),
    "Variant 4": dict(cint=False, cfac=True, advm=True),
    "CIRL": {},
}
SWITCHES = {  # of the audit of the recipes: choice -> its values in the paper's equations and in the released code
    "loss": ("frobenius", "released"),
    "draws": ("independent", "recursive"),
    "cross_entropy": ("sum", "mean"),
    "ramp": (0, 5),
    "warmup": (0, 6),
    "head_lr": (1, 10),
}
TABLES = (1, 2, 3, 4, 10, 11, 12, 13, 14)  # accuracy on a benchmark, method by method
TABLE_KINDS = ("md", "csv", "tex")
DRAWING_KINDS = ("md", "png", "pdf")
FIGURE_KINDS = (*DRAWING_KINDS, "csv")
WITH_TABLE = (*FIGURE_KINDS, "tex")


@dataclass(frozen=True)
class Item:
    """A figure or table: the stem of its files, its title, and what it takes to draw it."""

    stem: str
    title: str
    notebook: str
    rows: Callable[[str], "Rows"] | None = None  # of a study; None for a drawing that needs no runs
    kinds: tuple[str, ...] = FIGURE_KINDS  # the files in figures/<study>/
    dataset: str | None = None  # the paper's; on other data the item is a stand-in
    needs_weights: bool = False  # drawn from model.pt, not from records alone
    trains: bool = True  # whether `make` trains its runs; otherwise it shows those with records
    by_hand: bool = False  # drawn only if its notebook is run by hand (or by the report)


def runs_of(name: str, base: dict, targets: tuple[str, ...] | None, **changes) -> list[Run]:
    """The runs of a study over targets (None: all of the data set) and seeds."""
    targets = targets or settings(base["dataset"]).domains
    fields = [{**base, **changes, "target": target} for target in targets]
    return [Run(**each, seed=seed) for each in fields for seed in study(name).seeds]


def equations(base: dict) -> str:
    """The recipe of the paper's equations, with the bound of the gradient's norm of the data set's default.

    The paper says nothing of a bound; on `tiny` that of `paper` leaves the equations undertrained (data/search)."""
    clip = parse_recipe(settings(base["dataset"]).recipe).clip
    return f"paper+clip={clip:g}" if clip else "paper"


def sweep_of(name: str, **changes) -> list[Run]:
    """The runs of one cell of Tables 7 and 8."""
    this = study(name)
    runs = runs_of(name, this.small, this.sweep_targets, **changes)
    return [run for run in runs if run.seed in (this.sweep_seeds or this.seeds)]


def table_results(name: str, number: int) -> Rows:
    """Tables 1-4 and 10, and with error bars 11-14: every method, and CIRL under both recipes."""
    this = study(name)
    number = number - 10 if number > 10 else number
    base = this.tables.get(number)
    if base is None:
        return {}
    methods = (*(this.large_methods if number == 3 else this.methods), *this.rivals.get(number, ()))
    rows = {LABELS[method]: runs_of(name, base, None, method=method) for method in methods}
    if number in this.both_recipes:
        rows["CIRL (paper's equations)"] = runs_of(name, base, None, method="cirl", recipe=equations(base))
    recipes = this.more_recipes.items()
    return rows | {row: runs_of(name, base, None, method="cirl", recipe=recipe) for row, recipe in recipes}


def table5(name: str) -> Rows:
    """The ablation, with its baselines: DeepAll, and the augmentation alone."""
    this = study(name)
    below = {LABELS[method]: runs_of(name, this.small, this.targets, method=method) for method in ("deepall", "mix")}
    return below | {row: runs_of(name, this.small, this.targets, **switches) for row, switches in VARIANTS.items()}


def table6(name: str) -> Rows:
    """Representation importance, with the learning rate of the classifier as a control."""
    this, rows = study(name), {}
    for method in (method for method in ("deepall", "fact", "matchdg", "cirl") if method in this.methods):
        for rate in (1, 10) if method in ("deepall", "cirl") else (1,):
            recipe = Run(**this.small, target=this.task, method=method).recipe + f"+head_lr={rate}"
            rows[f"{LABELS[method]}, classifier at {rate}x"] = runs_of(
                name, this.small, (this.task,), method=method, recipe=recipe
            )
    return rows


def table7(name: str) -> Rows:
    """Feature dimension."""
    return {f"{dim}": sweep_of(name, dim=dim) for dim in study(name).dims}


def table8(name: str) -> Rows:
    """kappa at two feature dimensions."""
    this = study(name)
    grid = product(this.kappa_dims, this.kappas)
    return {f"N = {dim}, kappa = {kappa}": sweep_of(name, dim=dim, kappa=kappa) for dim, kappa in grid}


def table9(name: str) -> Rows:
    """Sampling strategy of the amplitude mix."""
    this, strategies = study(name), ("intra", "inter", "random")
    return {each: runs_of(name, this.small, this.sweep_targets, sampling=each) for each in strategies}


def figure3(name: str) -> Rows:
    """The framework, drawn with the weights of a run on the embedded data in every study."""
    return {"CIRL": [Run("tiny", "street")]}


def curves_targets(name: str) -> Rows:
    """The main methods, DeepAll, Mix and CIRL, on every target, for the training curves of each target."""
    return {LABELS[each]: runs_of(name, study(name).small, None, method=each) for each in ("deepall", "mix", "cirl")}


def figure4_figure6(name: str) -> Rows:
    """Grad-CAM of the main methods, every target, the first seed."""
    first = study(name).seeds[0]
    return {row: [run for run in runs if run.seed == first] for row, runs in curves_targets(name).items()}


def figure5ab(name: str, large: bool = False) -> Rows:
    """Independence degree per epoch."""
    this = study(name)
    base, methods = (this.large, this.large_methods) if large else (this.small, this.methods)
    return {LABELS[method]: runs_of(name, base, (this.task,), method=method) for method in methods if base}


def methods(name: str) -> Rows:
    """Beyond the paper: all methods in one harness, on the embedded data."""
    if name != "tiny":
        return {}
    return {LABELS[method]: runs_of(name, study(name).small, None, method=method) for method in LABELS}


def figure5cd(name: str, large: bool = False) -> Rows:
    """Sensitivity to tau and kappa."""
    this = study(name)
    base, seeds = this.large if large else this.small, this.sweep_seeds or this.seeds
    grid = product(this.taus, this.kappas)
    rows = {f"tau = {t}, kappa = {k}": runs_of(name, base, (this.task,), tau=t, kappa=k) for t, k in grid if base}
    return {row: [run for run in runs if run.seed in seeds] for row, runs in rows.items()}


def audit_true_intervention(name: str) -> Rows:
    """Where the factors are known: the main methods and the variants of Table 5; no additional runs."""
    if name != "tiny":
        return {}
    this = study(name)
    rows = {LABELS[method]: runs_of(name, this.small, this.targets, method=method) for method in this.methods}
    rows["CIRL (paper's equations)"] = runs_of(name, this.small, this.targets, recipe=equations(this.small))
    return rows | {row: runs for row, runs in table5(name).items() if row.startswith("Variant")}


def audit_recipe(name: str) -> Rows:
    """The two recipes, and each with one choice changed to the other's."""
    this, recipes = study(name), {}
    released = Run(**this.small, target=this.task).recipe
    for end, base in {"released": released, "paper": equations(this.small)}.items():
        recipes[f"{end}: as it is"] = base
        for choice, values in SWITCHES.items():
            other = next(value for value in values if value != getattr(parse_recipe(base), choice))
            recipes[f"{end}: {choice}={other}"] = f"{base}+{choice}={other}"
    return {row: runs_of(name, this.small, (this.task,), recipe=recipe) for row, recipe in recipes.items()}


def audit_selection(name: str) -> Rows:
    """Every method and target of a study's main table; no additional runs."""
    this = study(name)
    number = next(number for number, base in this.tables.items() if base == this.small)  # the main table
    return methods(name) | table_results(name, number)


def audit_independence(name: str) -> Rows:
    """The runs of Figure 5a, and those of the paper's equations if the study has them."""
    task = study(name).task
    rows = {row: [run for run in runs if run.target == task] for row, runs in audit_selection(name).items()}
    return figure5ab(name) | {row: runs for row, runs in rows.items() if "equations" in row}


def audit_tau(name: str) -> Rows:
    """The weight of the printed Eq. 10: the paper's equations over a wide range of tau, one target and seed."""
    this = study(name)
    fields = dict(this.small, target=this.task, recipe=equations(this.small), seed=this.seeds[0])
    return {f"tau = {tau:g}": [Run(**fields, tau=tau)] for tau in this.audit_taus}


def curves(name: str) -> Rows:
    """Every method of the main table (on the embedded data: every method), for the training curves."""
    return {row: runs for row, runs in audit_selection(name).items() if row in LABELS.values()}


def _result_table(number: int) -> Item:
    benchmark = {1: "digits_dg", 2: "pacs", 3: "pacs", 4: "officehome", 10: "minidomainnet"}
    dataset = benchmark[number - 10 if number > 10 else number]
    rows = partial(table_results, number=number)
    return Item(f"table{number:02d}", f"Table {number}", "table_results", rows, TABLE_KINDS, dataset)


def _pacs(stem: str, title: str, notebook: str, rows: Callable, kinds=FIGURE_KINDS, **more) -> Item:
    return Item(stem, title, notebook, rows, kinds, "pacs", **more)


_SCHEMATICS = "figure1_figure2_figure3_schematics"
_TRUE, _ATTENTION = "audit_true_intervention", "figure4_figure6_gradcam"
_LIST = (  # in the order of the report: the paper's figures and tables, beyond the paper, audits, tour
    Item("figure1", "Figure 1", _SCHEMATICS, kinds=DRAWING_KINDS),
    Item("figure2", "Figure 2", _SCHEMATICS, kinds=DRAWING_KINDS),
    Item("figure3", "Figure 3", _SCHEMATICS, figure3, DRAWING_KINDS, needs_weights=True),
    *(_result_table(number) for number in (1, 2, 3, 4)),
    _pacs("figure4", "Figure 4", _ATTENTION, figure4_figure6, WITH_TABLE, needs_weights=True),
    _pacs("table05", "Table 5", "table5_ablation", table5, TABLE_KINDS),
    _pacs("table06", "Table 6", "table6_importance", table6, TABLE_KINDS),
    _pacs("figure5a", "Figure 5a", "figure5ab_independence", figure5ab),
    _pacs("figure5b", "Figure 5b", "figure5ab_independence", partial(figure5ab, large=True)),
    _pacs("figure5c", "Figure 5c", "figure5cd_sensitivity", figure5cd),
    _pacs("figure5d", "Figure 5d", "figure5cd_sensitivity", partial(figure5cd, large=True)),
    _pacs("table07", "Table 7", "table7_table8_dimension", table7, TABLE_KINDS),
    _pacs("table08", "Table 8", "table7_table8_dimension", table8, TABLE_KINDS),
    _pacs("table09", "Table 9", "table9_sampling", table9, TABLE_KINDS),
    *(_result_table(number) for number in (10, 11, 12, 13, 14)),
    _pacs("figure6", "Figure 6", _ATTENTION, figure4_figure6, WITH_TABLE, needs_weights=True),
    Item("methods", "All methods in one harness", "table_methods", methods, WITH_TABLE, trains=False),
    Item("curves", "Training curves", "curves", curves, trains=False),
    Item("curves_targets", "Training curves per target", "curves", curves_targets, trains=False),
    Item(_TRUE, "Audit: true intervention", _TRUE, audit_true_intervention, needs_weights=True),
    Item("audit_recipe", "Audit: recipe", "audit_recipe", audit_recipe, needs_weights=True),
    Item("audit_rank", "Audit: rank", "audit_recipe", needs_weights=True),
    Item("audit_tau", "Audit: weight of Eq. 10", "audit_tau", audit_tau, WITH_TABLE),
    Item("audit_selection", "Audit: selection", "audit_selection", audit_selection, trains=False),
    Item("audit_importance", "Audit: importance", "audit_importance", table6, needs_weights=True),
    Item("audit_independence", "Audit: independence", "audit_independence", audit_independence, needs_weights=True),
    *(
        Item(f"tour_{word}", f"Tour: {word}", "00_tour", kinds=DRAWING_KINDS)
        for word in ("intervention", "fourier", "correlation", "masks")
    ),
    Item("benchmark", "Benchmark", "benchmark", kinds=WITH_TABLE, by_hand=True),
    Item("claims", "Scoreboard", "report", kinds=TABLE_KINDS, by_hand=True),
)
ITEMS = {item.stem: item for item in _LIST}
NOTEBOOKS = {  # notebook -> the stems of its items
    notebook: tuple(item.stem for item in _LIST if item.notebook == notebook)
    for notebook in dict.fromkeys(item.notebook for item in _LIST)
}
AUDITS = tuple(notebook for notebook in NOTEBOOKS if notebook.startswith("audit"))


def find(stem: str) -> Item:
    """The item of this stem; raises UserError if there is none."""
    if stem not in ITEMS:
        raise invalid("item", stem, sorted(ITEMS))
    return ITEMS[stem]


@cache
def rows(stem: str, name: str) -> Rows:
    """The rows of an item in a study with their runs; none for a drawing, or if the study leaves the item out."""
    item = find(stem)
    return {} if item.rows is None or _leaves_out(name, stem) else item.rows(name)


def _leaves_out(name, stem):
    this = study(name)
    return stem in this.without or (this.items is not None and stem not in this.items)


def has(name: str, stem: str) -> bool:
    """Whether a study draws an item: it is not left out, and has rows if it needs runs."""
    return not _leaves_out(name, stem) if find(stem).rows is None else bool(rows(stem, name))


def title(stem: str, name: str) -> str:
    """The title of an item in a study: `Table 2, stand-in on tiny`; `Table 3, at 96 pixels`."""
    item, runs = find(stem), expected(stem, name)
    if item.dataset is None or not runs:
        return item.title
    if runs[0].dataset != item.dataset:
        return f"{item.title}, stand-in on {runs[0].dataset}"
    size = runs[0].image_size
    return item.title if size == settings(item.dataset).image_size else f"{item.title}, at {size} pixels"


def expected(stem: str, name: str) -> list[Run]:
    """The runs of an item in a study, each once; none for a drawing."""
    return list(dict.fromkeys(run for runs in rows(stem, name).values() for run in runs))


def all_runs(name: str, with_extras: bool = False) -> list[Run]:
    """Every run of a study, each once, by stem; the extras (`trains`) only on request."""
    stems = [stem for stem in sorted(ITEMS) if with_extras or ITEMS[stem].trains]
    return list(dict.fromkeys(run for stem in stems for run in expected(stem, name)))


def core(name: str) -> list[Run]:
    """What `make` trains to check the records: the main methods on every target, the first seed."""
    return [run for runs in figure4_figure6(name).values() for run in runs]


def notebooks(
    name: str, weights: bool = True, trained: list[Run] | None = None, recorded: set[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """The notebooks of a study, each with the items that the study has.

    Without weights the notebooks that need them are left out, and so is the tour, which trains. With `trained`, only
    these runs have weights; notebooks that need others are left out. With `recorded`, only the runs of these ids have
    records; notebooks that would show no run are left out."""
    kept = {
        notebook: tuple(stem for stem in stems if has(name, stem) and not ITEMS[stem].by_hand)
        for notebook, stems in NOTEBOOKS.items()
    }
    left_out = set() if name == "tiny" and weights else {"00_tour"}
    for item in (item for item in _LIST if item.needs_weights):
        if not weights or (trained is not None and not {*expected(item.stem, name)} <= {*trained}):
            left_out.add(item.notebook)
    for notebook, stems in kept.items():
        ids = {run.id for stem in stems for run in expected(stem, name)}
        if recorded is not None and ids and not ids & recorded:
            left_out.add(notebook)
    return {notebook: stems for notebook, stems in kept.items() if stems and notebook not in left_out}
