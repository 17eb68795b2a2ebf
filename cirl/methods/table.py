"""The methods by name, with their labels and values; no torch is imported here.

A value is changed by writing it into the method: `mixup+alpha=0.4`, `fact+beta=200`.
"""

from typing import NamedTuple

from cirl.errors import invalid
from cirl.run import parse


class Value(NamedTuple):
    """A value of a method: its default and its range."""

    default: float
    low: float
    high: float = float("inf")


class Entry(NamedTuple):
    """A row of the table: the label of a method, its values, and whether it needs two source domains to compare."""

    label: str
    values: dict[str, Value]
    two_sources: bool = False


TABLE: dict[str, Entry] = {
    "deepall": Entry("DeepAll", {}),
    "mix": Entry("Mix", {}),
    "cirl": Entry("CIRL", {}),
    "fact": Entry("FACT", {"beta": Value(2, 0), "temperature": Value(10, 0.001), "momentum": Value(0.9995, 0, 1)}),
    "matchdg": Entry(
        "MatchDG",
        {
            "weight": Value(1, 0),
            "temperature": Value(0.05, 0.001),
            "every": Value(5, 0.1),
            "matcher_lr": Value(0.01, 1e-06),
        },
        two_sources=True,
    ),
    "coral": Entry("CORAL", {"gamma": Value(1, 0)}, two_sources=True),
    "mmd": Entry("MMD", {"gamma": Value(1, 0), "biased": Value(0, 0, 1)}, two_sources=True),
    "mixup": Entry("Mixup", {"alpha": Value(0.2, 0.001)}, two_sources=True),
    "groupdro": Entry("GroupDRO", {"eta": Value(0.01, 0)}, two_sources=True),
    "mtl": Entry("MTL", {"ema": Value(0.99, 0, 1)}, two_sources=True),
    "csd": Entry(
        "CSD",
        {"rank": Value(2, 2, 64), "common": Value(1, 0), "specific": Value(1, 0), "ortho": Value(1, 0)},
        two_sources=True,
    ),
    "ccsa": Entry("CCSA", {"margin": Value(1, 0), "alpha": Value(0.25, 0, 1)}, two_sources=True),
    "rsc": Entry("RSC", {"f": Value(1 / 3, 0, 1), "b": Value(1 / 3, 0, 1)}),
    "crossgrad": Entry(
        "CrossGrad",
        {"eps": Value(1, 0), "alpha": Value(0.5, 0, 1), "bound": Value(0.1, 0)},
        two_sources=True,
    ),
    "jigen": Entry("JiGen", {"weight": Value(0.7, 0), "whole": Value(0.9, 0, 1), "permutations": Value(30, 1, 1000)}),
    "sagnet": Entry("SagNet", {"adversarial": Value(0.1, 0)}),
    "mldg": Entry("MLDG", {"inner_lr": Value(0.1, 0), "beta": Value(1, 0)}, two_sources=True),
    "mixstyle": Entry("MixStyle", {"p": Value(0.5, 0, 1), "alpha": Value(0.1, 0.001)}),
    "metareg": Entry("MetaReg", {"steps": Value(3, 1, 100), "alpha": Value(0.01, 1e-6)}, two_sources=True),
    "masf": Entry(
        "MASF",
        {
            "inner": Value(1, 0),
            "order": Value(2, 1, 2),
            "clip": Value(2, 0),
            "global": Value(1, 0),
            "temperature": Value(2, 1e-3),
            "local": Value(0.005, 0),
            "margin": Value(10, 0),
        },
        two_sources=True,
    ),
    "eisnet": Entry(
        "EISNet",
        {
            "jigsaw": Value(0.7, 0),
            "whole": Value(0.9, 0, 1),
            "permutations": Value(30, 1, 1000),
            "triplet": Value(0.5, 0),
            "margin": Value(2, 0, 4),
            "K": Value(256, 1),
            "bank": Value(1024, 1, 1e6),
            "momentum": Value(0.999, 0, 1),
        },
    ),
    "mmd_aae": Entry(
        "MMD-AAE",
        {
            "ae": Value(0.1, 0),
            "mmd": Value(2, 0),
            "adv": Value(0.1, 0),
            "per_dimension": Value(1, 0, 1),
            "scale": Value(0.5**0.5, 1e-3),
            "other_lr": Value(1e-3, 1e-6),
        },
        two_sources=True,
    ),
    "ddaig": Entry(
        "DDAIG",
        {"lam": Value(0.3, 0), "alpha": Value(0.5, 0, 1), "warmup": Value(0, 0, 50)},
        two_sources=True,
    ),
    "l2a_ot": Entry(
        "L2A-OT",
        {
            "domain": Value(1, 0),
            "cycle": Value(10, 0),
            "keep": Value(1, 0),
            "alpha": Value(0.5, 0, 1),
            "epsilon": Value(0.01, 1e-4),
            "iterations": Value(5, 1, 1000),
            "generator_lr": Value(1e-3, 1e-6),
        },
        two_sources=True,
    ),
}
METHOD_NAMES = tuple(TABLE)
LABELS = {name: entry.label for name, entry in TABLE.items()}
ELSEWHERE = {  # (method, data set) or (method, data set, backbone, target) -> the values that its authors chose there
    ("fact", "officehome"): {"beta": 200.0},
    ("ddaig", "pacs"): {"warmup": 6.0},
    ("ddaig", "officehome"): {"warmup": 6.0},
    ("l2a_ot", "pacs"): {"generator_lr": 1e-4},
    ("l2a_ot", "officehome"): {"generator_lr": 1e-4},
    ("matchdg", "pacs", "resnet18", "art_painting"): {"weight": 5.0},
    ("matchdg", "pacs", "resnet18", "sketch"): {"weight": 0.5},
    ("matchdg", "pacs", "resnet50", "photo"): {"weight": 0.01},
    ("matchdg", "pacs", "resnet50", "art_painting"): {"weight": 0.1},
    ("matchdg", "pacs", "resnet50", "cartoon"): {"weight": 0.01},
    ("matchdg", "pacs", "resnet50", "sketch"): {"weight": 5.0},
}
TRAINING = {  # fields of the run that a method's authors chose for a backbone and target
    ("matchdg", "pacs", "resnet18", "photo"): {"lr": 5e-4, "weight_decay": 1e-3},
    ("matchdg", "pacs", "resnet18", "art_painting"): {"lr": 1e-3, "weight_decay": 1e-3},
    ("matchdg", "pacs", "resnet18", "cartoon"): {"lr": 1e-3, "weight_decay": 1e-3},
    ("matchdg", "pacs", "resnet18", "sketch"): {"lr": 1e-2, "weight_decay": 1e-3},
    ("matchdg", "pacs", "resnet50", "photo"): {"lr": 5e-4, "weight_decay": 1e-3},
    ("matchdg", "pacs", "resnet50", "art_painting"): {"lr": 1e-3, "weight_decay": 1e-3},
    ("matchdg", "pacs", "resnet50", "cartoon"): {"lr": 1e-3, "weight_decay": 1e-3},
    ("matchdg", "pacs", "resnet50", "sketch"): {"lr": 5e-4, "weight_decay": 1e-3},
}


def parse_method(text: str, dataset: str, backbone: str, target: str) -> tuple[str, dict[str, float]]:
    """`mixup+alpha=0.4` as the method's name and all its values."""
    name, changes = parse.split(text)
    if name not in TABLE:
        raise invalid("method", text, METHOD_NAMES)
    known = TABLE[name].values
    values = defaults(name, dataset, backbone, target)
    for word, number in changes.items():
        if word not in known:
            own = f"the values {', '.join(known)}, written like {name}+{next(iter(known))}=1" if known else "no values"
            raise invalid("method", text, f"for {name} {own}")
        _, low, high = known[word]
        try:
            values[word] = float(number)
        except ValueError:
            values[word] = float("nan")
        if not low <= values[word] <= high or values[word] == float("inf"):
            upper = "upwards" if high == float("inf") else f"to {high:g}"
            raise invalid("method", text, f"for {word} a number from {low:g} {upper}")
    return name, values


def defaults(name: str, dataset: str, backbone: str, target: str) -> dict[str, float]:
    """A method's default values: those of its authors for this task, otherwise the table's."""
    values = {word: value.default for word, value in TABLE[name].values.items()}
    return values | ELSEWHERE.get((name, dataset), {}) | ELSEWHERE.get((name, dataset, backbone, target), {})


def method_name(text: str, dataset: str, backbone: str, target: str) -> str:
    """The canonical spelling of a method: its name, then the values that are not its defaults."""
    name, values = parse_method(text, dataset, backbone, target)
    return parse.join(name, values, defaults(name, dataset, backbone, target))
