"""The benchmark's arithmetic, and that its labels stay clear of its lines."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from cirl.analysis import bench
from cirl.show import costs

STEP = "ConvNet, 128 + 128 at 32"
MEASURED = """
group              | what       | base               | way                   | value
step               | STEP       | encoder alone      | encoder alone         | 1
step               | STEP       | encoder alone      | encoder alone         | 2
step               | STEP       | encoder alone      | encoder alone         | 3
step               | STEP       | encoder alone      | CIRL, draws of Eq. 16 | 3
step               | STEP       | encoder alone      | released way          | 8
profile            | pinned     | encoder            | mix                   | 0.2
profile            | pinned     | encoder            | encoder               | 2
profile            | pinned     | encoder            | mask                  | 0.4
profile            | not pinned | encoder            | mix                   | 0.2
profile            | not pinned | encoder            | encoder               | 2
profile            | not pinned | encoder            | mask                  | 0.1
mask               | B=2        | k sequential draws | Eq. 16, fused         | 1
mask               | B=2        | k sequential draws | k sequential draws    | 8
memory of the mask | B=2        | k sequential draws | Eq. 16, fused         | 52
memory of the mask | B=2        | k sequential draws | k sequential draws    | 104
amplitude mix      | 16 at 224  | numpy              | batched               | 1
amplitude mix      | 16 at 224  | numpy              | numpy                 | 4
method             | tiny       | DeepAll            | DeepAll               | 1
method             | tiny       | DeepAll            | Slow                  | 13
"""


@pytest.fixture
def table():
    measured = pd.read_csv(io.StringIO(MEASURED), sep=r"\s*\|\s*", engine="python")
    return costs.summary(measured.replace({"what": {"STEP": STEP}}))


def test_a_ratio_is_that_of_the_medians_in_the_same_group(table):
    step = table[table["group"] == "step"].set_index("way")
    assert step["ratio"].to_dict() == {"encoder alone": 1, "CIRL, draws of Eq. 16": 1.5, "released way": 4}
    assert step.loc["encoder alone", ["low", "high"]].tolist() == [1.5, 2.5]


def test_the_goals_compare_what_they_name(table):
    exponents = pd.Series({("step, seconds", "N"): 2.05, ("epoch, MB", "images"): 0.2})
    found = {what: (value, value <= most) for what, value, most in costs.goals(table, exponents)}
    assert found == {
        "a CIRL step over the encoder alone, ConvNet, 128 + 128 at 32": (1.5, False),
        "a CIRL step over the released way, ConvNet, 128 + 128 at 32": (0.375, False),
        "the fused mask over k sequential draws, B=2": (0.125, True),
        "memory of Eq. 16, fused, MB": (52, True),
        "the batched amplitude mix over numpy, 16 at 224 pixels": (0.25, True),
        "the dearest method's step over DeepAll's, Slow": (13, False),
        "exponent of step in N, seconds": (2.05, True),
        "exponent of epoch in images, MB": (0.2, False),
    }


def test_the_profile_says_what_a_step_adds_with_and_without_the_pins(table):
    assert "mask 0.20 (0.05), mix 0.10 (0.10); in all 0.30 (0.15)" in costs.beyond_the_encoder(table)


def test_exponents_are_slopes_on_log_axes():
    x = np.array([1.0, 2, 4, 8])
    lines = [{"what": "step, seconds", "varied": name, "x": x, "value": 3 * x**p} for name, p in (("N", 2), ("k", 0))]
    assert bench.exponents(pd.concat(map(pd.DataFrame, lines))).tolist() == pytest.approx([2, 0], abs=1e-9)


def test_labels_stand_outside_of_the_axes_and_cross_no_line(table):
    figure, ax = plt.subplots(figsize=(7, 3))
    costs.ratios(ax, table[table["group"].isin(["step", "mask"])])
    figure.canvas.draw()
    assert len(ax.texts) == 5
    assert all(text.get_window_extent().x0 > ax.get_window_extent().x1 for text in ax.texts)
    plt.close(figure)


@pytest.mark.slow
def test_a_fresh_process_gets_variables_and_loses_those_that_are_none(monkeypatch):
    monkeypatch.setenv("CIRL_GIVEN", "here")
    assert bench.in_fresh_process("os.getenv", "CIRL_GIVEN", CIRL_GIVEN="there") == "there"
    assert bench.in_fresh_process("os.getenv", "CIRL_GIVEN", CIRL_GIVEN=None) is None
