import math

import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of

from cirl.methods.groupdro import reweighted

x, y, d = batch()


def domain_losses(learner, domains):
    log_p = learner.h1(learner.encoder(x)).log_softmax(1)
    losses = {}
    for domain in sorted(set(domains.tolist())):
        rows = [i for i in range(12) if domains[i] == domain]
        losses[domain] = -sum(log_p[i, y[i]] for i in rows) / len(rows)
    return losses, -sum(log_p[i, y[i]] for i in range(12)) / 12


@pytest.mark.parametrize(
    ("method", "eta", "domains"),
    [
        ("groupdro", 0.01, d),
        ("groupdro+eta=0", 0.0, d),
        ("groupdro+eta=2", 2.0, torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 3, 3])),
        ("groupdro+eta=2", 2.0, torch.tensor([0, 3] * 6)),  # a source domain is missing in the batch
    ],
)
def test_groupdro_minimises_the_sum_of_domain_losses_with_exponentiated_weights(method, eta, domains):
    learner = make(method)
    q = {0: 0.5, 1: 0.3, 3: 0.2}
    learner.q = torch.tensor([0.5, 0.3, 0.0, 0.2])
    twin = before(learner)
    losses, mean = domain_losses(twin, domains)
    raised = {
        domain: q[domain] * math.exp(eta * losses[domain].item()) if domain in losses else q[domain] for domain in q
    }
    weights = {domain: value / sum(raised.values()) for domain, value in raised.items()}
    loss = sum(weights[domain] * value for domain, value in losses.items())
    terms, (step,) = steps_of(learner, (x, y, domains), epoch=0)
    expected = dict(loss=loss.item(), L_cls=mean.item(), worst=max(weights.values()))
    assert terms == pytest.approx(expected, rel=1e-4)
    assert_minimises(step, twin, loss)
    assert learner.q.tolist() == pytest.approx([weights[0], weights[1], 0, weights[3]], rel=1e-4)
    assert not learner.q.requires_grad


def test_the_weights_start_equal_on_the_sources_and_are_part_of_the_state():
    learner = make("groupdro+eta=1")
    assert learner.q.tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    learner.update(x, y, d, 0)
    other = make("groupdro+eta=1", seed=1)
    other.restore(learner.state())
    assert torch.equal(other.q, learner.q) and learner.q.std() > 0.01


def test_the_weights_move_to_the_worst_domain_and_sum_to_one():
    q, present = torch.tensor([1 / 3, 1 / 3, 0, 1 / 3]), torch.tensor([0, 1, 3])
    losses = torch.tensor([0.1, 2.0, 0.5])
    once = reweighted(q, present, losses, 0.01)
    naive = torch.tensor([1 / 3 * math.exp(0.01 * value) for value in losses])
    torch.testing.assert_close(once[present], naive / naive.sum())
    for _ in range(500):
        q = reweighted(q, present, losses, 0.01)
        assert q.sum().item() == pytest.approx(1)
    assert q.argmax() == 1 and q[1] > 0.99 and q[2] == 0
