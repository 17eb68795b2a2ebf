"""MMD: maximum mean discrepancy between domains (Li et al., Domain Generalization with Adversarial Feature Learning,
CVPR 2018, without its autoencoder).

L = l(h1(r), y) + gamma(t) mean over pairs of source domains of MMD^2, Gaussian kernels of seven widths.
"""

import torch
from torch import Tensor

from cirl.methods.align import Alignment

WIDTHS = (1e-3, 1e-2, 1e-1, 1, 10, 100, 1000)


def mmd(a: Tensor, b: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of two samples: mean k(a, a) + mean k(b, b) - 2 mean k(a, b)."""
    return kernel(a, a).mean() + kernel(b, b).mean() - 2 * kernel(a, b).mean()


def kernel(a: Tensor, b: Tensor) -> Tensor:
    """Sum of Gaussian kernels exp(-w |a_i - b_j|^2)."""
    squares = (a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * a @ b.T).clamp_min(0)
    return torch.stack([(-width * squares).exp() for width in WIDTHS]).sum(0)


class MMD(Alignment):
    """Equal distributions of the features in all source domains, as far as the kernels see."""

    distance = staticmethod(mmd)
