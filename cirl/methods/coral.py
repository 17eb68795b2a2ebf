"""CORAL: Deep CORAL, Correlation Alignment for Deep Domain Adaptation (Sun and Saenko, ECCV workshops 2016).

L = l(h1(r), y) + gamma(t) mean over pairs of source domains of [mean_i (mu_i - mu'_i)^2 + mean_ij (Cov_ij - Cov'_ij)^2]

as in DomainBed, which aligns the means as well. The covariance term is four times that of the paper, 1/(4 N^2) times
the squared Frobenius norm; the paper has no term for the means.
"""

from torch import Tensor

from cirl.methods.align import Alignment


class CORAL(Alignment):
    """Equal means and covariances of the features in all source domains."""

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        means = (a.mean(0) - b.mean(0)).square().mean()
        return means + (a.T.cov() - b.T.cov()).square().mean()
