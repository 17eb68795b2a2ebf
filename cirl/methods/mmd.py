"""MMD: maximum mean discrepancy between domains (Li et al., Domain Generalization with Adversarial Feature Learning,
CVPR 2018, without its autoencoder).

L = l(h1(r), y) + gamma(t) mean over pairs of source domains of MMD^2(a, b),
MMD^2(a, b) = mean k(a_i, a_j) + mean k(b_i, b_j) - 2 mean k(a_i, b_j), k(u, v) = sum over widths w of exp(-w |u - v|^2)

with the seven widths of DomainBed. The first two means leave out i = j, which makes the estimate unbiased. DomainBed
keeps i = j (`mmd+biased=1`). With n = 10 images per domain this adds (k(u, u) - mean k(a_i, a_j)) / n for each domain,
even if the distributions are equal, and is smallest if all features coincide: it rewards collapse.
"""

import torch
from torch import Tensor

from cirl.methods.align import Alignment
from cirl.methods.base import distances

WIDTHS = (1e-3, 1e-2, 1e-1, 1, 10, 100, 1000)


class MMD(Alignment):
    """Equal distributions of the features in all source domains, as far as the kernels can tell."""

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        within = mean_kernel if self.values["biased"] else mean_kernel_of_different
        return within(a) + within(b) - 2 * kernel(a, b).mean()


def mean_kernel(a: Tensor) -> Tensor:
    return kernel(a, a).mean()


def mean_kernel_of_different(a: Tensor) -> Tensor:
    """The mean over pairs of different rows."""
    k = kernel(a, a)
    return (k.sum() - k.diagonal().sum()) / (len(a) * (len(a) - 1))


def kernel(a: Tensor, b: Tensor) -> Tensor:
    """Sum of the Gaussian kernels exp(-w |a_i - b_j|^2)."""
    squares = distances(a, b).square()
    return torch.stack([(-width * squares).exp() for width in WIDTHS]).sum(0)
