"""The tour shows every equation beside the code that computes it, as the code is now."""

import inspect
import re
import textwrap
from html import unescape

import nbformat
import pytest

from cirl import paths
from cirl.show.annotate import EQUATIONS, beside

TOUR = "\n".join(cell.source for cell in nbformat.read(paths.NOTEBOOKS / "00_tour.ipynb", 4).cells)


def text_of(html):
    return unescape(re.sub(r"<[^>]+>", "", re.sub(r"<style>.*?</style>", "", html, flags=re.S)))


def test_the_equations_4_to_16_stand_beside_the_functions_that_name_them():
    assert sorted(EQUATIONS) == list(range(4, 17))
    for number, (_, function) in EQUATIONS.items():
        assert inspect.getdoc(function).startswith(f"Eq. ({number}):")


@pytest.mark.parametrize("number", EQUATIONS)
def test_the_source_that_is_shown_is_that_of_the_module(number):
    latex, function = EQUATIONS[number]
    html = beside(number).data
    assert f"Eq. {number}: $${latex}$$" in html
    assert textwrap.dedent(inspect.getsource(function)).strip() in text_of(html)
    assert latex.count("{") == latex.count("}") and latex.count(r"\begin") == latex.count(r"\end")


def test_a_text_may_replace_an_equation():
    shown = text_of(beside(("a sentence", text_of), 10).data)
    assert shown.index("a sentence") < shown.index("def text_of") < shown.index("def factorization_loss")


def test_the_tour_goes_through_all_of_them_and_copies_none():
    calls = [call for call in TOUR.splitlines() if call.startswith("display(beside(")]
    shown = [int(n) for call in calls for n in re.findall(r"\b\d+\b", re.sub(r'"[^"]*"', "", call))]
    assert sorted(shown) == list(range(4, 17))
    for _, function in EQUATIONS.values():
        assert f"def {function.__name__}" not in TOUR
