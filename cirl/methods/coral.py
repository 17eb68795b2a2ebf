"""CORAL: Deep CORAL, Correlation Alignment for Deep Domain Adaptation (Sun and Saenko, ECCV workshops 2016).

L = l(h1(r), y) + gamma(t) mean over pairs of source domains of mean_ij (Cov_ij - Cov'_ij)^2, gamma(t) ramped up.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, floats, over_pairs


class CORAL(Method):
    """Equal covariances of the features in all source domains."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: int) -> dict[str, float]:
        r = self.features(x)
        L_cls, L_align = cross_entropy(self.h1(r), y), over_pairs(covariance_distance, r, d)
        loss = L_cls + self.values["gamma"] * self.ramped(epoch) * L_align
        self.step(self.optimizers[0], loss, epoch)
        return floats(loss=loss, L_cls=L_cls, L_align=L_align)


def covariance_distance(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared difference of two covariance matrices."""
    return (a.T.cov() - b.T.cov()).square().mean()
