import math

import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of

from cirl.methods.ccsa import contrastive

x, y, d = batch()


def naive(r, labels, domains, margin):
    """Means over the pairs of one class and over the pairs of two classes, all from different domains."""
    together, apart = [], []
    for i in range(len(r)):
        for j in range(i):
            distance = (r[i] - r[j]).square().sum().sqrt()
            if domains[i] != domains[j] and labels[i] == labels[j]:
                together.append(distance**2 / 2)
            elif domains[i] != domains[j]:
                apart.append(torch.clamp(margin - distance, min=0) ** 2 / 2)
    return sum(together) / max(1, len(together)) + sum(apart) / max(1, len(apart))


@pytest.mark.parametrize(
    ("method", "epoch", "alpha", "margin", "ramped"),
    [
        ("ccsa", 0, 0.25, 1, math.exp(-5)),
        ("ccsa", 12.5, 0.25, 1, math.exp(-1.25)),
        ("ccsa", 25, 0.25, 1, 1),
        ("ccsa+alpha=0.6+margin=30", 49, 0.6, 30, 1),
    ],
)
def test_ccsa_minimises_cross_entropy_and_the_distances_across_domains(method, epoch, alpha, margin, ramped):
    learner = make(method, epochs=50)
    twin = before(learner)
    r = twin.encoder(x)
    log_p = twin.h1(r).log_softmax(1)
    L_cls, L_pairs = -sum(log_p[i, y[i]] for i in range(12)) / 12, naive(r, y, d, margin)
    loss = (1 - alpha) * L_cls + alpha * ramped * L_pairs
    terms, (step,) = steps_of(learner, (x, y, d), epoch)
    expected = dict(loss=loss.item(), L_cls=L_cls.item(), L_pairs=L_pairs.item())
    assert terms == pytest.approx(expected, rel=1e-4)
    assert_minimises(step, twin, loss)


@pytest.mark.parametrize("margin", [1.0, 3.0])
def test_the_pairs_are_the_naive_loop_with_uneven_domains_and_classes(margin):
    r, labels = torch.randn(8, 3) / 2, torch.tensor([0, 0, 1, 1, 2, 0, 1, 0])
    domains = torch.arange(8) % 3
    torch.testing.assert_close(contrastive(r, labels, domains, margin), naive(r, labels, domains, margin))


def test_pairs_of_one_domain_do_not_count():
    r, labels = torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 0, 1])
    assert contrastive(r, labels, torch.zeros(6), 1.0) == 0
    same = naive(r, torch.zeros(6), torch.arange(6), 1.0)  # no pair of two classes
    torch.testing.assert_close(contrastive(r, torch.zeros(6), torch.arange(6), 1.0), same)


def test_a_single_pair_counts_in_full():
    r, labels, domains = torch.tensor([[0.0, 0.0], [0.3, 0.4]]), torch.tensor([2, 2]), torch.tensor([0, 1])
    assert contrastive(r, labels, domains, 1.0).item() == pytest.approx(0.125)
    assert contrastive(r, torch.tensor([2, 0]), domains, 1.0).item() == pytest.approx(0.125)


def test_ccsa_is_zero_for_classes_that_coincide_and_lie_a_margin_apart():
    r = torch.tensor([[0.0, 0], [0, 0], [2, 0], [2, 0]])
    assert contrastive(r, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]), 1.0) == 0


def test_features_that_coincide_have_a_finite_gradient():
    r = torch.zeros(4, 3, requires_grad=True)
    contrastive(r, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]), 1.0).backward()
    assert r.grad.isfinite().all()
