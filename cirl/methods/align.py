"""Alignment of the source domains' features: what CORAL and MMD share.

L = l(h1(r), y) + gamma(t) mean over pairs of source domains of a distance of their features; gamma(t) is ramped up,
since from scratch the features would collapse before they are of use.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, floats, over_pairs


class Alignment(Method):
    """A method adds its `distance` of two samples of features."""

    @staticmethod
    def distance(a: Tensor, b: Tensor) -> Tensor:
        raise NotImplementedError

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, float]:
        r = self.features(x)
        L_cls, L_align = cross_entropy(self.h1(r), y), over_pairs(self.distance, r, d)
        loss = L_cls + self.values["gamma"] * self.ramped(epoch) * L_align
        self.step(self.optimizers[0], loss, epoch)
        return floats(loss=loss, L_cls=L_cls, L_align=L_align)
