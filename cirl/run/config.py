"""What a run is: `Run`, and the paper's settings for each data set.

Nothing here knows about devices, workers or folders of output: they do not change what a run is.
"""

import hashlib
import math
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from cirl.errors import UserError, refuse
from cirl.methods.table import TABLE, TRAINING, method_name, parse_method
from cirl.run.parse import plain
from cirl.run.recipe import Recipe, parse_recipe, recipe_name

BACKBONES = {"convnet": 256, "convnet32": 128, "resnet18": 512, "resnet50": 2048}  # name -> its own N
SAMPLING = ("random", "intra", "inter")


@dataclass(frozen=True)
class Settings:
    """The paper's settings for a data set (PAPER.md, section 2)."""

    domains: tuple[str, ...]
    backbone: str = "resnet18"
    weights: str = "imagenet"
    kappa: float = 0.6
    tau: float = 5.0
    eta: float = 1.0
    epochs: int = 50
    batch_size: int = 16
    lr: float = 0.001
    schedule: str = "0.8"  # of the learning rate: x 0.1 at these shares of the epochs, cosine, or constant
    weight_decay: float = 5e-4
    image_size: int = 224
    augment: bool = True  # random resized crop, flip and colour jitter
    recipe: str = "released"


_DIGITS = dict(
    **dict(backbone="convnet", weights="none", image_size=32, augment=False),
    **dict(tau=2.0, batch_size=128, lr=0.05, schedule="0.4+0.8"),
    # With the tenfold rate of the heads some targets of tiny do not train. Without a bound on the gradient CIRL becomes
    # NaN in short runs, where tau ramps up faster: seen on svhn and on tiny.
    recipe="released+head_lr=1+partner=any+clip=3",
)
_TINY = dict(backbone="convnet32", epochs=5, batch_size=16, lr=0.03, schedule="cosine")
SETTINGS = {
    "tiny": Settings(("plain", "photo", "street", "print"), **{**_DIGITS, **_TINY}),
    "digits_dg": Settings(("mnist", "mnist_m", "svhn", "syn"), **_DIGITS),
    "pacs": Settings(("art_painting", "cartoon", "photo", "sketch")),
    "officehome": Settings(("art", "clipart", "product", "real_world"), kappa=0.8, eta=0.2),
    "minidomainnet": Settings(
        ("clipart", "painting", "real", "sketch"), kappa=0.8, batch_size=128, epochs=60, lr=0.005, schedule="cosine"
    ),
}


def settings(dataset: str) -> Settings:
    """The settings of a data set; any folder of images has those of PACS and the domains that it holds."""
    if dataset in SETTINGS:
        return SETTINGS[dataset]
    if not str(dataset).startswith("folder:"):
        raise refuse("dataset", dataset, [*SETTINGS, "folder:<path of root/domain/class/images>"])
    root = Path(dataset.removeprefix("folder:")).expanduser()
    if not root.is_dir():
        raise UserError(f"dataset={dataset!r}: there is no folder {root}.")
    domains = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(domains) < 2:
        found = ", ".join(domains) or "none"
        raise UserError(f"dataset={dataset!r}: a data set needs two domains (sub-folders) at least; found: {found}.")
    return Settings(tuple(domains))


@dataclass(frozen=True)
class Run:
    """One training run. `None` stands for the paper's value for the data set and is resolved at once."""

    dataset: str = "tiny"
    target: str = "street"
    method: str = "cirl"
    backbone: str | None = None
    weights: str | None = None  # imagenet, none, or the path of a state-dict file
    seed: int = 0
    dim: int | None = None  # N
    kappa: float | None = None
    tau: float | None = None
    eta: float | None = None
    sampling: str = "random"
    cint: bool = True  # the modules of Table 5: causal intervention,
    cfac: bool = True  # causal factorization,
    advm: bool = True  # adversarial mask
    epochs: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    weight_decay: float | None = None
    image_size: int | None = None
    schedule: str | None = None  # cosine, constant, or x 0.1 at shares of the epochs: 0.4+0.8
    augment: bool | None = None  # random resized crop, flip and colour jitter
    recipe: str | None = None  # paper, released, either with changes, or changes of the default: +draws=independent

    def __post_init__(self):
        for name, default in self._defaults().items():
            value = default if getattr(self, name) is None else getattr(self, name)
            if name == "recipe" and str(value).startswith("+"):  # changes of the default recipe
                value = default + value
            object.__setattr__(self, name, _as(type(default), value))
        _check(self)
        object.__setattr__(self, "recipe", recipe_name(self.recipe))
        object.__setattr__(self, "schedule", "+".join(plain(share) for share in self.drops) or self.schedule)
        object.__setattr__(self, "method", method_name(self.method, *self._task))

    def _defaults(self) -> dict:
        """The value that each field has where nothing else is said."""
        known = settings(self.dataset)
        backbone = self.backbone or known.backbone
        if backbone not in BACKBONES:
            raise refuse("backbone", backbone, BACKBONES)
        defaults = {field.name: field.default for field in fields(self)}
        defaults |= {name: value for name, value in asdict(known).items() if name in defaults}
        defaults["dim"] = BACKBONES[backbone]
        if backbone.startswith("convnet"):
            defaults["weights"] = "none"
        name = str(self.method).split("+")[0]
        if name != "cirl":  # the tenfold rate is CIRL's own; Table 6 shows what it does to others
            defaults["recipe"] = recipe_name(known.recipe + "+head_lr=1")
        return defaults | TRAINING.get((name, self.dataset, backbone, self.target), {})

    @property
    def _task(self) -> tuple[str, str, str]:
        """What a method's values may depend on."""
        return self.dataset, self.backbone, self.target

    @property
    def id(self) -> str:
        """Readable and unique: data set, backbone, method, target, seed, then the departures from the defaults."""
        start = [_word(self.dataset), self.backbone, _word(self.method), _word(self.target), f"s{self.seed}"]
        said = ("dataset", "backbone", "method", "target", "seed")
        rest = [
            _departure(name, getattr(self, name))
            for name, default in self._defaults().items()
            if name not in said and getattr(self, name) != default
        ]
        return "-".join(start + rest)

    @property
    def method_name(self) -> str:
        """The method without the values that were changed."""
        return self.method.split("+")[0]

    @property
    def values(self) -> dict[str, float]:
        """The method's own values."""
        return parse_method(self.method, *self._task)[1]

    @property
    def drops(self) -> tuple[float, ...]:
        """The shares of the epochs at which the learning rate drops to a tenth; none for a cosine or a constant."""
        return () if self.schedule in ("cosine", "constant") else tuple(map(float, self.schedule.split("+")))

    @property
    def choices(self) -> Recipe:
        return parse_recipe(self.recipe)

    @property
    def settings(self) -> Settings:
        return settings(self.dataset)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(domain for domain in self.settings.domains if domain != self.target)

    @property
    def k(self) -> int:
        """Number of draws of the mask, of the order of kappa N."""
        round_ = math.floor if self.choices.k == "floor" else math.ceil
        return max(1, round_(round(self.kappa * self.dim, 6)))


def _check(run: Run) -> None:
    """Say what is wrong with a run, naming the field, the value and what is allowed."""
    if run.target not in run.settings.domains:
        raise refuse("target", run.target, run.settings.domains)
    parse_method(run.method, *run._task)
    if run.sampling not in SAMPLING:
        raise refuse("sampling", run.sampling, SAMPLING)
    numbers = {
        "kappa": (lambda v: 0 < v < 1, "a number between 0 and 1, both excluded"),
        "eta": (lambda v: 0 <= v <= 1, "a number from 0 to 1"),
        "tau": (lambda v: 0 <= v < math.inf, "a number of at least 0"),
        "weight_decay": (lambda v: 0 <= v < math.inf, "a number of at least 0"),
        "lr": (lambda v: 0 < v < math.inf, "a number above 0"),
        "seed": (lambda v: isinstance(v, int) and v >= 0, "a whole number of at least 0"),
        "dim": (lambda v: isinstance(v, int) and v >= 2, "a whole number of at least 2"),
        "epochs": (lambda v: isinstance(v, int) and v >= 1, "a whole number of at least 1"),
        "batch_size": (lambda v: isinstance(v, int) and v >= 2, "a whole number of at least 2 (C needs two images)"),
        "image_size": (lambda v: isinstance(v, int) and v >= 16, "a whole number of at least 16"),
    }
    for name, (holds, allowed) in numbers.items():
        value = getattr(run, name)
        if isinstance(value, (bool, str)) or not holds(value):
            raise refuse(name, value, allowed)
    if not _is_schedule(run.schedule):
        raise refuse("schedule", run.schedule, "cosine, constant, or increasing shares of the epochs such as 0.4+0.8")
    for name in ("cint", "cfac", "advm", "augment"):
        if not isinstance(getattr(run, name), bool):
            raise refuse(name, getattr(run, name), ("True", "False"))
    needs = {"sampling": run.sampling == "inter", "method": TABLE[run.method_name].two_sources}
    for name in (name for name, needed in needs.items() if needed and len(run.sources) < 2):
        value = run.method_name if name == "method" else run.sampling
        raise UserError(f"{name}={value!r} needs two source domains; with target={run.target!r} there is one.")


def _is_schedule(text):
    if text in ("cosine", "constant"):
        return True
    try:
        shares = [float(share) for share in text.split("+")]
    except ValueError:
        return False
    return all(0 < share < 1 for share in shares) and shares == sorted(set(shares))


def _as(kind, value):
    """Words and numbers as papermill hands them over: 2 for 2.0, the domain 7 for "7"."""
    if kind is str or (kind is float and isinstance(value, int) and not isinstance(value, bool)):
        return kind(value)
    return value


def _departure(name, value):
    if isinstance(value, bool):
        return f"{name}{int(value)}"
    return f"{name}_{_word(value)}" if isinstance(value, str) else f"{name}{plain(value)}"


def _word(text):
    """Text as part of a file name; where characters must go, a digest keeps it unique."""
    word = re.sub(r"[^A-Za-z0-9._=+]+", "_", text)
    if word == text:
        return word
    stem = re.sub(r"[^A-Za-z0-9._=+]+", "_", Path(text).name)[:30].strip("_")
    return f"{stem}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
