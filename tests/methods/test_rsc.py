import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy

from cirl.methods.rsc import muting


def mask_by_hand(twin, r, y, muted, challenged):
    """Loop over the images: the gradient by autograd, the features and the images by sorting."""
    mask, drops = torch.ones_like(r), []
    for i, label in enumerate(y.tolist()):
        features = r[i].detach().requires_grad_()
        logits = twin.h1(features)
        (gradient,) = torch.autograd.grad(logits[label], features)
        mask[i, gradient.argsort(descending=True)[:muted]] = 0
        after = twin.h1(features * mask[i])
        drops.append((logits.softmax(0)[label] - after.softmax(0)[label]).item())
    for i in sorted(range(len(y)), key=lambda i: drops[i])[: len(y) - challenged]:
        mask[i] = 1
    return mask


@pytest.mark.parametrize(
    ("epoch", "challenged"),
    [(0, 0), (1.25, 3), (2.5, 11), (4, 11)],  # 0.9 of 12 images times exp(-5), exp(-5 / 4), 1 and 1
)
def test_rsc_minimises_the_cross_entropy_of_muted_features_for_a_growing_share_of_the_images(epoch, challenged):
    learner = make("rsc+f=0.1+b=0.9")
    learner.h1.weight.data *= 0.5  # unsure, so that those that lose most are not those that are surest
    twin, (x, y, _) = before(learner), batch()
    r = twin.encoder(x)
    mask = mask_by_hand(twin, r, y, muted=13, challenged=challenged)  # 0.1 of 128 features
    assert ((mask == 0).sum(1) == 13).sum() == challenged
    expected = cross_entropy(twin.h1(r * mask), y)
    terms, (step,) = steps_of(learner, batch(), epoch)
    assert terms == pytest.approx({"loss": expected.item()}, rel=1e-5)
    assert step.optimizer == 0
    assert_minimises(step, twin, expected)


def test_rsc_mutes_a_third_by_default():
    learner = make("rsc")
    twin, (x, y, _) = before(learner), batch()
    r = twin.encoder(x)
    expected = cross_entropy(twin.h1(r * mask_by_hand(twin, r, y, muted=43, challenged=4)), y)
    assert_minimises(steps_of(learner, batch(), 4)[1][0], twin, expected)


def test_rsc_mutes_exactly_the_stated_share_the_largest_gradients():
    gradient = torch.randn(5, 30)
    mask = muting(gradient, 1 / 3)
    assert (mask.sum(1) == 20).all() and set(mask.unique().tolist()) == {0.0, 1.0}
    for row, muted in zip(gradient, mask == 0, strict=True):
        assert row[muted].min() > row[~muted].max()
    assert (muting(gradient, 0.0) == 1).all()
