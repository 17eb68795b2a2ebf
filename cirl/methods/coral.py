"""CORAL: Deep CORAL, Correlation Alignment for Deep Domain Adaptation (Sun and Saenko, ECCV workshops 2016).

L = l(h1(r), y) + gamma(t) mean over pairs of source domains of mean_ij (Cov_ij - Cov'_ij)^2.
"""

from torch import Tensor

from cirl.methods.align import Alignment


def covariance_distance(a: Tensor, b: Tensor) -> Tensor:
    """Mean squared difference of two covariance matrices."""
    return (a.T.cov() - b.T.cov()).square().mean()


class CORAL(Alignment):
    """Equal covariances of the features in all source domains."""

    distance = staticmethod(covariance_distance)
