"""Files that are there whole or not at all, a clear word where one is damaged, and the digest of the code."""

import ast
import hashlib
import json
import os
from pathlib import Path

from cirl.errors import UserError

NOT_TRAINING = {  # modules that no training run depends on
    *("grid", "studies", "results", "report", "schematics", "page"),
    *("files", "errors", "paths", "datasets", "fetch", "bench", "audits", "properties"),
}


def write(path: Path, content: str | bytes) -> None:
    """Write under another name, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(unfinished, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise UserError(f"{path}, line {line}, is damaged ({error}); move the file away and run again.") from None


def training_digest() -> str:
    """A digest of the modules that training uses; it does not feel comments, docstrings and layout."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        if file.stem not in NOT_TRAINING:
            digest.update(f"{file.relative_to(package)}\n{_without_words(file.read_text())}\n".encode())
    return digest.hexdigest()[:16]


def _without_words(source):
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body[0].value.value = ""
    return ast.dump(tree)
