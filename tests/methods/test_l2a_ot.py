import math
from itertools import combinations

import numpy as np
import pytest
import torch
from helpers import CLASSES, assert_minimises, batch, before, make, steps_of
from scipy.optimize import linprog
from torch.nn.functional import cross_entropy

from cirl.methods.l2a_ot import plan, transport
from cirl.run.config import Run

x, y, d = batch()


def plan_by_hand(cost, epsilon, iterations):
    """Sinkhorn's scalings u, v in double precision: rows first, then columns."""
    K = torch.exp(-cost.detach().double() / epsilon)
    n, m = K.shape
    v = torch.ones(m, dtype=torch.double)
    for _ in range(iterations):
        u = 1 / n / (K @ v)
        v = 1 / m / (K.T @ u)
    return (u[:, None] * K * v[None]).float()


def cost_by_hand(a, b):
    return torch.stack([torch.stack([1 - (u @ v) / (u.norm() * v.norm()) for v in b]) for u in a])


def divergence_by_hand(a, b, epsilon, iterations):
    W = lambda a, b: (plan_by_hand(cost_by_hand(a, b), epsilon, iterations) * cost_by_hand(a, b)).sum()  # noqa: E731
    return 2 * W(a, b) - W(a, a) - W(b, b)


def test_in_the_first_phase_a_label_and_a_domain_classifier_train():
    learner = make("l2a_ot", epochs=10)
    twin = before(learner)
    L_label, L_dom = cross_entropy(twin.label(x), y), cross_entropy(twin.domain(x), d)
    terms, (step,) = steps_of(learner, (x, y, d), epoch=4.9)
    by_hand = dict(loss=L_label + L_dom, L_label=L_label, L_dom=L_dom)
    assert terms == pytest.approx({name: value.item() for name, value in by_hand.items()}, rel=1e-5)
    assert step.optimizer == 1 and {name.split(".")[0] for name in step.gradients} == {"label", "domain"}
    assert_minimises(step, twin, L_label + L_dom)
    groups = learner.optimizers[1].param_groups
    assert [group["lr"] for group in groups] == [learner.run.lr] * 2  # no decay


@pytest.mark.parametrize(
    ("method", "domain", "cycle", "keep", "alpha", "epsilon", "iterations"),
    [
        ("l2a_ot", 1, 10, 1, 0.5, 0.01, 5),
        ("l2a_ot+domain=300+cycle=0+keep=0+alpha=0.8+epsilon=0.1+iterations=3", 300, 0, 0, 0.8, 0.1, 3),
        ("l2a_ot+domain=0+cycle=2+keep=0+alpha=0.3", 0, 2, 0, 0.3, 0.01, 5),
        ("l2a_ot+domain=0+cycle=0+keep=4+alpha=1", 0, 0, 4, 1, 0.01, 5),
    ],
)
def test_the_generator_goes_far_and_returns_and_the_encoder_trains_on_both_halves(
    method, domain, cycle, keep, alpha, epsilon, iterations
):
    learner = make(method, epochs=10)
    twin = before(learner)
    torch.manual_seed(3)
    novel = (4 + torch.randperm(4))[d]
    x_n = twin.generator(x, novel)
    phi, phi_n = twin.domain[0](x).detach(), twin.domain[0](x_n)
    S = lambda a, b: divergence_by_hand(a, b, epsilon, iterations)  # noqa: E731
    far = sum(S(phi[d == i], phi_n[d == i]) for i in (0, 1, 3)) / 3
    far = far + sum(S(phi_n[d == i], phi_n[d == j]) for i, j in combinations((0, 1, 3), 2)) / 3
    L_cycle = (twin.generator(x_n, d) - x).abs().sum() / x.numel()
    L_keep = cross_entropy(twin.label(x_n), y)
    L_cls = cross_entropy(twin.h1(twin.encoder(x)), y)
    L_novel = cross_entropy(twin.h1(twin.encoder(x_n.detach())), y)
    loss = (1 - alpha) * L_cls + alpha * L_novel
    terms, (first, second) = steps_of(learner, (x, y, d), epoch=5)
    by_hand = dict(loss=loss, L_cls=L_cls, L_novel=L_novel, L_far=-far, L_cycle=L_cycle, L_keep=L_keep)
    assert terms == pytest.approx({name: value.item() for name, value in by_hand.items()}, rel=1e-3, abs=1e-5)
    assert (first.optimizer, second.optimizer) == (2, 0)
    assert {name.split(".")[0] for name in first.gradients} == {"generator"}
    assert {name.split(".")[0] for name in second.gradients} == {"encoder", "h1"}
    assert_minimises(first, twin, -domain * far + cycle * L_cycle + keep * L_keep, rtol=2e-3, atol=1e-5)
    assert_minimises(second, twin, loss)
    assert all(torch.equal(a, b) for a, b in zip(learner.label.parameters(), twin.label.parameters(), strict=True))


@pytest.mark.parametrize(("epochs", "first"), [(1, 1), (5, 2), (50, 25)])
def test_the_first_phase_is_half_as_long_and_the_schedule_begins_after_it(epochs, first):
    learner = make("l2a_ot", epochs=epochs, schedule="cosine")
    assert learner.first_phase == first and learner.epochs == first + epochs
    learner.update(x, y, d, first)
    rates = [
        group["lr"] for optimizer in (learner.optimizers[0], learner.optimizers[2]) for group in optimizer.param_groups
    ]
    assert rates == pytest.approx([learner.run.lr] * 2 + [learner.values["generator_lr"]])
    learner.update(x, y, d, first + epochs - 0.5)
    decay = 0.5 * (1 + math.cos(math.pi * (epochs - 1) / epochs))
    rates = [optimizer.param_groups[0]["lr"] for optimizer in (learner.optimizers[0], learner.optimizers[2])]
    assert rates == pytest.approx([decay * learner.run.lr, decay * learner.values["generator_lr"]])


def test_in_the_second_phase_the_classifiers_are_frozen_with_their_batch_statistics():
    learner = make("l2a_ot", backbone="resnet18", weights="none", image_size=32, epochs=2)
    twin = before(learner)
    learner.update(x, y, d, 1)
    for name in ("label", "domain"):
        kept, was = getattr(learner, name).state_dict(), getattr(twin, name).state_dict()
        assert all(torch.equal(kept[key], was[key]) for key in was)
        assert not getattr(learner, name).training
    moved, was = learner.encoder.state_dict(), twin.encoder.state_dict()
    assert not torch.equal(moved["backbone.bn1.running_mean"], was["backbone.bn1.running_mean"])


@pytest.mark.parametrize("seed", range(5))
def test_the_cost_of_the_plan_is_within_two_per_cent_of_the_linear_programme(seed):
    torch.manual_seed(seed)
    a, b = torch.randn(6, 4), torch.randn(7, 4) + 0.5
    cost = cost_by_hand(a, b).double()
    n, m = cost.shape
    sums = np.concatenate([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    weights = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    optimum = linprog(cost.numpy().ravel(), A_eq=sums, b_eq=weights, bounds=(0, None)).fun
    pi = plan(cost, 0.005, 2000)
    assert pi.sum(1).numpy() == pytest.approx(1 / n, rel=2e-2) and pi.sum(0).numpy() == pytest.approx(1 / m)
    assert (pi * cost).sum().item() == pytest.approx(optimum, rel=0.02)
    assert transport(a.double(), b.double(), 0.005, 2000).item() == pytest.approx(optimum, rel=0.02)


@pytest.mark.parametrize("iterations", [1, 5])
def test_the_plan_is_that_of_the_scalings_by_hand(iterations):
    torch.manual_seed(0)
    cost = torch.rand(5, 8)
    torch.testing.assert_close(plan(cost, 0.02, iterations), plan_by_hand(cost, 0.02, iterations), rtol=1e-3, atol=1e-6)


def test_the_divergence_is_zero_for_equal_samples_and_grows_with_the_angle_between_them():
    learner = make("l2a_ot")
    torch.manual_seed(0)
    a = torch.randn(6, 5) + torch.tensor([5.0, 0, 0, 0, 0])
    assert learner.divergence(a, a).item() == pytest.approx(0, abs=1e-6)
    turned = [learner.divergence(a, a + torch.tensor([0, shift, 0, 0, 0])).item() for shift in (1.0, 3.0, 9.0)]
    assert 0 < turned[0] < turned[1] < turned[2] < 4
    assert learner.divergence(a, 3 * a).item() == pytest.approx(0, abs=1e-6)  # only directions count


def test_the_novel_domains_of_a_step_are_different_and_beyond_the_sources():
    learner = make("l2a_ot")
    drawn = torch.stack([learner.novel_domains(x.device) for _ in range(50)])
    assert drawn.sort(1).values.tolist() == [[4, 5, 6, 7]] * 50
    assert all(len(column.unique()) == 4 for column in drawn.T)


def test_the_generator_learns_to_leave_the_sources_to_return_and_to_keep_the_label():
    patterns, tints = torch.rand(CLASSES, 3, 32, 32), torch.rand(4, 3, 1, 1)
    images = 0.1 * x + 0.6 * patterns[y] + 0.3 * tints[d]
    learner = make("l2a_ot+generator_lr=0.003", epochs=2, schedule="constant")
    for _ in range(40):
        prepared = learner.update(images, y, d, 0)
    history = [learner.update(images, y, d, 1) for _ in range(30)]
    first, last = history[0], history[-1]
    assert prepared["L_label"] < 0.1 and prepared["L_dom"] < 0.1
    assert last["L_keep"] < 0.5 * first["L_keep"] and last["L_cycle"] < 0.9 * first["L_cycle"]
    assert last["L_far"] < 0


@pytest.mark.parametrize("size", [16, 45, 96])
def test_l2a_ot_works_at_any_image_size(size):
    learner = make("l2a_ot", image_size=size)
    terms = learner.update(torch.rand(6, 3, size, size), y[:6], d[:6], learner.first_phase)
    assert all(math.isfinite(value) for value in terms.values())


def test_the_networks_of_l2a_ot_have_the_rates_and_outputs_that_they_need():
    learner = make("l2a_ot+generator_lr=0.02", lr=0.2)
    assert (learner.label[1].out_features, learner.domain[1].out_features) == (CLASSES, 4)
    assert learner.generator.domains == 8
    assert [group["base_lr"] for group in learner.optimizers[1].param_groups] == [0.2, 0.2]
    (group,) = learner.optimizers[2].param_groups
    assert group["base_lr"] == 0.02 and group["betas"] == (0.5, 0.999)


@pytest.mark.parametrize(("dataset", "target", "rate"), [("pacs", "photo", 1e-4), ("tiny", "plain", 1e-3)])
def test_the_generator_is_slower_in_the_long_runs_on_large_images(dataset, target, rate):
    assert Run(dataset=dataset, target=target, method="l2a_ot", weights="none").values["generator_lr"] == rate
