import math

import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from cirl.methods.masf import alignment, confusion, divergence, triplet

x, y, d = batch()


def naive_alignment(logits, y, d, unseen, temperature):
    """Class by class, domain by domain, entry by entry."""

    def soft(rows):
        return (logits[rows].mean(0) / temperature).softmax(0)

    seen = sorted({d[i].item() for i in range(len(d)) if not unseen[i]})
    total = logits.sum() * 0
    for domain in seen:
        for c in range(logits.shape[1]):
            here = [i for i in range(len(y)) if y[i] == c and d[i] == domain and not unseen[i]]
            there = [i for i in range(len(y)) if y[i] == c and unseen[i]]
            if here and there:
                p, q = soft(here), soft(there)
                total = total + ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
    return total / (len(seen) * logits.shape[1])


def naive_triplet(e, y, margin):
    """For each pair the nearest negative that is farther away than the positive, else the farthest negative."""
    n, losses = len(y), []
    for a in range(n):
        negatives = [(e[a] - e[i]).square().sum() for i in range(n) if y[i] != y[a]]
        for p in range(n):
            if p != a and y[p] == y[a] and negatives:
                positive = (e[a] - e[p]).square().sum()
                farther = [negative for negative in negatives if negative > positive]
                loss = positive - (min(farther) if farther else max(negatives)) + margin
                losses.append(loss if loss > 0 else loss * 0)
    return sum(losses) / len(losses) if losses else e.sum() * 0


def bounded(gradient, bound):
    norm = gradient.square().sum().sqrt()
    return gradient * bound / norm if bound and norm > bound else gradient


# the terms


def test_the_soft_confusion_matrix_by_hand_on_three_classes():
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [4.0, 0.0, 2.0]])
    soft = confusion(logits, torch.tensor([0, 2, 0]), temperature=2.0)
    assert {*soft} == {0, 2}
    e = math.exp
    first, third = (
        torch.tensor([e(1.5), 1.0, e(0.5)]),
        torch.tensor([1.0, e(1.0), 1.0]),
    )  # of logits (3, 0, 1), (0, 2, 0)
    torch.testing.assert_close(soft[0].exp(), first / first.sum())
    torch.testing.assert_close(soft[2].exp(), third / third.sum())


def test_the_divergence_by_hand_on_three_classes():
    p, q, s = (torch.tensor(row) for row in ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.2, 0.2, 0.6]))
    one, other = {0: p.log(), 1: s.log()}, {0: q.log(), 2: s.log()}
    assert divergence(one, other).item() == pytest.approx(0.25 * math.log(2) / 3)
    assert divergence(other, one).item() == pytest.approx(0.25 * math.log(2) / 3)
    assert divergence(one, one) == 0
    assert divergence({0: p.log()}, {1: q.log()}) == 0


def test_the_alignment_is_the_naive_loop_where_classes_and_domains_are_missing():
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        logits = 3 * torch.randn(14, 5, generator=generator)
        labels, domains = (torch.randint(n, (14,), generator=generator) for n in (5, 4))
        unseen = domains == domains[0]
        if not unseen.all():
            expected = naive_alignment(logits, labels, domains, unseen, 1.5)
            torch.testing.assert_close(alignment(logits, labels, domains, unseen, 1.5), torch.as_tensor(expected))


def test_domains_without_a_common_class_have_nothing_to_align():
    logits = torch.randn(4, 3, requires_grad=True)
    unseen = torch.tensor([True, True, False, False])
    loss = alignment(logits, torch.tensor([0, 1, 2, 2]), unseen.long(), unseen, 2.0)
    loss.backward()
    assert loss == 0 and (logits.grad == 0).all()


def test_the_triplet_loss_by_hand():
    e = torch.tensor([[0.0], [1.0], [3.0], [0.5]])
    labels = torch.tensor([0, 0, 1, 1])
    # squared distances: 01: 1, 02: 9, 03: .25, 12: 4, 13: .25, 23: 6.25
    # (0, 1): nearest farther than 1 is 9; (1, 0): 4; (2, 3): 9; (3, 2): none is farther, the farthest .25
    expected = [max(0, 1 - 9 + 5), 1 - 4 + 5, 6.25 - 9 + 5, 6.25 - 0.25 + 5]
    assert triplet(e, labels, 5.0).item() == pytest.approx(sum(expected) / 4)


def test_the_triplet_loss_is_the_naive_loop():
    generator = torch.Generator().manual_seed(0)
    for margin in (0.1, 1.0, 10.0):
        e = torch.randn(12, 3, generator=generator, requires_grad=True)
        labels = torch.randint(4, (12,), generator=generator)
        ours, naive = triplet(e, labels, margin), naive_triplet(e, labels, margin)
        torch.testing.assert_close(ours, naive)
        torch.testing.assert_close(*(torch.autograd.grad(loss, e, retain_graph=True)[0] for loss in (ours, naive)))


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [1, 1, 1, 1]])
def test_without_pairs_or_without_negatives_there_is_no_triplet(labels):
    e = torch.randn(4, 3, requires_grad=True)
    loss = triplet(e, torch.tensor(labels), 1.0)
    loss.backward()
    assert loss == 0 and (e.grad == 0).all()


def test_embeddings_in_one_point_have_a_finite_gradient():
    e = torch.ones(6, 3, requires_grad=True)
    triplet(e, torch.tensor([0, 0, 1, 1, 2, 2]), 1.0).backward()
    assert e.grad.isfinite().all()


# update


def by_hand(twin, d, unseen):
    """F, L_global, L_local, and theta by name, of the naive two-step computation."""
    v = twin.values
    names = [name for name, _ in twin.named_parameters() if not name.startswith("metric")]
    theta = {name: dict(twin.named_parameters())[name] for name in names}
    F = cross_entropy(twin.h1(twin.encoder(x[~unseen])), y[~unseen])
    own = torch.autograd.grad(F, [*theta.values()], create_graph=v["order"] == 2, retain_graph=True)
    inner = {
        name: p - v["inner"] * twin.run.lr * bounded(g, v["clip"])
        for (name, p), g in zip(theta.items(), own, strict=True)
    }
    part = {name.removeprefix("encoder."): value for name, value in inner.items() if name.startswith("encoder")}
    r = functional_call(twin.encoder, part, x)
    logits = r @ inner["h1.weight"].T + inner["h1.bias"]
    L_global = naive_alignment(logits, y, d, unseen, v["temperature"])
    L_local = naive_triplet(twin.metric(r), y, v["margin"])
    return F, L_global, L_local, theta


def check(method, d, unseen, seed=3, **more):
    learner = make(method, **more)
    twin, v = before(learner), learner.values
    F, L_global, L_local, theta = by_hand(twin, d, unseen)
    meta = v["global"] * L_global + v["local"] * L_local
    gradients = torch.autograd.grad(meta, [*theta.values()], retain_graph=True)
    expected = F + v["local"] * sum(
        (g * p).sum()  # the gradient of the metric embedding
        for g, p in zip(
            torch.autograd.grad(L_local, [*twin.metric.parameters()], retain_graph=True),
            twin.metric.parameters(),
            strict=True,
        )
    )
    expected = expected + sum((bounded(g, v["clip"]) * p).sum() for g, p in zip(gradients, theta.values(), strict=True))
    terms, (step,) = steps_of(learner, (x, y, d), 0, seed)
    named = dict(loss=F + meta, L_cls=F, L_global=L_global, L_local=L_local)
    assert terms == pytest.approx({name: value.item() for name, value in named.items()}, rel=1e-4, abs=1e-7)
    assert step.optimizer == 0 and {name.split(".")[0] for name in step.gradients} == {"encoder", "h1", "metric"}
    assert_minimises(step, twin, expected, rtol=1e-3)
    return terms, step


def chosen(seed=3):
    torch.manual_seed(seed)
    return (0, 1, 3)[torch.randint(3, ())]


@pytest.mark.parametrize(
    "method",
    [
        "masf",
        "masf+order=1",
        "masf+inner=4+global=3+local=0.5+margin=1+temperature=0.5+clip=0",
        "masf+inner=4+global=3+local=0.5+clip=0+order=1",
        "masf+inner=5+global=5+local=0.2+clip=0.02",
        "masf+global=0+local=0.1",
        "masf+local=0+global=2",
        "masf+inner=0",
    ],
)
def test_masf_follows_the_task_gradient_and_the_meta_gradient_through_the_inner_step(method):
    check(method, d, d == chosen())


def test_the_orders_differ():
    first, second = (
        check(f"masf+inner=4+global=3+local=0.5+clip=0+order={order}", d, d == chosen())[1] for order in (1, 2)
    )
    one, two = first.gradients["h1.weight"], second.gradients["h1.weight"]
    assert (one - two).norm() > 0.01 * two.norm()


def test_every_domain_takes_its_turn_as_the_unseen_one():
    turns = [chosen(seed) for seed in range(6)]
    assert set(turns) == {0, 1, 3}
    for domain in (0, 1, 3):
        seed = turns.index(domain)
        check("masf+inner=5+local=0.1", d, d == domain, seed)


def test_a_batch_of_one_domain_is_split_in_two():
    check("masf+local=0.1", torch.ones(12, dtype=torch.long), torch.arange(12) % 2 == 0)


def test_the_step_is_the_gradient_by_finite_differences_of_the_loss_after_the_inner_step():
    """In float64: F(theta) + meta losses at theta - inner grad F(theta), entry by entry."""
    learner = make("masf+inner=10+global=3+local=0.5+margin=1+clip=0").double()
    twin, images, unseen = before(learner), x.double(), d == chosen()

    def loss():
        v, theta = twin.values, dict(twin.named_parameters())
        F = cross_entropy(twin.h1(twin.encoder(images[~unseen])), y[~unseen])
        names = [name for name in theta if not name.startswith("metric")]
        own = torch.autograd.grad(F, [theta[name] for name in names])
        moved = before(twin)
        with torch.no_grad():
            for (_, parameter), g in zip(list(moved.named_parameters())[: len(names)], own, strict=True):
                parameter -= v["inner"] * twin.run.lr * g
            r = moved.encoder(images)
            L_global = naive_alignment(moved.h1(r), y, d, unseen, v["temperature"])
            return (F + v["global"] * L_global + v["local"] * naive_triplet(moved.metric(r), y, v["margin"])).item()

    _, (step,) = steps_of(learner, (images, y, d), 0)
    size = 1e-6
    for name in ("encoder.backbone.0.weight", "encoder.backbone.9.weight", "h1.weight", "h1.bias", "metric.2.weight"):
        parameter, gradient = dict(twin.named_parameters())[name].data, step.gradients[name]
        place = torch.unravel_index(gradient.reshape(-1).abs().argmax(), gradient.shape)
        ends = []
        for shift in (size, -2 * size):
            parameter[place] += shift
            ends.append(loss())
        parameter[place] += size
        assert gradient[place].item() == pytest.approx((ends[0] - ends[1]) / (2 * size), rel=1e-4)


# the networks


def test_the_metric_embedding_has_the_authors_layers():
    metric = make("masf").metric
    assert metric(torch.zeros(2, 128)).shape == (2, 256) and metric[0].out_features == 1024
    assert metric[1](torch.tensor(-1.0)) == metric[3](torch.tensor(-1.0)) == torch.tensor(-0.2)


@pytest.mark.parametrize("method", ["masf", "masf+order=1"])
def test_only_the_pass_at_theta_updates_the_running_statistics(method):
    line = dict(backbone="resnet18", weights="none", dim=16)
    learner = make(method, **line)
    twin, unseen = before(learner), d == chosen()
    torch.manual_seed(3)
    learner.update(x, y, d, 0)
    twin.encoder(x[~unseen])
    theirs = dict(twin.encoder.named_buffers())
    for name, buffer in learner.encoder.named_buffers():
        torch.testing.assert_close(buffer, theirs[name])


def test_no_graph_outlives_the_step():
    learner = make("masf")
    learner.update(x, y, d, 0)
    assert not any(parameter.grad.requires_grad for parameter in learner.parameters())
