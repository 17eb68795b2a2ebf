import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy


def check(method, d, unseen, seed=3):
    """One update against the two-term sum: the inner step is made on a copy, parameter by parameter."""
    learner = make(method)
    inner_lr, beta = learner.values["inner_lr"], learner.values["beta"]
    twin, there, (x, y, _) = before(learner), before(learner), batch()
    F = cross_entropy(twin.h1(twin.encoder(x[~unseen])), y[~unseen])
    theta = dict(twin.named_parameters())
    own = dict(zip(theta, torch.autograd.grad(F, [*theta.values()], retain_graph=True), strict=True))
    with torch.no_grad():
        for name, parameter in there.named_parameters():
            parameter -= inner_lr * own[name]
    G = cross_entropy(there.h1(there.encoder(x[unseen])), y[unseen])
    test = dict(zip(theta, torch.autograd.grad(G, [*there.parameters()]), strict=True))
    expected = F + beta * sum((test[name] * theta[name]).sum() for name in theta)  # has the first-order gradient
    terms, (step,) = steps_of(learner, (x, y, d), 0, seed)
    F, G = F.item(), G.item()
    assert terms == pytest.approx({"loss": F + beta * G, "L_cls": F, "L_test": G}, rel=1e-4)
    assert step.optimizer == 0
    assert_minimises(step, twin, expected)


def test_mldg_follows_the_first_order_sum_and_every_domain_takes_its_turn_as_the_unseen_one():
    d, drawn = batch()[2], []
    for seed in range(6):
        torch.manual_seed(seed)
        drawn.append((0, 1, 3)[torch.randint(3, ())])
        if drawn.count(drawn[-1]) == 1:
            check("mldg+inner_lr=0.2+beta=0.7", d, d == drawn[-1], seed)
    assert set(drawn) == {0, 1, 3}


def test_a_batch_of_one_domain_is_split_in_two_by_mldg():
    check("mldg", torch.ones(12, dtype=torch.long), torch.arange(12) % 2 == 0)


def test_without_beta_mldg_is_the_cross_entropy_of_the_other_domains():
    d = batch()[2]
    torch.manual_seed(3)
    check("mldg+beta=0", d, d == (0, 1, 3)[torch.randint(3, ())])
