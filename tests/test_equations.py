"""Each equation of the paper that is code is one function, and says so in its docstring."""

import ast
import re

from cirl import paths


def test_the_equations_4_to_16_each_have_exactly_one_function():
    found = []
    for file in sorted((paths.ROOT / "cirl").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found += re.findall(r"^Eq\. \((\d+)\):", ast.get_docstring(node) or "")
    assert sorted(map(int, found)) == list(range(4, 17))


def test_the_package_prints_nothing():
    for file in sorted((paths.ROOT / "cirl").rglob("*.py")):
        calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        assert not [call for call in calls if isinstance(call, ast.Name) and call.id == "print"], file
