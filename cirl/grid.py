"""Which runs a figure or table needs: one function per item of the paper, the same for every study.

An item is a dict from its rows, as they are labelled, to their runs. A run that two items need is the same run.
The Snakefile trains from these lists, the notebooks expect them, and the tests count them.
"""

from dataclasses import dataclass, field
from itertools import product

from cirl.config import Run, settings
from cirl.errors import refuse

Rows = dict[str, list[Run]]
LABELS = {"deepall": "DeepAll", "cirl": "CIRL"}
VARIANTS = {  # Table 5
    "Variant 1": dict(cint=True, cfac=False, advm=False),
    "Variant 2": dict(cint=False, cfac=True, advm=False),
    "Variant 3": dict(cint=True, cfac=True, advm=False),
    "Variant 4": dict(cint=False, cfac=True, advm=True),
    "CIRL": {},
}


@dataclass(frozen=True)
class Study:
    """How much of the paper is run, and on what."""

    label: str  # what every figure says
    tables: dict[int, dict]  # Tables 1-4 and 10: what is trained for them
    small: dict  # the part of PACS with ResNet-18 in Tables 5-9 and Figures 4-6
    large: dict | None  # the part of PACS with ResNet-50 in Figures 5b and 5d
    task: str  # Sketch's part in Table 6 and Figure 5
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] = ("deepall", "cirl")
    targets: tuple[str, ...] | None = None  # of Tables 5 and 9; None for all
    sweep_targets: tuple[str, ...] | None = None  # of Tables 7 and 8
    large_targets: tuple[str, ...] | None = None  # of Table 3
    sweep: dict = field(default_factory=dict)  # what makes the runs of Tables 7-9 and Figures 5c, d cheaper
    dims: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    kappa_dims: tuple[int, ...] = (512, 2048)
    kappas: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)
    taus: tuple[float, ...] = (1, 2, 3, 5, 10)
    large_kappas: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)
    large_taus: tuple[float, ...] = (1, 2, 3, 5, 10)


TINY, DIGITS, PACS = dict(dataset="tiny"), dict(dataset="digits_dg"), dict(dataset="pacs")
TINY_LARGE = dict(dataset="tiny", backbone="resnet18", dim=128, epochs=1)
LITE = dict(dataset="pacs", weights="none", image_size=64, epochs=10, lr=0.01)

STUDIES = {
    "tiny": Study(
        label="embedded data `tiny`: the ConvNet plays ResNet-18's part, a ResNet-18 from scratch ResNet-50's",
        tables={1: TINY, 2: TINY, 3: TINY_LARGE, 4: TINY, 10: TINY},
        small=TINY,
        large=TINY_LARGE,
        task="street",
        seeds=(0,),
        targets=("street", "print"),
        sweep_targets=("street",),
        large_targets=("street",),
        sweep=dict(epochs=3),
        dims=(32, 64, 128),
        kappa_dims=(32, 128),
        kappas=(0.5, 0.6, 0.9),
        taus=(1, 2, 10),
        large_kappas=(0.6, 0.9),
        large_taus=(2, 10),
    ),
    "digits": Study(
        label="Digits-DG as published, the ConvNet in the part of both ResNets",
        tables={1: DIGITS},
        small=DIGITS,
        large=None,
        task="svhn",
        dims=(128, 256, 512),
        kappa_dims=(256, 512),
    ),
    "lite": Study(
        label="PACS at 64 pixels, ResNet-18 from scratch, 10 epochs: not the paper's protocol",
        tables={2: LITE},
        small=LITE,
        large=None,
        task="sketch",
        seeds=(0,),
        sweep_targets=("sketch",),
        sweep=dict(epochs=5),
        dims=(128, 512),
        kappa_dims=(512,),
        kappas=(0.5, 0.6, 0.9),
        taus=(1, 5, 10),
    ),
    "paper": Study(
        label="everything as published, three seeds",
        tables={
            1: DIGITS,
            2: PACS,
            3: dict(dataset="pacs", backbone="resnet50"),
            4: dict(dataset="officehome"),
            10: dict(dataset="minidomainnet"),
        },
        small=PACS,
        large=dict(dataset="pacs", backbone="resnet50"),
        task="sketch",
    ),
}


def study(name: str) -> Study:
    if name not in STUDIES:
        raise refuse("study", name, STUDIES)
    return STUDIES[name]


def runs_of(name: str, base: dict, targets: tuple[str, ...] | None, **changes) -> list[Run]:
    """The runs of a study over targets (None: all of the data set) and seeds."""
    targets = targets or settings(base["dataset"]).domains
    fields = [{**base, **changes, "target": target} for target in targets]
    return [Run(**each, seed=seed) for each in fields for seed in study(name).seeds]


def table_results(name: str, number: int) -> Rows:
    """Tables 1-4 and 10, and with error bars 11-14: every method, and CIRL under both recipes."""
    this = study(name)
    number = number - 10 if number > 10 else number
    base = this.tables.get(number)
    if base is None:
        return {}
    targets = this.large_targets if number == 3 else None
    rows = {LABELS[method]: runs_of(name, base, targets, method=method) for method in this.methods}
    return rows | {"CIRL (paper's equations)": runs_of(name, base, targets, method="cirl", recipe="paper")}


def table5(name: str) -> Rows:
    """The ablation."""
    this = study(name)
    return {row: runs_of(name, this.small, this.targets, **switches) for row, switches in VARIANTS.items()}


def table6(name: str) -> Rows:
    """Representation importance, with the learning rate of the classifier as a control."""
    this, rows = study(name), {}
    for method in this.methods:
        for rate in (1, 10):
            recipe = Run(**this.small, target=this.task, method=method).recipe + f"+head_lr={rate}"
            rows[f"{LABELS[method]}, classifier at {rate}x"] = runs_of(
                name, this.small, (this.task,), method=method, recipe=recipe
            )
    return rows


def table7(name: str) -> Rows:
    """Feature dimension."""
    this = study(name)
    return {f"{dim}": runs_of(name, this.small, this.sweep_targets, **this.sweep, dim=dim) for dim in this.dims}


def table8(name: str) -> Rows:
    """kappa at two feature dimensions."""
    this = study(name)
    return {
        f"N = {dim}, kappa = {kappa}": runs_of(name, this.small, this.sweep_targets, **this.sweep, dim=dim, kappa=kappa)
        for dim, kappa in product(this.kappa_dims, this.kappas)
    }


def table9(name: str) -> Rows:
    """Sampling strategy of the amplitude mix."""
    this = study(name)
    return {
        sampling: runs_of(name, this.small, this.sweep_targets, **this.sweep, sampling=sampling)
        for sampling in ("intra", "inter", "random")
    }


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
    if base is None:
        return {}
    return {LABELS[method]: runs_of(name, base, (this.task,), method=method) for method in this.methods}


def figure5cd(name: str, large: bool = False) -> Rows:
    """Sensitivity to tau and kappa."""
    this = study(name)
    base = this.large if large else {**this.small, **this.sweep}
    if base is None:
        return {}
    grid = product(this.large_taus, this.large_kappas) if large else product(this.taus, this.kappas)
    return {
        f"tau = {tau}, kappa = {kappa}": runs_of(name, base, (this.task,), tau=tau, kappa=kappa) for tau, kappa in grid
    }


ITEMS = {
    **{f"table{n:02d}": (lambda name, n=n: table_results(name, n)) for n in (1, 2, 3, 4, 10, 11, 12, 13, 14)},
    **{"table05": table5, "table06": table6, "table07": table7, "table08": table8, "table09": table9},
    **{"figure4": figure4_figure6, "figure6": figure4_figure6},
    **{"figure5a": figure5ab, "figure5b": lambda name: figure5ab(name, large=True)},
    **{"figure5c": figure5cd, "figure5d": lambda name: figure5cd(name, large=True)},
}


def expected(item: str, name: str) -> list[Run]:
    """The runs of an item, each once; a schematic or a picture of the tour needs none."""
    known = [item for items in NOTEBOOKS.values() for item in items]
    if item not in known:
        raise refuse("item", item, sorted(known))
    if item not in ITEMS:
        return []
    return list(dict.fromkeys(run for runs in ITEMS[item](name).values() for run in runs))


def all_runs(name: str) -> list[Run]:
    """Every run of a study, each once, in the order of the paper."""
    return list(dict.fromkeys(run for item in sorted(ITEMS) for run in expected(item, name)))


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
}


def notebooks(name: str) -> dict[str, tuple[str, ...]]:
    """The notebooks of a study with their items; an item whose runs are not part of the study is left out."""
    kept = {
        notebook: tuple(item for item in items if item not in ITEMS or ITEMS[item](name))
        for notebook, items in NOTEBOOKS.items()
        if notebook != "00_tour" or name == "tiny"
    }
    return {notebook: items for notebook, items in kept.items() if items}


def kinds(item: str) -> tuple[str, ...]:
    """The files of an item in `figures/<study>/`."""
    if item.startswith("table"):
        return ("md", "csv")
    return ("md", "png", "pdf", "csv") if item in ITEMS else ("md", "png", "pdf")
