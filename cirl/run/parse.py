"""How methods and recipes are written: a name, then changes of its values (`mixup+alpha=0.4`)."""


def split(text: str) -> tuple[str, dict[str, str]]:
    """The name and its changes, as words."""
    name, *changes = str(text).split("+")
    return name, {key: value for key, _, value in (change.partition("=") for change in changes)}


def join(name: str, values: dict[str, object], usual: dict[str, object]) -> str:
    """The canonical spelling: the name, then the values that are not the usual ones, in their order."""
    return name + "".join(f"+{key}={plain(value)}" for key, value in values.items() if value != usual[key])


def plain(value: object) -> str:
    """A number without exponent and trailing zeros; other values as they are."""
    return f"{value:.12f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
