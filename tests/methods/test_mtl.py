import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy


def loss_by_hand(twin, batch, ema):
    """The loss, and the embeddings after the step."""
    x, y, d = batch
    r, embeddings = twin.encoder(x), twin.embeddings.clone()
    losses, kept = [], twin.embeddings.clone()
    for i in range(len(x)):
        same = [r[j] for j in range(len(x)) if d[j] == d[i]]
        e = ema * sum(same) / len(same) + (1 - ema) * embeddings[d[i]]
        kept[d[i]] = e.detach()
        losses.append(cross_entropy(twin.h1(torch.cat([r[i], e])), y[i]))
    return sum(losses) / len(losses), kept


@pytest.mark.parametrize("method", ["mtl", "mtl+ema=0.6"])
def test_mtl_minimises_the_cross_entropy_of_features_joined_to_the_domains_embedding(method):
    """Two steps, the second with what the first has stored; domain 3 is in the second only, the target 2 never."""
    learner = make(method)
    learner.embeddings[:] = torch.randn(4, 128)
    x, y, d = batch()
    for part in (x, y, torch.where(d == 3, 1, d)), (x, y, d):
        twin = before(learner)
        expected, kept = loss_by_hand(twin, part, learner.values["ema"])
        terms, (step,) = steps_of(learner, part, epoch=0)
        assert terms == pytest.approx({"loss": expected.item()}, rel=1e-5)
        assert step.optimizer == 0
        assert_minimises(step, twin, expected)
        torch.testing.assert_close(learner.embeddings, kept)
        assert torch.equal(learner.embeddings[2], twin.embeddings[2]) and not learner.embeddings.requires_grad


def test_the_new_mean_weighs_ema_and_the_embeddings_start_from_zero():
    learner = make("mtl+ema=0.9")
    r, d = torch.randn(12, 128), batch()[2]
    assert (learner.embeddings == 0).all()
    for i in (1, 2, 3):
        joined = learner.embed(r, d)
        torch.testing.assert_close(learner.embeddings[1], (1 - 0.1**i) * r[d == 1].mean(0))
        torch.testing.assert_close(joined[1], learner.embeddings[1])
    assert make("mtl").values["ema"] == 0.99


def test_at_inference_the_mean_of_the_batch_replaces_the_embedding():
    learner = make("mtl").eval()
    x, *_ = batch()
    r = learner.encoder(x)
    expected = torch.stack([learner.h1(torch.cat([row, sum(r) / 12])) for row in r])
    torch.testing.assert_close(learner.predict(x), expected)
