import math
from itertools import combinations

import numpy as np
import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of

x, y, d = batch()
UNEVEN = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 3, 3, 3, 2])  # the last domain has one image, and takes no part


def moments(r):
    """Mean and covariance as sums over the images."""
    mean = sum(r) / len(r)
    return mean, sum(torch.outer(row - mean, row - mean) for row in r) / (len(r) - 1)


def penalty(r, domains):
    distances = []
    for one, other in combinations((0, 1, 3), 2):
        (mu, cov), (mu_, cov_) = moments(r[domains == one]), moments(r[domains == other])
        N = r.shape[1]
        distances.append(((mu - mu_) ** 2).sum() / N + ((cov - cov_) ** 2).sum() / N**2)
    return sum(distances) / 3


@pytest.mark.parametrize("domains", [d, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(
    ("method", "epoch", "gamma"),
    [("coral", 0, math.exp(-5)), ("coral", 10.5, math.exp(-5 * 0.58**2)), ("coral", 40, 1), ("coral+gamma=30", 40, 30)],
)
def test_coral_minimises_cross_entropy_and_the_distance_of_means_and_covariances(method, epoch, gamma, domains):
    learner = make(method, epochs=50)
    twin = before(learner)
    r = twin.encoder(x)
    log_p = twin.h1(r).log_softmax(1)
    L_cls, L_align = -sum(log_p[i, y[i]] for i in range(12)) / 12, penalty(r, domains)
    loss = L_cls + gamma * L_align
    terms, (step,) = steps_of(learner, (x, y, domains), epoch)
    expected = dict(loss=loss.item(), L_cls=L_cls.item(), L_align=L_align.item())
    assert terms == pytest.approx(expected, rel=1e-4)
    assert_minimises(step, twin, loss)


def test_the_distance_is_that_of_means_and_covariances_by_numpy():
    a, b = torch.randn(40, 5), torch.randn(30, 5) + 1
    covariances = (np.cov(a.T.numpy()) - np.cov(b.T.numpy())) ** 2
    means = (a.numpy().mean(0) - b.numpy().mean(0)) ** 2
    distance = make("coral").distance(a, b).item()
    assert distance == pytest.approx(means.mean() + covariances.mean(), rel=1e-4)


def test_coral_sees_a_shift_of_the_means_and_a_change_of_the_covariances():
    a, distance = torch.randn(40, 5), make("coral").distance
    assert distance(a, a.flip(0)) < 1e-10
    assert distance(a, a + 3).item() == pytest.approx(9, rel=1e-3)
    growing = [distance(a, a * scale).item() for scale in (1.1, 1.5, 2)]
    assert growing == sorted(growing) and growing[0] > 0


def test_a_batch_of_one_domain_has_no_penalty():
    terms, _ = steps_of(make("coral", epochs=50), (x, y, torch.zeros(12, dtype=torch.long)), 40)
    assert terms["L_align"] == 0 and terms["loss"] == terms["L_cls"]
