"""CCSA: Unified Deep Supervised Domain Adaptation and Generalization (Motiian et al., ICCV 2017).

L = (1 - alpha) l(h1(r), y) + alpha [mean 1/2 D^2 over pairs of one class + mean 1/2 max(0, m - D)^2 over pairs of two],
D the distance of the features of two images from different domains.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, floats


class CCSA(Method):
    """Across domains: one class together, different classes a margin apart."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, float]:
        r = self.features(x)
        L_cls, L_pairs = cross_entropy(self.h1(r), y), contrastive(r, y, d, self.values["margin"])
        loss = (1 - self.values["alpha"]) * L_cls + self.values["alpha"] * L_pairs
        self.step(self.optimizers[0], loss, epoch)
        return floats(loss=loss, L_cls=L_cls, L_pairs=L_pairs)


def contrastive(r: Tensor, y: Tensor, d: Tensor, margin: float) -> Tensor:
    """Semantic alignment and separation over the pairs of the batch that lie in different domains."""
    distance = torch.cdist(r, r)
    across, same = d[:, None] != d[None], y[:, None] == y[None]
    together, apart = (across & same).float(), (across & ~same).float()
    alignment = (together * distance.square()).sum() / together.sum().clamp_min(1)
    separation = (apart * (margin - distance).clamp_min(0).square()).sum() / apart.sum().clamp_min(1)
    return 0.5 * (alignment + separation)
