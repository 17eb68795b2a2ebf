"""The choices where the paper and the authors' released code differ: the ledger of the README, as values.

A recipe swaps functions and numbers, never the structure. Two are named, `paper` (the equations as written) and
`released` (what the authors' code does); a single choice is changed by writing, say, `released+loss=barlow`.
Rows 4, 10, 12, 15 and 17 of the ledger are not choices: both recipes share them.
"""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cirl.errors import invalid
from cirl.run import parse


@dataclass(frozen=True)
class Recipe:
    """The choices of the ledger. The defaults are the paper's equations as written."""

    loss: str = "frobenius"  # row 1: Eq. 10, or what the code minimises, or Barlow Twins' weighting
    draws: str = "independent"  # row 2: Eq. 16, or each draw fed to the next
    logits: str = "plain"  # row 3: the masker's logits as they are, or through a batch norm
    cross_entropy: str = "sum"  # row 5: of Eq. 13 over views and branches, or their mean
    ramp: float = 5.0  # row 6: of 50 epochs, tau ramps up; 0 for a constant tau
    warmup: float = 0.0  # row 7: of 50 epochs, masks are all ones
    head_lr: float = 1.0  # row 8: learning rate of classifiers and masker over the encoder's
    originals: int = 1  # row 9: originals per image of the batch
    partner: str = (
        "any"  # row 19: any image lends its amplitude, or the second original of the index, one lambda a pair
    )
    decays: str = "all"  # row 11: what the schedule decays, and when
    k: str = "floor"  # row 13: of kappa N
    std: str = "biased"  # row 14: of the z-score
    pixels: str = "float"  # row 16: of the mixed image
    clip: float = 1.0  # bound of the gradient's norm, without which Eq. 10 as written diverges; 0 for none


PAPER = Recipe()
RELEASED = Recipe(
    loss="released",
    draws="recursive",
    logits="batchnorm",
    cross_entropy="mean",
    warmup=6.0,
    head_lr=10.0,
    originals=2,
    partner="pair",
    decays="encoder",
    k="ceil",
    std="unbiased",
    pixels="uint8",
    clip=0.0,
)
RECIPES = {"paper": PAPER, "released": RELEASED}
CHOICES = {
    "loss": ("frobenius", "released", "barlow"),
    "draws": ("independent", "recursive"),
    "logits": ("plain", "batchnorm"),
    "cross_entropy": ("sum", "mean"),
    "originals": (1, 2),
    "partner": ("any", "pair"),
    "decays": ("all", "encoder"),
    "k": ("floor", "ceil"),
    "std": ("biased", "unbiased"),
    "pixels": ("float", "uint8"),
}


def parse_recipe(text: str) -> Recipe:
    """`released`, `paper`, or one of them with changes: `released+loss=barlow+draws=independent`."""
    name, changes = parse.split(text)
    if name not in RECIPES:
        raise invalid("recipe", text, f"{', '.join(RECIPES)}, each with optional +choice=value")
    kinds: dict[str, Any] = {field.name: field.type for field in fields(Recipe)}
    chosen = {}
    for choice, value in changes.items():
        if choice not in kinds:
            raise invalid("recipe", text, f"the choices {', '.join(kinds)}, written like released+loss=barlow")
        try:
            chosen[choice] = kinds[choice](value)
        except ValueError:
            raise invalid("recipe", text, f"a number for {choice}") from None
        if choice in CHOICES and chosen[choice] not in CHOICES[choice]:
            raise invalid("recipe", text, f"{choice} one of {', '.join(map(str, CHOICES[choice]))}")
        if kinds[choice] is float and not 0 <= chosen[choice] < math.inf:
            raise invalid("recipe", text, f"a number of at least 0 for {choice}")
    recipe = replace(RECIPES[name], **chosen)
    if recipe.partner == "pair" and recipe.originals == 1:
        raise invalid("recipe", text, "partner=pair with originals=2; with originals=1 write partner=any as well")
    return recipe


def recipe_name(text: str) -> str:
    """The canonical spelling of a recipe: its base, then the choices that differ from it, in a fixed order."""
    base = parse.split(text)[0]
    return parse.join(base, asdict(parse_recipe(text)), asdict(RECIPES[base]))
