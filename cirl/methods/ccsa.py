"""CCSA: Unified Deep Supervised Domain Adaptation and Generalization (Motiian et al., ICCV 2017).

L = (1 - alpha) l(h1(r), y) + alpha(t) [mean over pairs of one class of 1/2 D^2
                                        + mean over pairs of two classes of 1/2 max(0, margin - D)^2]

where D is the distance between the features of two images of different domains, over all such pairs of the batch, and
alpha(t) is alpha times the ramp of the other penalties (base.py); alpha is constant in the paper. The authors' code
differs from their equations, which are followed here: no factor 1/2, and one mean over lists with three pairs of two
classes for each pair of one class.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached, distances


class CCSA(Method):
    """Across domains: one class together, different classes a margin apart."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        r = self.features(x)
        L_cls, L_pairs = cross_entropy(self.h1(r), y), contrastive(r, y, d, self.values["margin"])
        loss = (1 - self.values["alpha"]) * L_cls + self.values["alpha"] * self.ramped(epoch) * L_pairs
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss, L_cls=L_cls, L_pairs=L_pairs)


def contrastive(r: Tensor, y: Tensor, d: Tensor, margin: float) -> Tensor:
    """Semantic alignment and separation over the pairs of the batch that lie in different domains."""
    distance = distances(r, r)
    across, same = (d[:, None] != d[None]).triu(), y[:, None] == y[None]  # each pair once
    together, apart = (across & same).float(), (across & ~same).float()
    alignment = (together * distance.square()).sum() / together.sum().clamp_min(1)
    separation = (apart * (margin - distance).clamp_min(0).square()).sum() / apart.sum().clamp_min(1)
    return 0.5 * (alignment + separation)
