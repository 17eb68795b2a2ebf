"""The language of methods and recipes: a name, then changes of its values (`mixup+alpha=0.4`)."""

from collections.abc import Mapping
from decimal import Decimal


def split(text: str) -> tuple[str, dict[str, str]]:
    """The name and its changes, as text."""
    name, *changes = str(text).split("+")
    return name, {key: value for key, _, value in (change.partition("=") for change in changes)}


def join(name: str, values: Mapping[str, object], usual: Mapping[str, object]) -> str:
    """The canonical spelling: the name, then the values that are not the usual ones, in a fixed order."""
    return name + "".join(f"+{key}={plain(value)}" for key, value in values.items() if value != usual[key])


def plain(value: object) -> str:
    """A number without exponent and trailing zeros, exact; other values as they are."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.12f}"
    exact = short if float(short) == value else f"{Decimal(repr(value)):f}"
    return exact.rstrip("0").rstrip(".") if "." in exact else exact
