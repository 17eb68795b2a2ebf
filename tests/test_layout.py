"""The layout shows the architecture: the paper on top, the harness below, and no import upwards."""

import ast
import re

from cirl import paths

PACKAGE = paths.ROOT / "cirl"
ABOVE = ("cirl.study", "cirl.show", "cirl.analysis")  # nothing that trains may import these


def imported(file):
    """The modules that a file imports, at the top or inside functions."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_the_paper_the_methods_the_data_and_the_runs_do_not_know_the_studies():
    below = [
        *PACKAGE.glob("*.py"),
        *(file for name in ("methods", "data", "run") for file in PACKAGE.glob(f"{name}/*.py")),
    ]
    assert len(below) > 30
    for file in below:
        assert not [name for name in imported(file) if name.startswith(ABOVE)], file


def test_a_study_does_not_know_how_it_is_shown():
    for file in PACKAGE.glob("study/*.py"):
        assert not [name for name in imported(file) if name.startswith(("cirl.show", "cirl.analysis"))], file


def test_tests_share_code_in_helpers_alone():
    tests = [*(paths.ROOT / "tests").rglob("*.py")]
    assert len(tests) > 50
    for file in tests:
        assert not [name for name in imported(file) if name.startswith("test_")], file


def test_the_top_level_can_be_read_in_one_sitting():
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in PACKAGE.glob("*.py"))
    assert lines <= 650


def test_the_readme_links_every_module_and_what_it_names_is_there():
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    linked = {(PACKAGE / link).resolve() for link in re.findall(r"\]\(([\w./]+)\)", text)}
    modules = {file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py" and file.parent.name != "methods"}
    assert len(modules) > 40 and modules <= linked and all(file.exists() for file in linked)
    names = 0
    for named, link in re.findall(r"((?:`\w+`(?:, )?)+) in \[[\w./]+\]\(([\w./]+)\)", text):
        source = (PACKAGE / link).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", named):
            assert re.search(rf"^\s*(def|class) {name}\b|^{name}\b.* = ", source, re.M), (name, link)
            names += 1
    assert names > 15
