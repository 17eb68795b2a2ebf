import pytest
import torch
from helpers import assert_minimises, batch, before, make, nearly_uniform_batch, steps_of
from torch.nn.functional import cross_entropy

from cirl.methods.sagnet import content_randomised, style_randomised

EPS = 1e-5


def statistics(maps):
    """Mean and unbiased variance of each image and channel, by hand."""
    pixels = maps.shape[2] * maps.shape[3]
    mean = maps.sum((2, 3), keepdim=True) / pixels
    return mean, ((maps - mean) ** 2).sum((2, 3), keepdim=True) / (pixels - 1)


def losses_by_hand(twin, x, y, seed):
    """L_cls, L_adv and L_style; the noise is drawn as in the update: CR's order, SR's order, SR's weights."""
    torch.manual_seed(seed)
    donor, other, alpha = torch.randperm(12), torch.randperm(12), torch.rand(12, 1, 1, 1)
    first, second, third, fourth = twin.encoder.stages()
    maps = second(first(twin.encoder.normalise(x)))
    mean, variance = statistics(maps)
    content = (maps - mean) / torch.sqrt(variance + EPS)
    mean_mix = alpha * mean + (1 - alpha) * mean[other]
    variance_mix = alpha * variance + (1 - alpha) * variance[other]
    logits = twin.h1(fourth(third(content * torch.sqrt(variance_mix + EPS) + mean_mix)))
    guess = content[donor].detach() * torch.sqrt(variance + EPS) + mean
    for layer in twin.style_net:
        guess = layer(guess)
    p = guess.exp() / guess.exp().sum(1, keepdim=True)
    L_adv = -sum(torch.log(p[i, c] + EPS) for i in range(12) for c in range(4)) / 48
    return cross_entropy(logits, y), L_adv, cross_entropy(guess, y)


@pytest.mark.parametrize("method", ["sagnet", "sagnet+adversarial=2.5"])
@pytest.mark.parametrize("seed", [3, 4])
def test_sagnet_minimises_the_adversarial_sum_and_the_style_net_its_own_loss(method, seed):
    learner = make(method)
    learner.style_net[-1].weight.data *= 15  # sure guesses, where the 1e-5 in the logarithm counts
    twin, (x, y, _) = before(learner), nearly_uniform_batch()
    L_cls, L_adv, L_style = losses_by_hand(twin, x, y, seed)
    expected = L_cls + learner.values["adversarial"] * L_adv
    terms, (first, second) = steps_of(learner, nearly_uniform_batch(), 0, seed)
    named = {"loss": expected, "L_cls": L_cls, "L_adv": L_adv, "L_style": L_style}
    assert terms == pytest.approx({name: value.item() for name, value in named.items()}, rel=1e-4)
    assert (first.optimizer, second.optimizer) == (0, 1)
    assert {name.split(".")[0] for name in first.gradients} == {"encoder", "h1"}
    assert {name.split(".")[0] for name in second.gradients} == {"style_net"}
    assert_minimises(first, twin, expected)
    assert_minimises(second, twin, L_style)


def test_the_style_net_starts_as_a_copy_of_the_last_two_of_four_stages():
    learner = make("sagnet", lr=0.2)
    *copied, head = learner.style_net
    assert len(copied) == 2 and head.weight.shape == learner.h1.weight.shape
    for own, original in zip(copied, learner.encoder.stages()[2:], strict=True):
        for a, b in zip(own.parameters(), original.parameters(), strict=True):
            assert torch.equal(a, b) and a is not b
    (group,) = learner.optimizers[1].param_groups
    assert group["base_lr"] == 0.2 and group["decays"] is True


def test_sagnet_predicts_with_the_plain_encoder():
    learner = make("sagnet").eval()
    x, *_ = batch()
    torch.testing.assert_close(learner.predict(x), learner.h1(learner.encoder(x)))


def test_sagnet_randomises_style_or_content_and_leaves_the_other():
    maps, other = torch.randn(4, 5, 6, 6), torch.tensor([1, 2, 3, 0])
    one = torch.ones(4, 1, 1, 1)
    torch.testing.assert_close(style_randomised(maps, other, one), maps, rtol=1e-4, atol=1e-4)
    borrowed = statistics(style_randomised(maps, other, 0 * one))
    own = statistics(content_randomised(maps, other))
    for given, kept, theirs in zip(own, statistics(maps), borrowed, strict=True):
        torch.testing.assert_close(given, kept, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(theirs, kept[other], rtol=1e-3, atol=1e-4)


def test_the_borrowed_content_receives_no_gradient():
    maps, other = torch.randn(4, 5, 6, 6, requires_grad=True), torch.tensor([1, 2, 3, 0])
    (gradient,) = torch.autograd.grad(content_randomised(maps, other)[0].square().sum(), maps)
    assert gradient[0].any() and not gradient[1:].any()
