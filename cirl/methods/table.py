"""The methods by name, and the values that each has of its own (PAPER.md, section 5).

A value is changed by writing it into the method: `mixup+alpha=0.4`, `fact+beta=200`.
"""

from typing import NamedTuple

from cirl.errors import refuse
from cirl.run.recipe import plain_number


class Value(NamedTuple):
    default: float
    low: float
    high: float = float("inf")


METHOD_VALUES: dict[str, dict[str, Value]] = {
    "deepall": {},
    "mix": {},
    "cirl": {},
    "fact": {"beta": Value(2, 0), "temperature": Value(10, 1e-3), "momentum": Value(0.9995, 0, 1)},
    "matchdg": {
        "weight": Value(1, 0),
        "temperature": Value(0.05, 1e-3),
        "every": Value(5, 0.1),
        "matcher_lr": Value(0.01, 1e-6),
    },
    "coral": {"gamma": Value(1, 0)},
    "mmd": {"gamma": Value(1, 0), "biased": Value(0, 0, 1)},
    "mixup": {"alpha": Value(0.2, 1e-3)},
    "groupdro": {"eta": Value(0.01, 0)},
    "mtl": {"ema": Value(0.99, 0, 1)},
    "csd": {"rank": Value(2, 2, 64), "common": Value(1, 0), "specific": Value(1, 0), "ortho": Value(1, 0)},
    "ccsa": {"margin": Value(1, 0), "alpha": Value(0.25, 0, 1)},
    "rsc": {"f": Value(1 / 3, 0, 1), "b": Value(1 / 3, 0, 1)},
    "crossgrad": {"eps": Value(1, 0), "alpha": Value(0.5, 0, 1), "bound": Value(0.1, 0)},
    "jigen": {"weight": Value(0.7, 0), "whole": Value(0.9, 0, 1), "permutations": Value(30, 1, 1000)},
    "sagnet": {"adversarial": Value(0.1, 0)},
    "mldg": {"inner_lr": Value(0.1, 0), "beta": Value(1, 0)},
    "mixstyle": {"p": Value(0.5, 0, 1), "alpha": Value(0.1, 1e-3)},
}
METHOD_NAMES = tuple(METHOD_VALUES)
NEED_TWO_SOURCES = ("matchdg", "coral", "mmd", "mixup", "groupdro", "mtl", "csd", "ccsa", "crossgrad", "mldg")
ELSEWHERE = {  # (method, data set) or (method, data set, backbone, target) -> values of its authors there
    ("fact", "officehome"): {"beta": 200.0},
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
    name, *changes = str(text).split("+")
    if name not in METHOD_VALUES:
        raise refuse("method", text, METHOD_NAMES)
    known = METHOD_VALUES[name]
    values = defaults(name, dataset, backbone, target)
    for change in changes:
        word, _, number = change.partition("=")
        if word not in known:
            own = f"the values {', '.join(known)}, written like {name}+{next(iter(known))}=1" if known else "no values"
            raise refuse("method", text, f"for {name} {own}")
        _, low, high = known[word]
        try:
            values[word] = float(number)
        except ValueError:
            values[word] = float("nan")
        if not low <= values[word] <= high or values[word] == float("inf"):
            upper = "" if high == float("inf") else f" to {high:g}"
            raise refuse("method", text, f"for {word} a number from {low:g}{upper or ' upwards'}")
    return name, values


def defaults(name: str, dataset: str, backbone: str, target: str) -> dict[str, float]:
    values = {word: value.default for word, value in METHOD_VALUES[name].items()}
    return values | ELSEWHERE.get((name, dataset), {}) | ELSEWHERE.get((name, dataset, backbone, target), {})


def method_name(text: str, dataset: str, backbone: str, target: str) -> str:
    """The one spelling of a method: its name, then the values that are not its defaults."""
    name, values = parse_method(text, dataset, backbone, target)
    usual = defaults(name, dataset, backbone, target)
    return name + "".join(f"+{word}={plain_number(value)}" for word, value in values.items() if value != usual[word])
