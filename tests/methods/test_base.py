"""What the methods share (base.py): the step and its schedule, the mixed images, domain-wise batches, the ramp."""

import math

import numpy as np
import pytest
import torch
from helpers import batch, make

from cirl import fourier
from cirl.methods.base import decay, ramp

x, y, d = batch()
B = len(x)


def test_clipping_bounds_the_gradient():
    learner = make("deepall", recipe="paper+clip=0.001")
    learner.update(x, y, d, 0)
    norm = torch.stack([p.grad.norm() for p in learner.parameters()]).norm()
    assert norm == pytest.approx(0.001, rel=0.01)


def test_the_seed_decides_the_first_weights():
    assert torch.equal(make().h1.weight, make().h1.weight)
    assert not torch.equal(make().h1.weight, make(seed=1).h1.weight)


def test_the_weight_of_the_factorization_loss_ramps_up_as_released():
    assert ramp(0, 5) == pytest.approx(math.exp(-5)) and ramp(2.5, 5) == pytest.approx(math.exp(-1.25))
    assert ramp(5, 5) == ramp(40, 5) == 1 and ramp(0, 0) == 1
    values = [ramp(t, 5) for t in range(6)]
    assert values == sorted(values)


def test_the_released_rate_drops_one_epoch_early_since_its_scheduler_is_stepped_first():
    paper, released = (make(recipe=recipe, epochs=50, schedule="0.4+0.8").run for recipe in ("paper", "released"))
    for epoch, early, late in (
        (18, 1, 1),
        (19, 0.1, 1),
        (20, 0.1, 0.1),
        (38, 0.1, 0.1),
        (39, 0.01, 0.1),
        (49, 0.01, 0.01),
    ):
        assert decay(released, epoch) == pytest.approx(early) and decay(paper, epoch) == pytest.approx(late)


# Method.intervened: Eqs. 4-6 as the recipe draws partners and lambda


def spectrum_mix(image, partner, lam):
    """The full transform of numpy in double precision, one image."""
    one, other = np.fft.fft2(image.double().numpy()), np.fft.fft2(partner.double().numpy())
    amplitude = (1 - lam) * np.abs(one) + lam * np.abs(other)
    return np.clip(np.real(np.fft.ifft2(amplitude * np.exp(1j * np.angle(one)))), 0, 1)


def test_the_halves_of_a_batch_of_pairs_swap_their_amplitudes_with_one_lambda():
    learner = make(recipe="released+pixels=float", eta=0.7)
    torch.manual_seed(8)
    lam = 0.7 * torch.rand(B // 2)
    torch.manual_seed(8)
    x_a = learner.intervened(x, d)
    for i in range(B // 2):
        j = i + B // 2
        for one, other in ((i, j), (j, i)):
            np.testing.assert_allclose(x_a[one].numpy(), spectrum_mix(x[one], x[other], lam[i].item()), atol=1e-5)


def test_any_image_lends_its_amplitude_with_a_lambda_for_each():
    learner = make(recipe="paper", sampling="inter", eta=0.7)
    torch.manual_seed(8)
    partner, lam = fourier.partners(d, "inter"), 0.7 * torch.rand(B)
    torch.manual_seed(8)
    x_a = learner.intervened(x, d)
    for i in range(B):
        np.testing.assert_allclose(x_a[i].numpy(), spectrum_mix(x[i], x[partner[i]], lam[i].item()), atol=1e-5)


def test_mixed_images_are_truncated_to_grey_levels_where_the_recipe_says():
    exact, cut = make(recipe="paper"), make(recipe="paper+pixels=uint8")
    images = []
    for learner in (exact, cut):
        torch.manual_seed(8)
        images.append(255 * learner.intervened(x, d))
    torch.testing.assert_close(images[1], images[1].round(), atol=1e-4, rtol=0)
    darker = images[0] - images[1]
    assert darker.min() > -1e-3 and darker.max() < 1 + 1e-3 and 0.3 < darker.mean() < 0.5
