"""Check the tests by mutation: change one thing in a module, run its tests, and see whether one of them fails.

    python tests/mutate.py                      # every method against tests/methods/test_<method>.py
    python tests/mutate.py fact cirl            # some of them
    python tests/mutate.py --file cirl/losses.py --tests tests/test_losses.py

Each mutant drops one side of a sum or product, flips a sign or a comparison, changes a number, removes a detach, a
no_grad, an index or a whole statement. Survivors are printed with their line; the exit code is 1 if there are any.
A survivor that cannot change a result (an equivalent mutant) is marked by a comment `# mutant: <why>` on its line.
Run by hand: some minutes for all methods.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REMOVABLE = {
    "detach",
    "requires_grad_",
    "square",
    "exp",
    "softmax",
    "log_softmax",
    "mean",
    "clamp",
    "clamp_min",
    "roll",
}
SECONDS = 120  # a mutant that hangs is caught


def mutants(tree: ast.Module) -> Iterator[tuple[ast.AST, str, ast.Module]]:
    """The node, what was changed, and the changed module."""
    places = [node for node in ast.walk(tree)]
    guards = {id(node.value) for node in places if isinstance(node, ast.keyword) and node.arg == "strict"}  # of zip
    for i, node in enumerate(places):
        for what, change in changes(node) if id(node) not in guards else ():
            mutant = copy.deepcopy(tree)
            twin = [*ast.walk(mutant)][i]
            replace(mutant, twin, change(twin))
            yield node, what, ast.fix_missing_locations(mutant)


def changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """(description, function from the node to its replacement) for every way to change a node."""
    text = ast.unparse(node)
    if isinstance(node, ast.BinOp):
        yield f"left side only of {text}", lambda n: n.left
        yield f"right side only of {text}", lambda n: n.right
        swapped = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}.get(type(node.op))
        if swapped:
            yield f"{swapped.__name__} in {text}", lambda n: ast.BinOp(n.left, swapped(), n.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert, ast.Not)):
        yield f"no sign in {text}", lambda n: n.operand
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = {
            ast.Lt: ast.GtE,
            ast.GtE: ast.Lt,
            ast.Gt: ast.LtE,
            ast.LtE: ast.Gt,
            ast.Eq: ast.NotEq,
            ast.NotEq: ast.Eq,
        }
        if type(node.ops[0]) in other:
            flipped = other[type(node.ops[0])]
            yield f"{flipped.__name__} in {text}", lambda n: ast.Compare(n.left, [flipped()], n.comparators)
    if isinstance(node, ast.Call) and getattr(node.func, "attr", None) in REMOVABLE:
        yield f"no .{node.func.attr}() in {text}", lambda n: n.func.value
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield f"{node.value} + 1", lambda n: ast.Constant(n.value + 1)
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield f"not {node.value}", lambda n: ast.Constant(not n.value)
    if isinstance(node, ast.IfExp):
        yield f"always the first of {text}", lambda n: n.body
        yield f"always the second of {text}", lambda n: n.orelse
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and not isinstance(node.slice, ast.Constant):
        yield f"no index in {text}", lambda n: n.value
    if isinstance(node, ast.With):
        yield f"no {ast.unparse(node.items[0])}", lambda n: ast.If(ast.Constant(True), n.body, [])
    if isinstance(node, (ast.AugAssign,)) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield f"without the statement {text}", lambda n: ast.Pass()


def replace(tree, old, new):
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, new)
            elif isinstance(value, list) and any(each is old for each in value):
                setattr(parent, field, [new if each is old else each for each in value])


def worth(tree: ast.Module, source: str) -> Iterator[tuple[int, str, ast.Module]]:
    """The mutants outside of annotations, raised messages, `strict=True` and lines that are marked as equivalent."""
    lines, skipped = source.splitlines(), set()
    for node in ast.walk(tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.Raise) or (isinstance(node, ast.keyword) and node.arg == "strict"):
            parts.append(node)
        skipped |= {id(each) for part in parts if part for each in ast.walk(part)}
    for node, what, mutant in mutants(tree):
        if id(node) not in skipped and "# mutant:" not in lines[node.lineno - 1]:
            yield node.lineno, what, mutant


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of the package from the mutant's tree."""

    def __init__(self, name: str, tree: ast.Module, file: Path):
        self.name, self.tree, self.file = name, tree, file

    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_file_location(name, self.file, loader=self) if name == self.name else None

    def exec_module(self, module):
        exec(compile(self.tree, str(self.file), "exec"), module.__dict__)


def passes(file: Path, tree: ast.Module | None, tests: list[str]) -> bool:
    """Whether the tests pass with the mutant, in a child process that has torch already."""
    import pytest

    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        signal.alarm(SECONDS)
        if tree is not None:
            sys.meta_path.insert(0, Mutated(".".join(file.relative_to(ROOT).with_suffix("").parts), tree, file))
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["CIRL_ROOT"] = scratch
            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])
            os._exit(int(code))
    return os.waitpid(child, 0)[1] == 0


def survivors(file: Path, tests: list[str]) -> tuple[int, list[str]]:
    source = file.read_text()
    tree = ast.parse(source)
    if not passes(file, None, tests):
        raise SystemExit(f"{' '.join(tests)} fail without any mutation.")
    count, alive = 0, []
    for line, what, mutant in worth(tree, source):
        count += 1
        if passes(file, mutant, tests):
            alive.append(f"{file.relative_to(ROOT)}:{line}: {what}")
            print("survived:", alive[-1], flush=True)
    return count, alive


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*")
    parser.add_argument("--file")
    parser.add_argument("--tests", nargs="*")
    asked = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from cirl.run import machine

    machine.pin()
    import helpers
    import torch

    torch.set_num_threads(1)
    helpers.steps_of(helpers.make("deepall"), helpers.batch(), 0)  # load all libraries: mutants then start quickly
    for name in [name for name in sys.modules if name.split(".")[0] in ("cirl", "helpers")]:
        del sys.modules[name]
    if asked.file:
        pairs = [(ROOT / asked.file, asked.tests)]
    else:
        names = asked.methods or sorted(
            f.stem.removeprefix("test_") for f in (ROOT / "tests/methods").glob("test_*.py")
        )
        pairs = [(ROOT / f"cirl/methods/{name}.py", [f"tests/methods/test_{name}.py"]) for name in names]
    alive = []
    for file, tests in pairs:
        count, here = survivors(file, tests)
        alive += here
        print(f"{file.relative_to(ROOT)}: {count} mutants, {count - len(here)} caught", flush=True)
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main())
