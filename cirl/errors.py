"""The one exception for a user's mistake: a sentence, and in a notebook no traceback."""


class UserError(ValueError):
    """A mistake that the user can correct; the message names it and what is allowed."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


def invalid(field: str, value: object, allowed: object) -> UserError:
    """A UserError that names the field, its value and what is allowed."""
    if isinstance(allowed, (list, tuple, set, frozenset, dict)):
        allowed = ", ".join(str(a) for a in allowed)
    return UserError(f"{field}={value!r} is not possible; allowed: {allowed}.")


def reason(error: Exception) -> str:
    """Why another library failed, in one line."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(":.")
