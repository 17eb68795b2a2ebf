"""MixStyle: Domain Generalization with MixStyle (Zhou et al., ICLR 2021).

L = l(h1(g~(x)), y). After each of the first two stages, with probability p for the whole batch, g~ replaces maps f by
sigma_mix (f - mu) / sigma + mu_mix, where mu and sigma are the mean and standard deviation over the pixels, and
mu_mix = lambda mu + (1 - lambda) mu', sigma_mix = lambda sigma + (1 - lambda) sigma'.
mu', sigma' belong to another image of the batch; lambda ~ Beta(alpha, alpha), one per image.

As in the authors' code, all statistics, own and borrowed, are detached, the variance is unbiased, 1e-6 is added to it,
and the other images are a random permutation of the batch ("random shuffle"). The authors mix after three stages on
PACS and after two on Office-Home; here it is two everywhere.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached, sample_beta
from cirl.methods.styles import style

EPSILON = 1e-6


class MixStyle(Method):
    """Styles are mixed in training only; `predict` uses the plain encoder."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        first, second, *rest = self.encoder.stages()
        maps = self.encoder.normalise(x)
        for stage in (first, second):
            maps = stage(maps)
            if torch.rand(()) < self.values["p"]:
                lam = sample_beta(self.values["alpha"], len(x), x.device)
                maps = mixed_style(maps, torch.randperm(len(x), device=x.device), lam)
        for stage in rest:
            maps = stage(maps)
        loss = cross_entropy(self.h1(maps), y)
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss)


def mixed_style(maps: Tensor, other: Tensor, lam: Tensor) -> Tensor:
    """The maps with style lambda own + (1 - lambda) other; no gradient through any statistic."""
    lam = lam.view(-1, 1, 1, 1)
    mean, variance = style(maps.detach())
    std = (variance + EPSILON).sqrt()
    return (maps - mean) / std * torch.lerp(std[other], std, lam) + torch.lerp(mean[other], mean, lam)
