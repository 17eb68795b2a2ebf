"""The table of the methods: names, values, and what a method needs."""

import shutil

import pytest

from cirl.errors import UserError
from cirl.run.config import Run


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("magic", "method='magic' is not possible; allowed: deepall, mix, cirl, fact"),
        ("mixup+alpha=-1", r"method='mixup\+alpha=-1' is not possible; allowed: for alpha a number from 0.001 upwards"),
        ("mixup+alpha=much", "for alpha a number"),
        ("ccsa+alpha=2", "for alpha a number from 0 to 1"),
        ("coral+beta=1", r"for coral the values gamma, written like coral\+gamma=1"),
        ("deepall+alpha=1", "for deepall no values"),
        ("rsc+f=nan", "for f a number from 0 to 1"),
        ("fact+beta=inf", "for beta a number from 0 upwards"),
    ],
)
def test_unknown_methods_and_values_raise_user_error(method, says):
    with pytest.raises(UserError, match=says):
        Run(method=method)


@pytest.mark.parametrize(
    "method", ["coral", "mmd", "mixup", "groupdro", "mtl", "csd", "ccsa", "crossgrad", "mldg", "matchdg"]
)
def test_a_method_that_compares_domains_needs_two_sources(method, folder):
    shutil.rmtree(folder / "ink")
    with pytest.raises(UserError, match=f"method='{method}' needs two source domains; with target='wool' there is one"):
        Run(f"folder:{folder}", "wool", method)
    assert Run(f"folder:{folder}", "wool", "mix").sources == ("clay",)


def test_values_are_part_of_the_runs_name_where_they_are_not_the_defaults():
    assert Run(method="mixup+alpha=0.2").id == Run(method="mixup").id == "tiny-convnet32-mixup-street-s0"
    assert Run(method="mixup+alpha=0.40").method == "mixup+alpha=0.4"
    assert Run(method="mixup+alpha=0.4").id == "tiny-convnet32-mixup+alpha=0.4-street-s0"
    assert Run(method="mixup+alpha=0.4").values == {"alpha": 0.4}
    assert Run(method="rsc+f=0.33333333").values["f"] == 0.33333333  # a name keeps all digits


def test_the_authors_own_values_hold_where_they_gave_them():
    assert Run("officehome", "art", "fact").values["beta"] == 200 and Run("pacs", "photo", "fact").values["beta"] == 2
    sketch = Run("pacs", "sketch", "matchdg")
    assert (sketch.lr, sketch.weight_decay, sketch.values["weight"]) == (0.01, 0.001, 0.5)
    assert sketch.id == "pacs-resnet18-matchdg-sketch-s0"
    assert Run("pacs", "sketch", "coral").lr == 0.001
