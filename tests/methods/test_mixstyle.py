import pytest
import torch
from helpers import assert_minimises, batch, before, make, nearly_uniform_batch, steps_of
from torch.nn.functional import cross_entropy

from cirl.methods.mixstyle import mixed_style
from cirl.methods.styles import style


def statistics(maps):
    """Mean and unbiased variance of each image and channel, by hand."""
    pixels = maps.shape[2] * maps.shape[3]
    mean = maps.sum((2, 3)) / pixels
    centred = maps - mean[:, :, None, None]
    return mean, (centred * centred).sum((2, 3)) / (pixels - 1)


def mixed_by_hand(maps, lam, other):
    mean, variance = statistics(maps.detach())
    std = torch.sqrt(variance + 1e-6)
    images = []
    for i, j in enumerate(other.tolist()):
        mean_mix = lam[i] * mean[i] + (1 - lam[i]) * mean[j]
        std_mix = lam[i] * std[i] + (1 - lam[i]) * std[j]
        normed = (maps[i] - mean[i][:, None, None]) / std[i][:, None, None]
        images.append(normed * std_mix[:, None, None] + mean_mix[:, None, None])
    return torch.stack(images)


def check(method, seed):
    """One update against the naive loss; returns after which of the two stages styles were mixed."""
    learner = make(method)
    twin, (x, y, _) = before(learner), nearly_uniform_batch()
    alpha, applied = learner.values["alpha"], []
    torch.manual_seed(seed)
    maps = twin.encoder.normalise(x)
    for i, stage in enumerate(twin.encoder.stages()):
        maps = stage(maps)
        if i < 2:
            applied.append(torch.rand(()).item() < learner.values["p"])
            if applied[-1]:
                lam = torch.distributions.Beta(alpha, alpha).sample((12,))
                maps = mixed_by_hand(maps, lam, torch.randperm(12))
    expected = cross_entropy(twin.h1(maps), y)
    terms, (step,) = steps_of(learner, nearly_uniform_batch(), 0, seed)
    assert terms == pytest.approx({"loss": expected.item()}, rel=1e-5)
    assert step.optimizer == 0
    assert_minimises(step, twin, expected)
    return tuple(applied)


def test_mixstyle_minimises_the_cross_entropy_with_mixed_styles_after_either_of_two_stages():
    assert {check("mixstyle", seed) for seed in range(8)} == {(a, b) for a in (True, False) for b in (True, False)}


@pytest.mark.parametrize(("method", "applied"), [("mixstyle+p=1+alpha=2", True), ("mixstyle+p=0", False)])
def test_mixstyle_mixes_always_or_never(method, applied):
    assert check(method, 3) == (applied, applied)


def test_with_lambda_one_the_gradients_are_those_of_deepall():
    """The own statistics are constants, as the borrowed ones are, so nothing but the identity remains."""
    maps, weight = torch.randn(3, 4, 5, 5, requires_grad=True), torch.randn(3, 4, 5, 5)
    result = mixed_style(maps, torch.tensor([1, 2, 0]), torch.ones(3))
    torch.testing.assert_close(result, maps, rtol=1e-4, atol=1e-4)
    (gradient,) = torch.autograd.grad((weight * result).sum(), maps)
    torch.testing.assert_close(gradient, weight)


def test_mixstyle_keeps_the_content_and_mixes_the_style():
    maps, other = torch.randn(3, 4, 5, 5), torch.tensor([1, 2, 0])
    half = mixed_style(maps, other, torch.full((3,), 0.5))
    mean, variance = (part[:, :, None, None] for part in statistics(maps))
    torch.testing.assert_close(style(half)[0], (mean + mean[other]) / 2, rtol=1e-3, atol=1e-4)
    std = (variance.sqrt() + variance[other].sqrt()) / 2
    torch.testing.assert_close(style(half)[1].sqrt(), std, rtol=1e-3, atol=1e-4)


def test_the_style_of_maps_is_the_mean_and_the_unbiased_variance_over_the_pixels():
    maps = torch.randn(3, 4, 5, 6)
    for given, expected in zip(style(maps), statistics(maps), strict=True):
        assert given.shape == (3, 4, 1, 1)
        torch.testing.assert_close(given[:, :, 0, 0], expected)


def test_mixstyle_changes_training_only():
    learner = make("mixstyle+p=1").eval()
    x, *_ = batch()
    torch.testing.assert_close(learner.predict(x), learner.h1(learner.encoder(x)))
