import pytest
import torch

from cirl import losses, metrics


def test_independence_degree_by_hand():
    C = torch.tensor([[1.0, 0.5, 0.0], [-0.5, 0.9, 0.1], [0.2, 0.0, 0.8]])
    assert metrics.independence_degree(C) == pytest.approx(0.25 + 0.25 + 0.01 + 0.04)


def test_independent_dimensions_sit_on_the_floor():
    degrees = [
        metrics.independence_degree(losses.correlation_matrix(torch.randn(50, 20), torch.randn(50, 20)))
        for _ in range(200)
    ]
    assert sum(degrees) / 200 == pytest.approx(metrics.independence_floor(20, 50), rel=0.03)


def test_the_floor_has_the_published_values():
    assert metrics.independence_floor(512, 32) == pytest.approx(8440, abs=1)
    assert metrics.independence_floor(512, 5446) == pytest.approx(48, abs=0.1)


W = torch.tensor([[0.0, 1.0, 2.0], [4.0, 0.0, 2.0], [-1.0, -1.0, 1.0]])


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("class", [0 + 1 + 0, 0.5 + 0 + 0, 1 + 0.5 + 1]),
        ("dimension", [0.2 + 1 + 0, 1 + 0.5 + 0, 1 + 1 + 0]),
        ("matrix", [0.2 + 1 + 0, 0.4 + 0.2 + 0, 0.6 + 0.6 + 0.4]),
    ],
)
def test_representation_importance_by_hand(reading, expected):
    torch.testing.assert_close(metrics.representation_importance(W, reading), torch.tensor(expected))


def test_importance_of_magnitudes_does_not_feel_the_sign():
    signs = torch.tensor([[1.0, -1.0, 1.0]])
    W = torch.randn(4, 3)
    same = [metrics.representation_importance(w, "magnitude") for w in (W, W * signs)]
    torch.testing.assert_close(*same)


def test_accuracy_counts_the_largest_logit():
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0], [0.0, 1.0]])
    assert metrics.accuracy(logits, torch.tensor([0, 1, 1, 1])) == 75


def test_an_unknown_reading_raises_an_error_that_lists_them():
    with pytest.raises(ValueError, match="class, dimension, matrix, magnitude"):
        metrics.representation_importance(W, "nonsense")
