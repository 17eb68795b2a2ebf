import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy

from cirl.fourier import partners
from cirl.methods.mixup import mixed


@pytest.mark.parametrize("alpha", [0.2, 1.5])
def test_mixup_minimises_the_weighted_losses_of_both_labels_on_the_mixed_images(alpha):
    learner = make(f"mixup+alpha={alpha}")
    twin, (x, y, d) = before(learner), batch()
    torch.manual_seed(3)
    other = partners(d, "inter")
    lam = torch.distributions.Beta(alpha, alpha).sample((12,))
    expected = 0.0
    for i, j in enumerate(other.tolist()):
        assert d[i] != d[j]
        logits = twin.h1(twin.encoder((lam[i] * x[i] + (1 - lam[i]) * x[j])[None]))
        for weight, label in ((lam[i], y[i]), (1 - lam[i], y[j])):
            expected = expected + weight * cross_entropy(logits, label[None]) / 12
    terms, (step,) = steps_of(learner, batch(), epoch=0)
    assert terms == pytest.approx({"loss": expected.item()}, rel=1e-5)
    assert step.optimizer == 0
    assert_minimises(step, twin, expected)


def test_mixup_is_linear_between_the_two_images():
    x, *_ = batch()
    lam = torch.tensor([0.0, 0.25, 1.0])
    result = mixed(x[:3], x[3:6], lam)
    assert torch.equal(result[0], x[3]) and torch.equal(result[2], x[2])
    torch.testing.assert_close(result[1], 0.25 * x[1] + 0.75 * x[4])
