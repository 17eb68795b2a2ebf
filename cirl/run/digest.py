"""The training digest of a run: a hash of the code that the run uses and of the values that this code reads.

It decides whether a result is stale. Starting from the run's method, the training loop and the batches, it follows
every name to its definition in this package. Comments, docstrings, annotations, imports, error messages, warnings and
the files in which definitions stand do not change it. Values that are part of a run's record (its fields, the data, the
initial weights) are compared on their own and are not followed as code.

A rewrite that trains to bit-identical results changes the digest all the same. `python tests/neutral.py
<commit> --train` checks that by training, and adds the pair to data/equal_code.csv; both then have the first digest.
"""

import ast
import hashlib
import json
import pickle
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from cirl import paths
from cirl.run.config import Run

PACKAGE = Path(__file__).parent.parent
ROOTS = ("train_epoch", "loaders")  # the loop with its evaluation, and the batches
TINY = ("table", "render")  # the embedded data set is code
RECORDED = {"index", "pixels", "load_weights", "Run", "settings"}  # not followed: a run's record holds what they return
CHOICES = ("recipe", "choices")  # names under which code reads a run's recipe


def training_digest(run: Run, package: Path = PACKAGE) -> str:
    """Sixteen hex digits; equal for two versions of the package if the run uses the same code with the same values."""
    choices = {name: getattr(run.choices, name) for name in vars(run.choices)}
    words = tuple((name, value) for name, value in choices.items() if isinstance(value, str))
    code, reads = _closure(run.method_name, run.dataset == "tiny", words, package)
    values = {name: choices[name] for name in reads["recipe"] if name in choices}
    derived = {name: getattr(run, name) for name in reads["run"] if isinstance(getattr(Run, name, None), property)}
    derived = {name: value for name, value in derived.items() if isinstance(value, (int, float, str, tuple, dict))}
    content = json.dumps([sorted(code), values, derived], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return _first_of_equals(digest, _equal_code(paths.DATA / "equal_code.csv"))


def _first_of_equals(digest, earlier):
    while digest in earlier:
        digest = earlier[digest]
    return digest


@cache
def _equal_code(file):
    """For each digest the earlier one whose code trains to bit-identical results."""
    if not file.exists():
        return {}
    rows = file.read_text(encoding="utf-8").split()[1:]
    return {after: before for before, after in (row.split(",")[:2] for row in rows)}


@cache
def _closure(method, tiny, words, package):
    """The canonical text of every definition that is reached, and the names of the values that they read."""
    known = _Package(_modules(package), dict(words))
    todo = [known.defined(name) for name in ROOTS + (TINY if tiny else ())]
    todo.append(known.method(method))
    seen: set[_Definition] = set()
    code, reads = [], _reads()
    while todo:
        definition = todo.pop()
        if definition in seen:
            continue
        seen.add(definition)
        reader = _Reader(known, definition)
        code.append(f"{definition.name}: {reader.text}")
        todo += reader.references
        for kind in reads:
            reads[kind] |= reader.reads[kind]
    return tuple(code), {kind: tuple(sorted(names)) for kind, names in reads.items()}


def _reads() -> dict[str, set[str]]:
    """The values that code reads, by where they come from; none yet."""
    return {"recipe": set(), "run": set()}


@cache
def _modules(package):
    files = [_Module(file, package) for file in sorted(package.rglob("*.py"))]
    return {module.name: module for module in files}


@dataclass(frozen=True)
class _Definition:
    """A function, class or assignment at the top level of a module."""

    module: str
    name: str


class _Module:
    """The definitions and imports of a file, by name; parsed when first asked for."""

    def __init__(self, file, package):
        parts = (package.name, *file.relative_to(package).with_suffix("").parts)
        self.name, self.package = ".".join(parts).removesuffix(".__init__"), package.name
        self.text = file.read_text(encoding="utf-8")

    @cached_property
    def tree(self):
        return ast.parse(self.text)

    @cached_property
    def definitions(self):
        return {name: node for node in self.tree.body for name in _names(node)}

    @cached_property
    def imports(self):
        found: dict[str, tuple[str, str]] = {}
        for node in _statements(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == self.package:
                found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        return found

    def defines(self, name):
        """Whether it has a definition of that name; most files are known not to without being parsed."""
        return bool(re.search(rf"^\S.*\b{name}\b", self.text, re.MULTILINE)) and name in self.definitions


def _statements(node):
    """All statements in a node, also those within others."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for statement in getattr(node, block, ()):
            yield statement
            yield from _statements(statement)


def _names(node):
    """The names that a statement at the top level defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)]


class _Package:
    """Resolves names across modules."""

    def __init__(self, modules, choices):
        self.modules, self.choices = modules, choices

    def node(self, definition):
        return self.modules[definition.module].definitions[definition.name]

    def defined(self, name):
        """The one definition of a name in the package."""
        found = [module.name for module in self.modules.values() if module.defines(name)]
        if len(found) != 1:
            raise LookupError(f"{name} is defined in {found or 'no module'}; a root of the digest needs one definition")
        return _Definition(found[0], name)

    def method(self, name):
        """The class of a method, as `methods.build` finds it."""
        module = next(module for module in self.modules if module.endswith(f".methods.{name}"))
        (found,) = [each for each in self.modules[module].definitions if each.lower() == name.replace("_", "")]
        return _Definition(module, found)

    def resolve(self, module, name):
        """What a name means in a module: a definition, the name of a module, or None for anything else."""
        if name in self.modules[module].definitions:
            return _Definition(module, name)
        if name not in self.modules[module].imports:
            return None
        source, original = self.modules[module].imports[name]
        if f"{source}.{original}" in self.modules:
            return f"{source}.{original}"
        return self.resolve(source, original) if source in self.modules else None

    def definition(self, module, node):
        """The definition that `name` or `module.name` refers to; None for anything else."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            source = self.resolve(module, node.value.id)
            found = self.resolve(source, node.attr) if isinstance(source, str) else None
        else:
            found = self.resolve(module, node.id) if isinstance(node, ast.Name) else None
        return found if isinstance(found, _Definition) else None

    def entry(self, table, key):
        """The definition under a key of a table such as FACTORIZATION; None if it is not written as a literal dict."""
        value = getattr(self.node(table), "value", None)
        pairs = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
        found = [each for name, each in pairs if isinstance(name, ast.Constant) and name.value == key]
        return self.definition(table.module, found[0]) if found else None


class _Reader(ast.NodeTransformer):
    """A definition's canonical text, the definitions it refers to, and the values of the run that it reads."""

    def __init__(self, package, definition):
        self.package, self.module = package, definition.module
        self.references: list[_Definition] = []
        self.reads = _reads()
        own = pickle.loads(pickle.dumps(package.node(definition)))  # a copy, five times faster than by copy.deepcopy
        self.text = _dump(self.visit(own))

    def refer(self, definition):
        if definition.name not in RECORDED:
            self.references.append(definition)
        return ast.Name(f"@{definition.name}", ast.Load())

    def visit_Name(self, node):
        found = self.package.definition(self.module, node) if isinstance(node.ctx, ast.Load) else None
        return self.refer(found) if found else node

    def visit_Attribute(self, node):
        base = _last(node.value)
        if base in CHOICES:
            self.reads["recipe"].add(node.attr)
        if base == "run":
            self.reads["run"].add(node.attr)
        found = self.package.definition(self.module, node)
        return self.refer(found) if found else self.generic_visit(node)

    def visit_Subscript(self, node):
        """In a table that is indexed by a choice of the recipe, follow only the chosen entry."""
        choice = self.package.choices.get(_last(node.slice))
        table = self.package.definition(self.module, node.value)
        entry = self.package.entry(table, choice) if table and choice else None
        if entry is None:
            return self.generic_visit(node)
        self.visit(node.slice)
        return self.refer(entry)

    def visit_FunctionDef(self, node):
        node.returns = None
        return self.body_of(node)

    def visit_ClassDef(self, node):
        if node.decorator_list or any(_last(base) == "NamedTuple" for base in node.bases):
            node.body = [_field(each) for each in node.body]
        return self.body_of(node)

    def body_of(self, node):
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        return self.generic_visit(node)

    def visit_arg(self, node):
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node):
        return self.generic_visit(ast.Assign([node.target], node.value)) if node.value else None

    def visit_Raise(self, node):
        return ast.Raise()

    def visit_Expr(self, node):
        warns = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "warnings.warn"
        return ast.Pass() if warns else self.generic_visit(node)

    def visit_Import(self, node):
        return ast.Pass()

    visit_ImportFrom = visit_Import


def _field(node):
    """A field without a default counts, although it is only an annotation."""
    bare = isinstance(node, ast.AnnAssign) and node.value is None
    return ast.Assign([node.target], ast.Constant(None)) if bare else node


def _dump(node):
    """Like ast.dump, but the same under every version of Python: empty fields are left out."""
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, []) and name != "kind"]
    return f"{type(node).__name__}({', '.join(f'{name}={_dump(value)}' for name, value in fields)})"


def _last(node):
    """The last name in a chain of attributes: `recipe` for self.recipe."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
