"""The studies: how much of the paper is run, and on which data. `tiny` is the default everywhere."""

from dataclasses import dataclass, field

from cirl.errors import invalid


@dataclass(frozen=True)
class Study:
    """Which part of the paper is run, and on which data."""

    label: str  # what every figure says
    tables: dict[int, dict]  # Tables 1-4 and 10: what is trained for them
    small: dict  # stands in for PACS with ResNet-18 in Tables 5-9 and Figures 4-6
    large: dict | None  # stands in for PACS with ResNet-50 in Figures 5b and 5d
    task: str  # stands in for Sketch in Table 6 and Figure 5
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] = ("deepall", "mix", "fact", "matchdg", "cirl")
    large_methods: tuple[str, ...] = ("deepall", "mix", "fact", "matchdg", "cirl")  # of Table 3 and Figure 5b
    rivals: dict[int, tuple[str, ...]] = field(default_factory=dict)  # more methods, table by table
    both_recipes: tuple[int, ...] = (1, 2, 3, 4, 10)  # tables with a row for the paper's equations as written
    more_recipes: dict[str, str] = field(
        default_factory=dict
    )  # further rows of CIRL in the main tables: label -> recipe
    items: tuple[str, ...] | None = None  # which items are drawn; None for all that the study has runs for
    without: tuple[str, ...] = ()  # items that are not drawn
    targets: tuple[str, ...] | None = None  # of Table 5; None for all
    sweep_targets: tuple[str, ...] | None = None  # of Tables 7-9; None for all
    sweep_seeds: tuple[int, ...] | None = None  # of Tables 7 and 8 and Figures 5c, d; None for all
    dims: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    kappa_dims: tuple[int, ...] = (512, 2048)
    kappas: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9)
    taus: tuple[float, ...] = (1, 2, 3, 5, 10)
    audit_taus: tuple[float, ...] = (0.0005, 0.002, 0.01, 0.02, 0.05, 2)  # of the printed Eq. 10


TINY, PACS = dict(dataset="tiny"), dict(dataset="pacs")
DIGITS = dict(dataset="digits_dg", epochs=24, schedule="0.67+0.95")  # the published schedule is in the study `paper`
LITE = dict(  # a day on two cores
    dataset="pacs",
    backbone="resnet50",
    weights="data/raw/weights/resnet50_imagenet.pt",
    image_size=96,
    epochs=3,  # by source validation of DeepAll (data/search/lite_schedule.csv): 91.1 %, and 90.7 % after five epochs
    lr=0.003,  # at the published rate of 0.001
    schedule="cosine",
    recipe="+originals=1+partner=any",
)

STUDIES = {
    "tiny": Study(
        label="embedded data `tiny`, 24 epochs, a small ConvNet; its Table 1 stands in for Tables 1-4 and 10",
        tables={1: TINY},
        small=TINY,
        large=None,
        task="street",
        rivals={1: ("jigen", "ccsa", "crossgrad", "mmd_aae", "ddaig", "l2a_ot", "metareg", "masf", "eisnet")},
        both_recipes=(1,),
        sweep_targets=("street",),
        sweep_seeds=(0,),
        dims=(32, 64, 128, 256, 512),
        kappa_dims=(32, 128),
    ),
    "digits": Study(
        label="Digits-DG, 24 epochs (the paper: 50); the ConvNet stands in for both ResNets",
        tables={1: DIGITS},
        small=DIGITS,
        large=None,
        task="svhn",
        methods=("deepall", "mix", "fact", "matchdg", "cirl"),
        rivals={1: ("jigen", "ccsa", "crossgrad")},
        both_recipes=(),
        more_recipes={"CIRL (draws of Eq. 16)": "+draws=independent"},
        without=("audit_recipe", "audit_rank"),
        sweep_targets=("svhn",),
        sweep_seeds=(0,),
        dims=(128, 256, 512),
        kappa_dims=(256, 512),
        audit_taus=(0.0005, 0.002, 0.01, 0.05, 2),
    ),
    "lite": Study(
        label="PACS at 96 pixels, 3 epochs, ImageNet ResNet-50, one original a step; the paper: 224 pixels, 50 epochs",
        tables={3: LITE},
        small=LITE,
        large=LITE,
        task="sketch",
        seeds=(0,),
        methods=("deepall", "mix", "fact", "cirl"),
        large_methods=("deepall", "mix", "fact", "cirl"),
        both_recipes=(),
        items=(
            *("table03", "table13", "table05", "table06", "figure3", "figure4", "figure6", "figure5b"),
            *("curves", "curves_targets", "audit_selection", "audit_importance", "audit_independence"),
        ),
        targets=("sketch",),
    ),
    "paper": Study(
        label="everything as published, three seeds",
        tables={
            1: dict(dataset="digits_dg"),
            2: PACS,
            3: dict(dataset="pacs", backbone="resnet50"),
            4: dict(dataset="officehome"),
            10: dict(dataset="minidomainnet"),
        },
        small=PACS,
        large=dict(dataset="pacs", backbone="resnet50"),
        task="sketch",
        rivals={  # those of the paper's tables that are implemented here
            1: ("mmd_aae", "ddaig", "l2a_ot", "jigen", "ccsa", "crossgrad"),
            2: ("jigen", "csd", "rsc", "mixstyle", "metareg", "masf", "eisnet", "ddaig", "l2a_ot"),
            3: ("metareg", "masf", "eisnet"),
            4: ("mmd_aae", "ddaig", "l2a_ot", "ccsa", "crossgrad", "jigen", "rsc"),
            10: ("groupdro", "mixup", "mldg", "coral", "mmd", "mtl", "sagnet"),
        },
    ),
}


def study(name: str) -> Study:
    """The study of this name; raises UserError if there is none."""
    if name not in STUDIES:
        raise invalid("study", name, STUDIES)
    return STUDIES[name]
