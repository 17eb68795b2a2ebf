r"""The k-hot mask of the adversarial mask module (supplement, Eq. 16).

code          paper
log_z         log of the masker's probability vector z, (B, N); any logits do, a softmax is shift invariant
k             number of draws, floor(kappa N)
temperature   the tau of Eq. 16, 0.5 (the paper uses the letter twice)

`draw`, `independent` and `recursive` are the definitions. Training uses `gumbel_mask` and `recursive_mask`, which draw
and differentiate the same masks several times faster (_gumbel_fused.py); the tests compare them on equal noise.
"""

import torch
from torch import Tensor

from cirl._gumbel_fused import _GumbelMask, _RecursiveMask


def draw(log_z: Tensor, xi: Tensor, temperature: float = 0.5) -> Tensor:
    r"""One draw of Eq. (16): softmax((log z + xi) / T), xi Gumbel noise -log(-log U)."""
    return torch.softmax((log_z + xi) / temperature, -1)


def independent(log_z: Tensor, xi: Tensor, temperature: float = 0.5) -> Tensor:
    r"""Eq. (16): m_j = max over k draws l of softmax_j((log z + xi^l) / T); xi is (k, B, N)."""
    return draw(log_z, xi, temperature).amax(0)


def recursive(log_z: Tensor, xi: Tensor, temperature: float = 0.5) -> Tensor:
    """What the authors' code draws (ledger, row 2): each draw takes the previous one as its logits.

    After one draw the masker is forgotten, so this is a random soft dropout."""
    p, m = log_z, torch.zeros_like(log_z)
    for noise in xi:
        p = draw(p, noise, temperature)
        m = torch.maximum(m, p)
    return m


def gumbel_mask(log_z: Tensor, k: int, temperature: float = 0.5) -> Tensor:
    """`independent` with k fresh draws, (B, N) in [0, 1]."""
    return _GumbelMask.apply(log_z, k, temperature)


def recursive_mask(log_z: Tensor, k: int, temperature: float = 0.5) -> Tensor:
    """`recursive` with k fresh draws, (B, N) in [0, 1]."""
    return _RecursiveMask.apply(log_z, k, temperature)


DRAWS = {"independent": gumbel_mask, "recursive": recursive_mask}
