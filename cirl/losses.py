r"""The losses of Sec. 3.2 as pure functions of tensors.

code          paper
R, r_o, r_a   representations of a batch, of its originals, of its augmented images, (B, N)
C             correlation matrix between the dimensions of r_o and r_a, (N, N)
m_o, m_a      masks in [0, 1], (B, N)
h1, h2        the classifiers of the superior and of the inferior dimensions
tau           weight of L_Fac
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

EPSILON = 1e-8  # inside the root: keeps a dead ReLU dimension, and its gradient, finite


def z_score(R: Tensor, unbiased: bool = False) -> Tensor:
    r"""Eq. (15): each dimension (column) with mean 0 and standard deviation 1 over the batch.

    The printed index runs over N; as the text says, the B images of the batch are meant."""
    variance = R.var(0, unbiased=unbiased, keepdim=True)
    return (R - R.mean(0, keepdim=True)) * torch.rsqrt(variance + EPSILON)


def correlation_matrix(r_o: Tensor, r_a: Tensor, unbiased: bool = False) -> Tensor:
    r"""Eq. (9): C_ij = <z_i^o, z_j^a> / (|z_i^o| |z_j^a|), (N, N).

    A z-scored column has norm sqrt(B), so the product of the two norms is B."""
    return z_score(r_o, unbiased).T @ z_score(r_a, unbiased) / len(r_o)


def invariance(C: Tensor) -> Tensor:
    r"""Eq. (7): mean correlation of each dimension with itself under the intervention; to be maximised."""
    return C.diagonal().mean()


def redundancy(C: Tensor) -> Tensor:
    r"""Eq. (8): mean correlation of different dimensions; to be minimised."""
    return (C.sum() - C.diagonal().sum()) / (len(C) * (len(C) - 1))


def factorization_loss(C: Tensor) -> Tensor:
    r"""Eq. (10): L_Fac = 1/2 ||C - I||_F^2."""
    return 0.5 * (_invariance_cost(C).sum() + _redundancy_cost(C))


def released_factorization_loss(C: Tensor) -> Tensor:
    """What the authors' code minimises: mean_i (C_ii - 1)^2 + 0.005 mean_{i != j} C_ij^2 (ledger, row 1)."""
    return _invariance_cost(C).mean() + 0.005 * _redundancy_cost(C) / (len(C) * (len(C) - 1))


def barlow_factorization_loss(C: Tensor) -> Tensor:
    """The weighting of Barlow Twins, from which L_Fac descends: sum over i, plus 0.005 of the sum over i != j."""
    return _invariance_cost(C).sum() + 0.005 * _redundancy_cost(C)


FACTORIZATION: dict[str, Callable[[Tensor], Tensor]] = {
    "frobenius": factorization_loss,
    "released": released_factorization_loss,
    "barlow": barlow_factorization_loss,
}


def classification_loss(logits_o: Tensor, logits_a: Tensor, y: Tensor) -> Tensor:
    r"""Eq. (11): L_cls = l(h(r^o), y) + l(h(r^a), y), l the cross entropy."""
    return cross_entropy(logits_o, y) + cross_entropy(logits_a, y)


def masked_losses(
    h1: Callable, h2: Callable, r_o: Tensor, r_a: Tensor, m_o: Tensor, m_a: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Eq. (13): L_sup through h1 on the superior dimensions m, L_inf through h2 on the inferior 1 - m."""
    L_sup = classification_loss(h1(r_o * m_o), h1(r_a * m_a), y)
    L_inf = classification_loss(h2(r_o * (1 - m_o)), h2(r_a * (1 - m_a)), y)
    return L_sup, L_inf


def objectives(L_sup: Tensor, L_inf: Tensor, L_fac: Tensor | float, tau: float) -> tuple[Tensor, Tensor]:
    r"""Eq. (14): what generator and classifiers minimise, and what the masker minimises."""
    return L_sup + L_inf + tau * L_fac, L_sup - L_inf


def _invariance_cost(C):
    return (C.diagonal() - 1).square()


def _redundancy_cost(C):
    return C.square().sum() - C.diagonal().square().sum()
