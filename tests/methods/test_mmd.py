import math
from itertools import combinations

import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of

x, y, d = batch()


def k(u, v):
    return sum(torch.exp(-(10.0**power) * (u - v).square().sum()) for power in range(-3, 4))


def discrepancy(a, b, biased):
    """Squared MMD of two samples by loops over all pairs."""

    def within(sample):
        pairs = [(i, j) for i in range(len(sample)) for j in range(len(sample)) if biased or i != j]
        return sum(k(sample[i], sample[j]) for i, j in pairs) / len(pairs)

    return within(a) + within(b) - 2 * sum(k(u, v) for u in a for v in b) / (len(a) * len(b))


@pytest.mark.parametrize(
    ("method", "epoch", "gamma", "biased"),
    [
        ("mmd", 0, math.exp(-5), False),
        ("mmd", 20, math.exp(-0.2), False),
        ("mmd+gamma=9", 25, 9, False),
        ("mmd+biased=1", 49, 1, True),
    ],
)
def test_mmd_minimises_cross_entropy_and_the_discrepancy_of_pairs_of_domains(method, epoch, gamma, biased):
    learner = make(method, epochs=50)
    learner.encoder.backbone[-5].weight.data /= 2  # so that the images are within the kernels' widths
    twin = before(learner)
    r = twin.encoder(x)
    log_p = twin.h1(r).log_softmax(1)
    L_cls = -sum(log_p[i, y[i]] for i in range(12)) / 12
    pairs = [discrepancy(r[d == one], r[d == other], biased) for one, other in combinations((0, 1, 3), 2)]
    L_align = sum(pairs) / 3
    loss = L_cls + gamma * L_align
    terms, (step,) = steps_of(learner, (x, y, d), epoch)
    expected = dict(loss=loss.item(), L_cls=L_cls.item(), L_align=L_align.item())
    assert terms == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert_minimises(step, twin, loss)


def test_the_discrepancy_is_the_naive_loop_for_samples_of_different_sizes():
    a, b = torch.randn(6, 3), torch.randn(4, 3) + 1
    for method, biased in (("mmd", False), ("mmd+biased=1", True)):
        learner = make(method)
        torch.testing.assert_close(learner.distance(a, b), discrepancy(a, b, biased), rtol=1e-4, atol=1e-4)
        assert learner.distance(a, a + 5) > learner.distance(a, a + 0.5)


@pytest.mark.parametrize("square", [1e-3, 1e-2, 1.0, 1e3])
def test_points_at_a_known_distance_have_the_kernels_of_all_seven_widths(square):
    a, b = torch.zeros(3, 2, dtype=torch.double), torch.zeros(3, 2, dtype=torch.double)
    b[:, 1] = square**0.5
    expected = sum(2 - 2 * math.exp(-(10.0**power) * square) for power in range(-3, 4))
    assert make("mmd").distance(a, b).item() == pytest.approx(expected, rel=1e-9)


def test_between_samples_of_one_distribution_the_discrepancy_is_zero_on_average_and_the_biased_one_is_not():
    torch.manual_seed(2)
    samples = [torch.randn(2, 10, 6) for _ in range(300)]
    unbiased, biased = (
        torch.stack([make_distance(a, b) for a, b in samples])
        for make_distance in (make("mmd").distance, make("mmd+biased=1").distance)
    )
    assert unbiased.mean().abs() < 4 * unbiased.std() / 300**0.5 and biased.mean() > 0.5


def test_shrinking_all_features_does_not_pay_by_the_diagonal():
    """Two samples of one distribution: the biased estimate falls as they collapse, the unbiased one stays near zero."""
    torch.manual_seed(2)
    samples = [torch.randn(2, 10, 6) for _ in range(20)]
    gain = {}
    for method in ("mmd", "mmd+biased=1"):
        distance = make(method).distance
        gain[method] = sum((distance(a, b) - distance(a / 10, b / 10)).item() for a, b in samples)
    assert gain["mmd+biased=1"] > 5 and abs(gain["mmd"]) < 0.2 * gain["mmd+biased=1"]
