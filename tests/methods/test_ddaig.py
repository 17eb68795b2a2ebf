import math

import pytest
import torch
from helpers import CLASSES, assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy

from cirl.run.config import Run

x, y, d = batch()


def named(terms):
    return {name: value.item() for name, value in terms.items()}


@pytest.mark.parametrize(
    ("method", "epoch", "lam", "alpha"),
    [
        ("ddaig", 0, 0.3, 0.5),
        ("ddaig+lam=0.8+alpha=0.9", 7.5, 0.8, 0.9),
        ("ddaig+warmup=10", 1.9, 0.3, 0),  # 10 of 50 epochs are 2 of 10
        ("ddaig+warmup=10+alpha=0.2", 2, 0.3, 0.2),
    ],
)
def test_each_network_of_ddaig_minimises_its_loss_in_turn(method, epoch, lam, alpha):
    learner = make(method, epochs=10)
    learner.transformation[-2].weight.data *= 30  # a change that is not small
    twin = before(learner)
    x_p = x + lam * twin.transformation(x)
    L_keep, L_fool = cross_entropy(twin.h1(twin.encoder(x_p)), y), -cross_entropy(twin.domain(x_p), d)
    terms, (first, second, third) = steps_of(learner, (x, y, d), epoch)
    assert [step.optimizer for step in (first, second, third)] == [2, 0, 1]
    parts = [{name.split(".")[0] for name in step.gradients} for step in (first, second, third)]
    assert parts == [{"transformation"}, {"encoder", "h1"}, {"domain"}]
    assert_minimises(first, twin, L_keep + L_fool, rtol=1e-3)
    x_p = (x + lam * learner.transformation(x)).detach()  # of the transformation that has moved
    L_cls, L_dom = cross_entropy(twin.h1(twin.encoder(x)), y), cross_entropy(twin.domain(x), d)
    loss = (1 - alpha) * L_cls + alpha * cross_entropy(twin.h1(twin.encoder(x_p)), y)
    assert_minimises(second, twin, loss)
    assert_minimises(third, twin, L_dom)
    by_hand = dict(loss=loss, L_cls=L_cls, L_dom=L_dom, L_keep=L_keep, L_fool=L_fool)
    assert terms == pytest.approx(named(by_hand), rel=1e-4)


def test_the_transformation_fools_the_domain_network_and_keeps_the_label():
    patterns, tints = torch.rand(CLASSES, 3, 32, 32), torch.rand(4, 3, 1, 1)
    images = 0.1 * x + 0.6 * patterns[y] + 0.3 * tints[d]
    learner = make("ddaig", schedule="constant")
    for _ in range(10):  # the two classifiers alone, not so long that they are certain
        for net, label, optimizer in ((learner.predict, y, 0), (learner.domain, d, 1)):
            learner.step(learner.optimizers[optimizer], cross_entropy(net(images), label), 0)
    right = lambda net, images, label: (net(images).argmax(1) == label).float().mean()  # noqa: E731
    assert right(learner.predict, images, y) == 1 and right(learner.domain, images, d) == 1
    for _ in range(15):
        x_p = learner.transformed(images)
        loss = cross_entropy(learner.predict(x_p), y) - cross_entropy(learner.domain(x_p), d)
        learner.step(learner.optimizers[2], loss, 0)
    x_p = learner.transformed(images)
    assert right(learner.domain, x_p, d) < 0.5 and right(learner.predict, x_p, y) == 1
    assert 0.01 < (x_p - images).abs().max() <= 0.3


def test_the_networks_of_ddaig_have_the_rate_of_the_encoder_and_an_output_per_domain():
    learner = make("ddaig", lr=0.2)
    assert learner.domain[1].out_features == 4
    for optimizer in learner.optimizers[1:]:
        (group,) = optimizer.param_groups
        assert group["base_lr"] == 0.2 and group["decays"] is True


@pytest.mark.parametrize(
    ("dataset", "target", "warmup"), [("pacs", "photo", 6), ("officehome", "art", 6), ("tiny", "street", 0)]
)
def test_ddaig_warms_up_where_its_authors_do(dataset, target, warmup):
    assert Run(dataset=dataset, target=target, method="ddaig", weights="none").values["warmup"] == warmup


@pytest.mark.parametrize("size", [16, 45, 96])
def test_ddaig_works_at_any_image_size(size):
    terms = make("ddaig", image_size=size).update(torch.rand(6, 3, size, size), y[:6], d[:6], 0)
    assert all(math.isfinite(value) for value in terms.values())
