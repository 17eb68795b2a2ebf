"""Refuse papermill parameters that a notebook does not define; papermill itself only warns."""

import ast
import difflib
from collections.abc import Iterable

from IPython import get_ipython

from cirl.errors import UserError

INJECTED = "# Parameters"  # the first line of the cell that papermill adds


def refuse_unknown(cells: list[str] | None = None) -> None:
    """Raise UserError if papermill was given a parameter that the notebook's parameters cell does not define.

    `cells` are the sources of the executed cells, by default those of this notebook; the first cell that assigns names
    is the parameters cell."""
    cells = get_ipython().user_ns["In"] if cells is None else cells
    parsed = [(cell, _assigned(cell)) for cell in cells]
    known: list[str] = next((names for cell, names in parsed if names and not cell.startswith(INJECTED)), [])
    for cell, names in parsed:
        if cell.startswith(INJECTED):
            _refuse(sorted(set(names) - set(known)), known)


def _assigned(source):
    try:
        nodes = ast.parse(source).body
    except SyntaxError:  # a cell of magics
        return []
    targets = [node.target if isinstance(node, ast.AnnAssign) else node.targets[0] for node in nodes if _assigns(node)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _assigns(node):
    return isinstance(node, ast.AnnAssign | ast.Assign)


def _refuse(unknown: Iterable[str], known: list[str]):
    for name in unknown:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}."
        raise UserError(f"The notebook has no parameter {name!r}; {hint}")
