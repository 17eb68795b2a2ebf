"""The studies: how much of the paper is run, and on what. `tiny` is the default everywhere."""

from dataclasses import dataclass, field

from cirl.errors import refuse


@dataclass(frozen=True)
class Study:
    """How much of the paper is run, and on what."""

    label: str  # what every figure says
    tables: dict[int, dict]  # Tables 1-4 and 10: what is trained for them
    small: dict  # the part of PACS with ResNet-18 in Tables 5-9 and Figures 4-6
    large: dict | None  # the part of PACS with ResNet-50 in Figures 5b and 5d
    task: str  # Sketch's part in Table 6 and Figure 5
    seeds: tuple[int, ...] = (0, 1, 2)
    more_seeds: tuple[int, ...] = ()  # of the audit of the recipes; trained with the extras
    methods: tuple[str, ...] = ("deepall", "mix", "fact", "matchdg", "cirl")
    large_methods: tuple[str, ...] = ("deepall", "mix", "fact", "matchdg", "cirl")  # of Table 3 and Figure 5b
    rivals: dict[int, tuple[str, ...]] = field(default_factory=dict)  # more methods, table by table
    both_recipes: tuple[int, ...] = (1, 2, 3, 4, 10)  # tables with a row for the paper's equations as written
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


TINY, PACS = dict(dataset="tiny"), dict(dataset="pacs")
DIGITS = dict(dataset="digits_dg", epochs=16)  # flat by then; the published 50 epochs are in the study `paper`
TINY_LARGE = dict(
    dataset="tiny", backbone="resnet18", dim=128, epochs=2, recipe="released+head_lr=1+originals=1+partner=any+clip=3"
)
LITE = dict(
    dataset="pacs", weights="none", image_size=64, epochs=6, lr=0.01, recipe="released+originals=1+partner=any"
)  # two cores carry this study in a night

STUDIES = {
    "tiny": Study(
        label="embedded data `tiny`: the ConvNet plays ResNet-18's part, a ResNet-18 from scratch ResNet-50's",
        tables={1: TINY, 2: TINY, 3: TINY_LARGE, 4: TINY, 10: TINY},
        small=TINY,
        large=TINY_LARGE,
        task="street",
        seeds=(0,),
        more_seeds=(1, 2),
        targets=("street", "print"),
        sweep_targets=("street",),
        large_targets=("street",),
        large_methods=("deepall", "cirl"),
        both_recipes=(1, 2, 4, 10),
        sweep=dict(epochs=3),
        dims=(32, 64, 128),
        kappa_dims=(32, 128),
        kappas=(0.5, 0.6, 0.9),
        taus=(2, 10),
        large_kappas=(0.6, 0.9),
        large_taus=(2, 10),
    ),
    "digits": Study(
        label="Digits-DG by the published protocol, the ConvNet in the part of both ResNets",
        tables={1: DIGITS},
        small=DIGITS,
        large=None,
        task="svhn",
        dims=(128, 256, 512),
        kappa_dims=(256, 512),
    ),
    "lite": Study(
        label="PACS at 64 pixels, ResNet-18 from scratch, 6 epochs, half the images a step: not the paper's protocol",
        tables={2: LITE},
        small=LITE,
        large=None,
        task="sketch",
        seeds=(0,),
        both_recipes=(),
        targets=("sketch",),
        sweep_targets=("sketch",),
        sweep=dict(epochs=3),
        dims=(128, 512),
        kappa_dims=(512,),
        kappas=(0.5, 0.6, 0.9),
        taus=(1, 5, 10),
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
        rivals={  # those of the page that are written here
            1: ("jigen", "ccsa", "crossgrad"),
            2: ("jigen", "csd", "rsc", "mixstyle"),
            4: ("ccsa", "crossgrad", "jigen", "rsc"),
            10: ("groupdro", "mixup", "mldg", "coral", "mmd", "mtl", "sagnet"),
        },
    ),
}


def study(name: str) -> Study:
    if name not in STUDIES:
        raise refuse("study", name, STUDIES)
    return STUDIES[name]
