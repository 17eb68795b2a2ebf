"""CSD: Efficient Domain Generalization via Common-Specific Low-Rank Decomposition (Piratla et al., ICML 2020).

L = l(W_c r, y) + l((W_c + sum_k a_dk W_k) r, y) + ortho penalty; W_c alone is what is tested.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cirl.config import Run
from cirl.methods.base import Method, floats


class CSD(Method):
    """h1 is the common classifier; rank - 1 specific ones are weighed by each domain in its own way."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        self.specific = nn.Module()
        count = int(run.values["rank"]) - 1
        self.specific.W = nn.Parameter(torch.randn(count, classes, run.dim) * run.dim**-0.5)
        self.specific.a = nn.Parameter(torch.zeros(len(run.settings.domains), count) + 0.1)
        self.optimizers = self.make_optimizers(self.specific)

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, float]:
        r = self.features(x)
        common = self.h1(r)
        own = torch.einsum("bk,kcn,bn->bc", self.specific.a[d], self.specific.W, r)
        L_common, L_specific = cross_entropy(common, y), cross_entropy(common + own, y)
        L_ortho = overlap(torch.cat([self.h1.weight[None], self.specific.W]))
        weights = self.values
        loss = weights["common"] * L_common + weights["specific"] * L_specific + weights["ortho"] * L_ortho
        self.step(self.optimizers[0], loss, epoch)
        return floats(loss=loss, L_cls=L_common, L_specific=L_specific, L_ortho=L_ortho)


def overlap(W: Tensor) -> Tensor:
    """Of matrices (K, classes, N): for each class the mean squared cosine of their rows; 0 if orthogonal."""
    rows = nn.functional.normalize(W, dim=2).transpose(0, 1)  # (classes, K, N)
    gram = rows @ rows.transpose(1, 2)
    return (gram - torch.eye(len(W), device=W.device)).square().mean()
