import cmath
import math

import numpy as np
import pytest
import torch

from cirl import fourier

x, x_prime = torch.rand(2, 4, 3, 32, 32).unbind()


@pytest.mark.parametrize("size", [(32, 32), (31, 33)])
def test_recombining_amplitude_and_phase_gives_the_image_back(size):
    image = torch.rand(2, 3, *size)
    torch.testing.assert_close(fourier.recombine(*fourier.amplitude_phase(image), size), image, atol=1e-5, rtol=0)


def test_amplitude_and_phase_equal_a_naive_fourier_sum():
    image = torch.rand(1, 1, 6, 6, dtype=torch.double)
    A, P = fourier.amplitude_phase(image)
    for u in range(6):
        for v in range(4):
            terms = [
                image[0, 0, h, w] * cmath.exp(-2j * math.pi * (u * h + v * w) / 6) for h in range(6) for w in range(6)
            ]
            torch.testing.assert_close(torch.polar(A, P)[0, 0, u, v], sum(terms))


def test_lambda_zero_keeps_the_amplitude_and_lambda_one_takes_the_partners():
    A, A_prime = torch.rand(2, 4, 3, 8, 5).unbind()
    torch.testing.assert_close(fourier.mix_amplitude(A, A_prime, torch.zeros(4)), A)
    torch.testing.assert_close(fourier.mix_amplitude(A, A_prime, torch.ones(4)), A_prime)


def test_each_image_has_its_own_lambda():
    A, A_prime = torch.zeros(3, 1, 2, 2), torch.ones(3, 1, 2, 2)
    mixed = fourier.mix_amplitude(A, A_prime, torch.tensor([0.0, 0.25, 1.0]))
    assert mixed[:, 0, 0, 0].tolist() == [0.0, 0.25, 1.0]


def test_intervene_is_equations_4_5_and_6_clipped():
    lam = torch.rand(4)
    A, P = fourier.amplitude_phase(x)
    A_hat = fourier.mix_amplitude(A, fourier.amplitude_phase(x_prime)[0], lam)
    expected = fourier.recombine(A_hat, P, (32, 32)).clamp(0, 1)
    torch.testing.assert_close(fourier.intervene(x, x_prime, lam), expected, atol=1e-5, rtol=0)


def test_intervening_among_a_batch_is_intervening_with_partners_from_it():
    x, partner, lam = torch.rand(6, 3, 16, 12), torch.tensor([3, 3, 0, 5, 4, 1]), torch.rand(6)
    given = x.clone()
    torch.testing.assert_close(fourier.intervene_among(x, partner, lam), fourier.intervene(x, x[partner], lam))
    torch.testing.assert_close(x, given, atol=0, rtol=0)


def test_the_phase_is_kept_before_clipping():
    calm, partner = 0.4 + 0.2 * x, 0.4 + 0.2 * x_prime  # so that nothing is clipped
    mixed = fourier.intervene(calm, partner, torch.full((4,), 0.5))
    strong = fourier.amplitude_phase(calm)[0] > 0.5
    turn = fourier.amplitude_phase(mixed)[1] - fourier.amplitude_phase(calm)[1]
    assert torch.cos(turn)[strong].min() > 0.999


def flat_images():
    """Images with bins of amplitude 0: black, white, grey, one black channel, stripes, one white pixel."""
    images = torch.zeros(6, 3, 16, 12)
    images[1], images[2], images[3, 1:] = 1.0, 0.5, 0.25
    images[4, :, ::2] = 1.0
    images[5, :, 3, 4] = 1.0
    return images


@pytest.mark.parametrize("amount", [0.0, 0.3, 1.0])
def test_the_fast_path_is_equations_4_to_6_also_where_bins_have_no_amplitude(amount):
    flat, lam = flat_images(), torch.full((6,), amount)
    partners = torch.rand(6, 3, 16, 12)
    A, P = fourier.amplitude_phase(flat)
    assert (A == 0).sum() > 1000
    expected = fourier.recombine(
        fourier.mix_amplitude(A, fourier.amplitude_phase(partners)[0], lam), P, (16, 12)
    ).clamp(0, 1)
    torch.testing.assert_close(fourier.intervene(flat, partners, lam), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("amount", [0.3, 1.0])
def test_the_fast_path_among_a_batch_is_equations_4_to_6_also_where_bins_have_no_amplitude(amount):
    batch = torch.cat([flat_images(), torch.rand(6, 3, 16, 12)])
    partner, lam = torch.arange(12).flip(0), torch.full((12,), amount)
    A, P = fourier.amplitude_phase(batch)
    A_hat = fourier.mix_amplitude(A, A[partner], lam)
    expected = fourier.recombine(A_hat, P, (16, 12)).clamp(0, 1)
    torch.testing.assert_close(fourier.intervene_among(batch, partner, lam), expected, atol=1e-5, rtol=0)


def test_a_black_image_takes_the_partners_amplitude_at_phase_zero():
    """numpy's full transform: the phase of 0 is 0."""
    black, partner = torch.zeros(1, 3, 8, 8), torch.rand(1, 3, 8, 8)
    amplitude = np.abs(np.fft.fft2(partner.double().numpy()))
    expected = np.clip(np.real(np.fft.ifft2(0.7 * amplitude)), 0, 1)
    mixed = fourier.intervene(black, partner, torch.tensor([0.7]))
    np.testing.assert_allclose(mixed.numpy(), expected, atol=1e-5)


def test_images_without_any_contrast_stay_finite():
    flat = torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8), torch.full((3, 8, 8), 0.3)])
    assert fourier.intervene(flat, torch.rand(3, 3, 8, 8), torch.ones(3)).isfinite().all()


def test_lambda_stays_between_zero_and_eta():
    lam = fourier.sample_lam(1000, 0.2)
    assert lam.min() >= 0 and 0.15 < lam.max() <= 0.2


d = torch.tensor([0] * 8 + [1] * 4 + [2] * 2)


@pytest.mark.parametrize(
    ("sampling", "allowed"), [("intra", lambda a, b: a == b), ("inter", lambda a, b: a != b), ("random", None)]
)
def test_partners_come_from_where_the_sampling_says(sampling, allowed):
    for _ in range(50):
        index = fourier.partners(d, sampling)
        assert (index != torch.arange(len(d))).all()
        if allowed:
            assert allowed(d[index], d).all()


def test_a_random_partner_is_of_each_domain_equally_often():
    drawn = torch.cat([d[fourier.partners(d, "random")[:1]] for _ in range(3000)])
    shares = torch.bincount(drawn) / 3000
    # the first image cannot be its own partner, which leaves its domain 7/8 of a share
    torch.testing.assert_close(shares, torch.tensor([0.875, 1, 1]) / 2.875, atol=0.04, rtol=0)


def test_an_inter_partner_is_of_each_other_domain_equally_often():
    drawn = torch.cat([d[fourier.partners(d, "inter")[:8]] for _ in range(400)])
    torch.testing.assert_close(torch.bincount(drawn) / 3200, torch.tensor([0, 0.5, 0.5]), atol=0.04, rtol=0)


def test_an_image_without_candidates_is_its_own_partner():
    assert fourier.partners(torch.tensor([0, 0, 1]), "intra").tolist()[2] == 2
    assert fourier.partners(torch.zeros(3, dtype=torch.long), "inter").tolist() == [0, 1, 2]
