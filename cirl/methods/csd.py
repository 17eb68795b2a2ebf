"""CSD: Efficient Domain Generalization via Common-Specific Low-Rank Decomposition (Piratla et al., ICML 2020).

L = common l(W_0 r + b_0, y) + specific l(sum_k c_dk (W_k r + b_k), y) + ortho mean (W W^T - I)^2.
W_0, b_0 is the common classifier h1, the only one that predicts; k = 1 .. rank - 1 are the specific ones.
c_dk = tanh(a_dk) depends on the domain d for k > 0; for the common classifier it is tanh(a_0) in every domain.
W W^T holds, for each class, the products of the rows of all classifiers, (classes, rank, rank). The mean is over all
its entries, so the diagonal pulls the rows towards length 1.

This follows the authors' PyTorch code for ResNets, also in its initial values: W, b ~ N(0, 0.1^2), a_dk ~ N(0, 1e-4^2),
a_0 = 0.1 (there with noise of 1e-4). There the rank is 2 and the weights common, specific and ortho are 1. Their code
for AlexNet has no tanh, and leaves the diagonal out of the penalty.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached
from cirl.run.config import Run


class CSD(Method):
    """h1 is the common classifier; `specific` holds the others and the weights of all."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        count, domains = int(run.values["rank"]) - 1, len(run.settings.domains)
        for parameter in self.h1.parameters():
            nn.init.normal_(parameter, std=0.1)
        self.specific: Any = nn.Module()  # of the parameters W, b, a and a_0
        self.specific.W = nn.Parameter(0.1 * torch.randn(count, classes, run.dim))
        self.specific.b = nn.Parameter(0.1 * torch.randn(count, classes))
        self.specific.a = nn.Parameter(1e-4 * torch.randn(domains, count))
        self.specific.a_0 = nn.Parameter(torch.tensor(0.1))
        self.optimizers = self.make_optimizers(self.specific)

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        r, part = self.features(x), self.specific
        common = self.h1(r)
        own = torch.einsum("kcn,bn->bkc", part.W, r) + part.b
        mixed = part.a_0.tanh() * common + torch.einsum("bk,bkc->bc", part.a[d].tanh(), own)
        L_common, L_specific = cross_entropy(common, y), cross_entropy(mixed, y)
        L_ortho = overlap(torch.cat([self.h1.weight[None], part.W]))
        weights = self.values
        loss = weights["common"] * L_common + weights["specific"] * L_specific + weights["ortho"] * L_ortho
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss, L_cls=L_common, L_specific=L_specific, L_ortho=L_ortho)


def overlap(W: Tensor) -> Tensor:
    """Mean squared difference between W W^T of each class and the identity; W is (K, classes, N)."""
    rows = W.transpose(0, 1)  # (classes, K, N)
    return (rows @ rows.transpose(1, 2) - torch.eye(len(W), device=W.device)).square().mean()
