"""Alignment of the source domains' features: what CORAL and MMD share.

L = l(h1(r), y) + gamma(t) mean over pairs of source domains of distance(r of one, r of the other)

where l is the mean cross entropy of the batch and gamma(t) ramps up over the first half of the run: trained from
scratch, a network whose features are aligned from the start does not learn. DomainBed has a constant gamma and batches
with equally many images of each domain. Domains with fewer than two images in the batch are left out of the mean.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached, over_pairs


class Alignment(Method):
    """A method adds its `distance` between two samples of features."""

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        raise NotImplementedError

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        r = self.features(x)
        L_cls, L_align = cross_entropy(self.h1(r), y), over_pairs(self.distance, r, d)
        loss = L_cls + self.values["gamma"] * self.ramped(epoch) * L_align
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss, L_cls=L_cls, L_align=L_align)
