r"""Causal intervention upon the non-causal factors U (Sec. 3.2.1): new amplitude, same phase.

code          paper
x, x_prime    x^o and (x')^o, images in [0, 1], (B, 3, H, W)
A, P          amplitude and phase of the half spectrum, (B, 3, H, W // 2 + 1); a real image needs no more
lam, eta      lambda ~ U(0, eta), one per image
"""

import torch
from torch import Tensor


def amplitude_phase(x: Tensor) -> tuple[Tensor, Tensor]:
    r"""Eq. (4): amplitude A and phase P of the Fourier transform, F(x) = A exp(jP).

    The paper writes the phase with the opposite sign, which cancels in Eq. 6."""
    spectrum = torch.fft.rfft2(x)
    return spectrum.abs(), spectrum.angle()


def mix_amplitude(A: Tensor, A_prime: Tensor, lam: Tensor) -> Tensor:
    r"""Eq. (5): A_hat = (1 - lambda) A + lambda A', one lambda per image."""
    return torch.lerp(A, A_prime, lam.view(-1, 1, 1, 1))


def recombine(A_hat: Tensor, P: Tensor, size: tuple[int, int]) -> Tensor:
    r"""Eq. (6): x^a, the image of `size` (H, W) whose spectrum has amplitude A_hat and phase P."""
    return torch.fft.irfft2(torch.polar(A_hat, P), s=size)


def intervene(x: Tensor, x_prime: Tensor, lam: Tensor) -> Tensor:
    """Equations 4, 5 and 6 in one function, clipped to [0, 1]."""
    spectrum = torch.fft.rfft2(x)
    return _with_amplitude(x, spectrum, spectrum.abs(), torch.fft.rfft2(x_prime).abs(), lam)


def intervene_among(x: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    """The same for partners x' = x[partner] in the same batch: one transform serves both."""
    spectrum = torch.fft.rfft2(x)
    A = spectrum.abs()
    return _with_amplitude(x, spectrum, A, A[partner], lam)


def _with_amplitude(x, spectrum, A, A_prime, lam):
    """A_hat exp(jP) equals F(x) A_hat / A, so no angle is computed. If A is 0, the phase is 0, as in Eq. 6."""
    zero = A == 0
    scale = mix_amplitude(A, A_prime, lam) / (A + zero)
    return torch.fft.irfft2(spectrum.add_(zero).mul_(scale), s=x.shape[-2:]).clamp_(0, 1)


def sample_lam(count: int, eta: float, device: torch.device | str = "cpu") -> Tensor:
    """lambda ~ U(0, eta), one per image."""
    return eta * torch.rand(count, device=device)


def partners(d: Tensor, sampling: str) -> Tensor:
    """For each image of the batch the index of the image that lends its amplitude: a domain first, then an image.

    d: the domain of each image, (B,). `random` draws from every domain (never the image itself), `intra` from
    the image's own, `inter` from the others (Table 9). An image without any candidate is its own partner."""
    same = d[:, None] == d[None, :]  # (B, B)
    weight = 1 / same.sum(0).float().expand_as(same)  # each domain is equally likely
    if sampling != "random":
        weight = weight * (same if sampling == "intra" else ~same)
    itself = torch.eye(len(d), device=d.device)
    return torch.multinomial(weight * (1 - itself) + 1e-12 * itself, 1).squeeze(1)
