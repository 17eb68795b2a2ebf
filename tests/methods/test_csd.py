import pytest
import torch
from helpers import CLASSES, assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy

from cirl.methods.csd import overlap


def losses_by_hand(twin, x, y, d):
    r, K = twin.encoder(x), 1 + len(twin.specific.W)
    W = [twin.h1.weight, *twin.specific.W]
    b = [twin.h1.bias, *twin.specific.b]
    mixed = []
    for i in range(len(x)):
        c = [twin.specific.a_0, *twin.specific.a[d[i]]]
        mixed.append(sum(torch.tanh(c[k]) * (W[k] @ r[i] + b[k]) for k in range(K)))
    L_ortho = 0.0
    for row in range(CLASSES):
        for k in range(K):
            for m in range(K):
                L_ortho = L_ortho + (W[k][row] @ W[m][row] - float(k == m)) ** 2 / (CLASSES * K * K)
    return cross_entropy(r @ W[0].T + b[0], y), cross_entropy(torch.stack(mixed), y), L_ortho


@pytest.mark.parametrize("method", ["csd", "csd+rank=4+common=0.7+specific=1.3+ortho=0.4"])
def test_csd_minimises_the_common_and_the_specialised_loss_and_the_penalty(method):
    learner = make(method)
    with torch.no_grad():
        learner.specific.a.copy_(torch.randn_like(learner.specific.a))  # far from 0, where tanh is not the identity
        learner.specific.a_0.fill_(0.8)
    twin, weights = before(learner), learner.values
    common, specific, ortho = losses_by_hand(twin, *batch())
    expected = weights["common"] * common + weights["specific"] * specific + weights["ortho"] * ortho
    terms, (step,) = steps_of(learner, batch(), epoch=0)
    named = {"loss": expected, "L_cls": common, "L_specific": specific, "L_ortho": ortho}
    assert terms == pytest.approx({name: value.item() for name, value in named.items()}, rel=1e-4)
    assert step.optimizer == 0 and {"h1.bias", "specific.W", "specific.b", "specific.a", "specific.a_0"} <= set(
        step.gradients
    )
    assert_minimises(step, twin, expected)


def test_csd_starts_from_the_authors_values():
    learner = make("csd+rank=64")
    part = learner.specific
    assert part.W.shape == (63, CLASSES, 128) and part.b.shape == (63, CLASSES) and part.a.shape == (4, 63)
    for values, std in ((learner.h1.weight, 0.1), (part.W, 0.1), (part.b, 0.1), (part.a, 1e-4)):
        assert values.std().item() == pytest.approx(std, rel=0.15) and abs(values.mean().item()) < std / 5
    assert part.a_0.item() == pytest.approx(0.1)
    biases = torch.stack([make("csd", seed=seed).h1.bias for seed in range(12)])
    assert biases.std().item() == pytest.approx(0.1, rel=0.3)


def test_only_the_common_classifier_of_csd_predicts():
    learner = make("csd").eval()
    x, *_ = batch()
    torch.testing.assert_close(learner.predict(x), learner.encoder(x) @ learner.h1.weight.T + learner.h1.bias)


def test_the_penalty_of_csd_is_zero_for_orthonormal_rows_only():
    W = torch.zeros(2, 3, 4)
    W[0, :, 0], W[1, :, 1] = 1.0, 1.0
    assert overlap(W) == 0
    assert overlap(W * torch.tensor([1.0, 2.0]).view(2, 1, 1)).item() == pytest.approx(9 / 4)  # length counts
    W[1] = W[0]
    assert overlap(W).item() == pytest.approx(0.5)  # two of the four products are 1 instead of 0


def test_csd_makes_the_specific_part_orthogonal_to_the_common_one():
    learner = make("csd+ortho=20", lr=0.02)
    learner.specific.W.data = learner.h1.weight.data[None].clone()  # parallel at first
    first = learner.update(*batch(), 0)["L_ortho"]
    for _ in range(60):
        last = learner.update(*batch(), 0)["L_ortho"]
    assert first > 0.5 and last < 0.02
