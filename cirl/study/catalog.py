"""Which runs a figure or table needs: one function per item of the paper, the same for every study.

An item is a dict from its rows, as they are labelled, to their runs. A run that two items need is the same run.
The Snakefile trains from these lists, the notebooks expect them, and the tests count them.
"""

from itertools import product

from cirl.errors import refuse
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
    **{"loss": ("frobenius", "released"), "draws": ("independent", "recursive"), "cross_entropy": ("sum", "mean")},
    **{"ramp": (0, 5), "warmup": (0, 6), "head_lr": (1, 10)},
}


def runs_of(name: str, base: dict, targets: tuple[str, ...] | None, **changes) -> list[Run]:
    """The runs of a study over targets (None: all of the data set) and seeds."""
    targets = targets or settings(base["dataset"]).domains
    fields = [{**base, **changes, "target": target} for target in targets]
    return [Run(**each, seed=seed) for each in fields for seed in study(name).seeds]


def sweep_of(name: str, **changes) -> list[Run]:
    """The runs of one cell of Tables 7-9."""
    this = study(name)
    runs = runs_of(name, {**this.small, **this.sweep}, this.sweep_targets, **changes)
    return [run for run in runs if run.seed in (this.sweep_seeds or this.seeds)]


def has(name: str, item: str) -> bool:
    """Whether a study draws an item."""
    this = study(name)
    return this.items is None or item in this.items


def table_results(name: str, number: int) -> Rows:
    """Tables 1-4 and 10, and with error bars 11-14: every method, and CIRL under both recipes."""
    this = study(name)
    number = number - 10 if number > 10 else number
    base = this.tables.get(number)
    if base is None:
        return {}
    targets = this.large_targets if number == 3 else None
    methods = (*(this.large_methods if number == 3 else this.methods), *this.rivals.get(number, ()))
    rows = {LABELS[method]: runs_of(name, base, targets, method=method) for method in methods}
    if number in this.both_recipes:
        rows["CIRL (paper's equations)"] = runs_of(name, base, targets, method="cirl", recipe="paper")
    recipes = this.more_recipes.items()
    return rows | {row: runs_of(name, base, targets, method="cirl", recipe=recipe) for row, recipe in recipes}


def table5(name: str) -> Rows:
    """The ablation, with what stands below it: DeepAll, and the augmentation alone."""
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
    return {sampling: sweep_of(name, sampling=sampling) for sampling in ("intra", "inter", "random")}


def figure3(name: str) -> Rows:
    """The framework, drawn with the weights of a run on the embedded data in every study."""
    return {"CIRL": [Run("tiny", "street")]}


def figure4_figure6(name: str) -> Rows:
    """Grad-CAM: DeepAll against CIRL, every target, the first seed."""
    this = study(name)
    return {
        LABELS[method]: [run for run in runs_of(name, this.small, None, method=method) if run.seed == this.seeds[0]]
        for method in ("deepall", "cirl")
    }


def figure5ab(name: str, large: bool = False) -> Rows:
    """Independence degree per epoch."""
    this = study(name)
    base = this.large if large else this.small
    if base is None or not has(name, "figure5b" if large else "figure5a"):
        return {}
    methods = this.large_methods if large else this.methods
    return {LABELS[method]: runs_of(name, base, (this.task,), method=method) for method in methods}


def methods(name: str) -> Rows:
    """Beyond the paper: all methods in one harness, on the embedded data."""
    if name != "tiny":
        return {}
    return {LABELS[method]: runs_of(name, study(name).small, None, method=method) for method in LABELS}


def figure5cd(name: str, large: bool = False) -> Rows:
    """Sensitivity to tau and kappa."""
    this = study(name)
    base = this.large if large else {**this.small, **this.sweep}
    if base is None:
        return {}
    grid = product(this.large_taus, this.large_kappas) if large else product(this.taus, this.kappas)
    seeds = this.sweep_seeds or this.seeds
    rows = {f"tau = {t}, kappa = {k}": runs_of(name, base, (this.task,), tau=t, kappa=k) for t, k in grid}
    return {row: [run for run in runs if run.seed in seeds] for row, runs in rows.items()}


def audit_true_intervention(name: str) -> Rows:
    """Where the factors are known: the main methods and the variants of Table 5, no run of its own."""
    if name != "tiny":
        return {}
    this = study(name)
    rows = {LABELS[method]: runs_of(name, this.small, this.targets, method=method) for method in this.methods}
    rows["CIRL (paper's equations)"] = runs_of(name, this.small, this.targets, recipe="paper")
    return rows | {row: runs for row, runs in table5(name).items() if row.startswith("Variant")}


def audit_recipe(name: str) -> Rows:
    """The two recipes, and each with one choice changed to the other's; further seeds are extras."""
    this, recipes = study(name), {}
    for end, base in {"released": Run(**this.small, target=this.task).recipe, "paper": "paper"}.items():
        recipes[f"{end}: as it is"] = base
        for choice, values in SWITCHES.items():
            other = next(value for value in values if value != getattr(parse_recipe(base), choice))
            recipes[f"{end}: {choice}={other}"] = f"{base}+{choice}={other}"
    seeds = dict.fromkeys((*this.seeds, *this.more_seeds))
    fields = {row: {**this.small, "target": this.task, "recipe": recipe} for row, recipe in recipes.items()}
    return {row: [Run(**each, seed=seed) for seed in seeds] for row, each in fields.items()}


def audit_selection(name: str) -> Rows:
    """Every method and target of a study's main table, no run of its own."""
    this = study(name)
    number = next(number for number, base in this.tables.items() if base == this.small)  # the main table
    return methods(name) | table_results(name, number)


def audit_independence(name: str) -> Rows:
    """The runs of Figure 5a, and those of the paper's equations where the study has them."""
    task = study(name).task
    rows = {row: [run for run in runs if run.target == task] for row, runs in audit_selection(name).items()}
    return figure5ab(name) | {row: runs for row, runs in rows.items() if "equations" in row}


ITEMS = {
    **{f"table{n:02d}": (lambda name, n=n: table_results(name, n)) for n in (1, 2, 3, 4, 10, 11, 12, 13, 14)},
    **{"table05": table5, "table06": table6, "table07": table7, "table08": table8, "table09": table9},
    **{"figure3": figure3, "figure4": figure4_figure6, "figure6": figure4_figure6},
    **{"figure5a": figure5ab, "figure5b": lambda name: figure5ab(name, large=True)},
    "methods": methods,
    **{"audit_true_intervention": audit_true_intervention, "audit_recipe": audit_recipe},
    **{"audit_selection": audit_selection, "audit_importance": table6, "audit_independence": audit_independence},
    **{"figure5c": figure5cd, "figure5d": lambda name: figure5cd(name, large=True)},
}


def expected(item: str, name: str) -> list[Run]:
    """The runs of an item, each once; a schematic or a picture of the tour needs none."""
    known = [item for items in NOTEBOOKS.values() for item in items]
    if item not in known:
        raise refuse("item", item, sorted(known))
    if item not in ITEMS or not has(name, item):
        return []
    return list(dict.fromkeys(run for runs in ITEMS[item](name).values() for run in runs))


def all_runs(name: str, with_extras: bool = False) -> list[Run]:
    """Every run of a study, each once, in the order of the paper; the extras only where they are asked for."""
    items = [item for item in sorted(ITEMS) if with_extras or item not in EXTRAS]
    runs = dict.fromkeys(run for item in items for run in expected(item, name))
    return [run for run in runs if with_extras or run.seed in study(name).seeds]


EXTRAS = ("methods", "audit_selection")  # drawn from the runs that are there; trained by `make methods`
NOTEBOOKS = {  # which notebook owns which items
    "00_tour": ("tour_intervention", "tour_fourier", "tour_correlation", "tour_masks"),
    "figure1_figure2_figure3_schematics": ("figure1", "figure2", "figure3"),
    "figure4_figure6_gradcam": ("figure4", "figure6"),
    "figure5ab_independence": ("figure5a", "figure5b"),
    "figure5cd_sensitivity": ("figure5c", "figure5d"),
    "table_results": tuple(f"table{n:02d}" for n in (1, 2, 3, 4, 10, 11, 12, 13, 14)),
    "table5_ablation": ("table05",),
    "table6_importance": ("table06",),
    "table7_table8_dimension": ("table07", "table08"),
    "table9_sampling": ("table09",),
    "table_methods": ("methods",),
    "audit_true_intervention": ("audit_true_intervention",),
    "audit_recipe": ("audit_recipe", "audit_rank"),
    "audit_selection": ("audit_selection",),
    "audit_importance": ("audit_importance",),
    "audit_independence": ("audit_independence",),
}
AUDITS = tuple(notebook for notebook in NOTEBOOKS if notebook.startswith("audit"))
NEED_WEIGHTS = {"figure4_figure6_gradcam", *AUDITS} - {"audit_selection"}


def notebooks(name: str, weights: bool = True) -> dict[str, tuple[str, ...]]:
    """The notebooks of a study with those of their items that it has.

    Without weights there is no Grad-CAM and no look inside, and the tour, which trains, is left as it is."""
    left_out = set() if name == "tiny" and weights else {"00_tour"}
    left_out |= set() if weights else NEED_WEIGHTS
    kept = {
        notebook: tuple(item for item in items if has(name, item) and (item not in ITEMS or ITEMS[item](name)))
        for notebook, items in NOTEBOOKS.items()
    }
    return {notebook: items for notebook, items in kept.items() if items and notebook not in left_out}


def kinds(item: str) -> tuple[str, ...]:
    """The files of an item in `figures/<study>/`."""
    if item.startswith("table"):
        return ("md", "csv")
    has_numbers = item.startswith("audit") or (item in ITEMS and item != "figure3")
    return ("md", "png", "pdf", "csv") if has_numbers else ("md", "png", "pdf")
