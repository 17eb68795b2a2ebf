import pytest
import torch
from helpers import assert_minimises, batch, before, make, steps_of

from cirl import fourier

x, y, d = batch()


@pytest.mark.parametrize("recipe", ["paper", "released"])
def test_mix_minimises_the_mean_cross_entropy_of_originals_and_mixtures(recipe):
    learner = make("mix", recipe=recipe, eta=0.6)
    twin = before(learner)
    torch.manual_seed(3)
    if recipe == "paper":
        partner, lam = fourier.partners(d, "random"), 0.6 * torch.rand(12)
        x_a = fourier.intervene(x, x[partner], lam)
    else:
        lam = 0.6 * torch.rand(6)
        x_a = fourier.intervene(x, torch.cat([x[6:], x[:6]]), torch.cat([lam, lam]))
        x_a = (255 * x_a).floor() / 255
    log_p = [twin.h1(twin.encoder(view)).log_softmax(1) for view in (x, x_a)]
    expected = -sum(view[i, y[i]] / 24 for view in log_p for i in range(12))
    terms, (step,) = steps_of(learner, batch(), epoch=0)
    assert terms == pytest.approx({"loss": expected.item()}, rel=1e-5)
    assert_minimises(step, twin, expected)


def test_without_mixture_mix_is_deepall():
    (mixed, (step,)), (plain, (other,)) = (
        steps_of(make(method, eta=0.0, recipe="paper"), batch(), 0) for method in ("mix", "deepall")
    )
    assert mixed["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    for name, gradient in step.gradients.items():
        torch.testing.assert_close(gradient, other.gradients[name], rtol=1e-3, atol=1e-5)
