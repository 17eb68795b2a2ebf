import math

import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy, interpolate, softplus

from cirl.methods.mmd_aae import kernel, laplace, squared_mmd

x, y, d = batch()


def k(u, v, size):
    return sum(torch.exp(-(u - v).square().sum() / (2 * width * size)) for width in (1, 5, 10)) / 3


def discrepancy(a, b, size=1):
    """Squared MMD of two samples by loops over pairs, without those of a row with itself."""

    def within(sample):
        pairs = [(i, j) for i in range(len(sample)) for j in range(len(sample)) if i != j]
        return sum(k(sample[i], sample[j], size) for i, j in pairs) / len(pairs)

    return within(a) + within(b) - 2 * sum(k(u, v, size) for u in a for v in b) / (len(a) * len(b))


def terms_by_hand(twin, scale, size):
    """The terms of one update with the noise of `steps_of`."""
    h = twin.encoder(x) @ twin.code.weight.T + twin.code.bias
    image = (x - twin.encoder.mean) / twin.encoder.std
    parts = [h[d == domain] for domain in (0, 1, 3)]
    pairs = [discrepancy(a, b, size) if a is not b else 0 for a in parts for b in parts]
    torch.manual_seed(3)
    one, other = torch.empty(2, 12, 128).exponential_()
    real, fake = (twin.discriminator(codes).sigmoid() for codes in (scale * (one - other), h.detach()))
    return {
        "L_cls": cross_entropy(twin.h1(h), y),
        "L_ae": (twin.decoder(h) - image).square().sum() / (12 * 3 * 32 * 32),
        "L_mmd": sum(pairs) / 9,
        "L_adv": -twin.discriminator(h).sigmoid().log().mean(),
        "L_dis": -(real.log().mean() + (1 - fake).log().mean()),
    }


@pytest.mark.parametrize(
    ("method", "epoch", "ramp", "ae", "mmd", "adv", "scale", "size"),
    [
        ("mmd_aae", 0, math.exp(-5), 0.1, 2, 0.1, 0.5**0.5, 128),
        ("mmd_aae+ae=0.7+mmd=30+adv=3+scale=2", 15, math.exp(-0.8), 0.7, 30, 3, 2, 128),
        ("mmd_aae+ae=0+mmd=900+adv=0", 40, 1, 0, 900, 0, 0.5**0.5, 128),
        ("mmd_aae+ae=0+mmd=9+adv=0+per_dimension=0", 40, 1, 0, 9, 0, 0.5**0.5, 1),
        ("mmd_aae+ae=0+mmd=0+adv=5", 49, 1, 0, 0, 5, 0.5**0.5, 128),
    ],
)
def test_mmd_aae_trains_the_codes_and_its_two_other_networks(method, epoch, ramp, ae, mmd, adv, scale, size):
    learner = make(method, epochs=50)
    learner.code.weight.data *= 0.7  # so that the codes are within the kernels' widths
    twin = before(learner)
    by_hand = terms_by_hand(twin, scale, size)
    L_cls, L_ae, L_mmd, L_adv, L_dis = by_hand.values()
    loss = L_cls + ae * L_ae + ramp * (mmd * L_mmd + adv * L_adv)
    terms, (first, second) = steps_of(learner, (x, y, d), epoch)
    expected = {"loss": loss, **by_hand}
    assert terms == pytest.approx({name: value.item() for name, value in expected.items()}, rel=1e-3, abs=1e-5)
    assert (first.optimizer, second.optimizer) == (0, 1)
    assert {name.split(".")[0] for name in first.gradients} == {"encoder", "code", "h1"}
    assert {name.split(".")[0] for name in second.gradients} == {"decoder", "discriminator"}
    assert_minimises(first, twin, loss, rtol=1e-3)
    assert_minimises(second, twin, L_ae + L_dis, rtol=1e-3)


def test_the_discrepancy_is_the_naive_loop_for_samples_of_different_sizes():
    torch.manual_seed(1)
    a, b = torch.randn(6, 3), torch.randn(4, 3) + 1
    torch.testing.assert_close(squared_mmd(a, b), discrepancy(a, b), rtol=1e-4, atol=1e-5)
    assert squared_mmd(a, a + 5) > squared_mmd(a, a + 0.5)


def test_the_kernel_is_the_mean_of_three_widths():
    a, b = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    assert kernel(a, a).item() == pytest.approx(1)
    assert kernel(a, b).item() == pytest.approx((math.exp(-12.5) + math.exp(-2.5) + math.exp(-1.25)) / 3)


@pytest.mark.parametrize("scale", [0.5**0.5, 3])
def test_the_prior_is_symmetric_with_the_absolute_mean_and_the_tails_of_a_laplace_distribution(scale):
    torch.manual_seed(0)
    sample = laplace(torch.Size((400, 500)), scale, x.device)
    assert sample.shape == (400, 500) and sample.mean().abs() < 0.01 * scale
    assert sample.abs().mean().item() == pytest.approx(scale, rel=0.01)
    assert sample.square().mean().item() == pytest.approx(2 * scale**2, rel=0.02)
    assert (sample.abs() > 3 * scale).float().mean().item() == pytest.approx(math.exp(-3), rel=0.03)


def test_the_decoder_learns_to_reconstruct():
    smooth = interpolate(torch.rand(12, 3, 4, 4), size=32, mode="bilinear")
    learner = make("mmd_aae+ae=1+mmd=0+adv=0+other_lr=0.01", epochs=1, schedule="constant")
    history = [learner.update(smooth, y, d, 1) for _ in range(100)]
    assert history[-1]["L_ae"] < 0.6 * history[0]["L_ae"]
    image = (smooth - learner.encoder.mean) / learner.encoder.std
    assert (learner.decoder(learner.features(smooth)) - image).square().mean() < 0.7 * image.var()


def test_a_trained_discriminator_pulls_codes_that_are_too_large_towards_the_prior():
    learner = make("mmd_aae+ae=0+mmd=0", lr=1e-9, epochs=1, schedule="constant")
    learner.code.weight.data *= 5
    terms = [learner.update(x, y, d, 1) for _ in range(60)]
    assert terms[-1]["L_dis"] < 0.5 * terms[0]["L_dis"]
    h = learner.features(x).detach().requires_grad_()
    assert h.abs().mean() > 1.5  # of the prior: 0.71
    (gradient,) = torch.autograd.grad(softplus(-learner.discriminator(h)).mean(), h)
    assert (gradient * h).sum() > 0


def test_codes_of_one_domain_alone_have_no_discrepancy():
    learner = make("mmd_aae+adv=0+ae=0")
    assert learner.update(x, y, torch.zeros(12, dtype=torch.long), 3)["L_mmd"] == 0
    assert learner.discrepancy(torch.randn(12, 128), d).item() != 0


def test_the_networks_beside_the_encoder_have_a_rate_of_their_own():
    learner = make("mmd_aae+other_lr=0.02", lr=0.5)
    assert [group["base_lr"] for group in learner.optimizers[1].param_groups] == [0.02, 0.02]
    assert [group["base_lr"] for group in learner.optimizers[0].param_groups] == [0.5] * 3
    shapes = [tuple(p.shape) for p in learner.discriminator.parameters()]
    assert shapes == [(128, 128), (128,), (1, 128), (1,)] and isinstance(learner.discriminator[1], torch.nn.ReLU)


@pytest.mark.parametrize("size", [16, 32, 45, 96])
def test_mmd_aae_works_at_any_image_size(size):
    learner = make("mmd_aae", image_size=size)
    images = torch.rand(6, 3, size, size)
    terms = learner.update(images, y[:6], d[:6], 0)
    assert all(math.isfinite(value) for value in terms.values())
