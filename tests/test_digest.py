"""The training digest: blind to what cannot change a result, and not to anything else."""

import re
import shutil
from dataclasses import replace
from functools import cache

import pytest

from cirl import paths
from cirl.methods.table import METHOD_NAMES
from cirl.run import digest, recipe
from cirl.run.config import Run
from cirl.run.digest import training_digest

RUNS = {
    **{method: Run(method=method) for method in METHOD_NAMES},
    "cirl, paper": Run(recipe="paper"),
    "cirl, digits": Run("digits_dg", "svhn"),
    "deepall, digits": Run("digits_dg", "svhn", "deepall"),
    "cirl, pacs": Run("pacs", "sketch"),
}


@pytest.fixture
def package(tmp_path):
    """A copy of the package, to be changed."""
    shutil.copytree(digest.PACKAGE, tmp_path / "cirl", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "cirl"


@cache
def present():
    """The digests of the unchanged package."""
    return digests(digest.PACKAGE)


def digests(package):
    digest._closure.cache_clear()
    digest._modules.cache_clear()
    return {name: training_digest(run, package) for name, run in RUNS.items()}


def changed(package):
    return {name for name, value in digests(package).items() if value != present()[name]}


def edit(file, pattern, new):
    text, count = re.subn(pattern, new, file.read_text(encoding="utf-8"), count=1)
    assert count == 1, f"{pattern} is not in {file}"
    file.write_text(text, encoding="utf-8")


def test_a_copy_elsewhere_has_the_same_digests_and_runs_differ(package):
    assert changed(package) == set()
    values = present()
    assert len({values[method] for method in METHOD_NAMES}) == len(METHOD_NAMES)
    assert values["cirl"] != values["cirl, paper"]


def test_comments_docstrings_annotations_and_imports_do_not_count(package):
    file = package / "losses.py"
    edit(file, r"(def z_score\()", r"# a comment\n\1")
    edit(file, r"Eq\. \(10\): L_Fac", "Eq. (10): another docstring")
    edit(file, r"def invariance\(C: Tensor\) -> Tensor", "def invariance(C)")
    edit(file, r"import torch\n", "import math\nimport torch\n")
    edit(package / "model.py", r"(    def __init__\(self, backbone)", r"    mean: Tensor\n    std: Tensor\n\n\1")
    edit(package / "methods/mix.py", r"( +)logits = ", r"\1y_twice: Tensor\n\1logits: Tensor = ")
    assert changed(package) == set()


def test_a_field_of_a_dataclass_counts(package):
    edit(package / "data/batches.py", "    workers: int\n", "    workers: int\n    more: int\n")
    assert changed(package) == set(RUNS)


def test_a_reworded_message_does_not_count(package):
    edit(package / "run/checkpoint.py", "diverges and stops", "diverges")
    edit(package / "data/batches.py", "at most the", "no more than the")
    edit(package / "errors.py", "is not possible", "is not allowed")
    assert changed(package) == set()


def test_a_new_method_does_not_count(package):
    (package / "methods/newest.py").write_text((package / "methods/mix.py").read_text().replace("Mix", "Newest"))
    edit(package / "methods/table.py", r"TABLE: .* = \{", 'TABLE = {\n    "newest": Entry("Newest", {}),')
    assert changed(package) == set()


def test_a_renamed_or_moved_module_does_not_count(package):
    (package / "paper").mkdir()
    for name in ("losses", "fourier", "metrics"):
        (package / f"{name}.py").rename(package / "paper" / f"{name}_of_the_paper.py")
    for file in package.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for name in ("losses", "fourier", "metrics"):
            text = re.sub(rf"from cirl\.{name} import", f"from cirl.paper.{name}_of_the_paper import", text)
        file.write_text(split_imports(text), encoding="utf-8")
    assert changed(package) == set()


def split_imports(text):
    """`from cirl import losses, lock` with the moved modules taken out and imported under their old names."""
    moved = ("losses", "fourier", "metrics")

    def rewritten(match):
        names = [name.strip() for name in match[1].split(",")]
        lines = [f"from cirl.paper import {name}_of_the_paper as {name}" for name in names if name in moved]
        kept = [name for name in names if name not in moved]
        return "\n".join(lines + ([f"from cirl import {', '.join(kept)}"] if kept else []))

    return re.sub(r"^from cirl import ([\w, ]+)$", rewritten, text, flags=re.M)


def test_a_changed_equation_makes_stale_the_runs_that_use_it(package):
    edit(package / "losses.py", r"return 0\.5 \* \(_invariance", "return 0.6 * (_invariance")
    assert changed(package) == {"cirl, paper"}  # the others minimise the released form


def test_a_changed_helper_reaches_all_that_call_it(package):
    edit(package / "losses.py", r"\(C\.diagonal\(\) - 1\)\.square\(\)", "(C.diagonal() - 2).square()")
    assert changed(package) == {"cirl", "cirl, paper", "cirl, digits", "cirl, pacs"}


def test_a_changed_method_makes_stale_its_own_runs_alone(package):
    edit(package / "methods/fact.py", r"2 \* kl_div", "3 * kl_div")
    assert changed(package) == {"fact"}


@pytest.mark.parametrize(
    ("file", "pattern", "new"),
    [
        ("run/checkpoint.py", r"epoch \+ step / data\.steps", "epoch"),  # the loop
        ("data/batches.py", r"i \* size : \(i \+ 1\) \* size\] for", "i * size : (i + 2) * size] for"),  # batching
        ("data/augment.py", r"clamp_\(0, 1\)", "clamp_(0, 2)"),
        ("metrics.py", "argmax", "argmin"),  # evaluation
        ("methods/base.py", "momentum=0.9", "momentum=0.8"),
    ],
)
def test_a_changed_loop_batch_or_optimizer_makes_every_run_stale(package, file, pattern, new):
    edit(package / file, pattern, new)
    assert changed(package) == set(RUNS)


def test_the_rendering_of_tiny_counts_for_the_runs_on_tiny(package):
    edit(package / "data/tiny.py", r"SIZE = 32", "SIZE = 33")
    assert changed(package) == {name for name, run in RUNS.items() if run.dataset == "tiny"}


def test_values_count_for_the_runs_that_read_them(monkeypatch):
    before = present()
    monkeypatch.setitem(recipe.RECIPES, "released", replace(recipe.RELEASED, warmup=5.0))
    after = digests(digest.PACKAGE)
    assert {name for name in RUNS if after[name] != before[name]} == {"cirl", "cirl, digits", "cirl, pacs"}


def test_code_that_trains_to_the_same_bits_keeps_the_digest_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "DATA", tmp_path / "empty")
    digest = training_digest(Run())
    (tmp_path / "equal_code.csv").write_text(f"before,after\n{'1' * 16},{'2' * 16}\n{'2' * 16},{digest}\n")
    monkeypatch.setattr(paths, "DATA", tmp_path)
    assert training_digest(Run()) == "1" * 16
    assert training_digest(Run(method="deepall")) not in ("1" * 16, digest)
