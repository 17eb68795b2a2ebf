"""MixStyle: Domain Generalization with MixStyle (Zhou et al., ICLR 2021).

L = l(h1(g~(x)), y), g~ mixing the style of the maps after the first two stages with that of another image.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, floats, sample_beta
from cirl.methods.styles import restyled, style


class MixStyle(Method):
    """With probability p, styles are mixed with weight lambda ~ Beta(alpha, alpha), one per image."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, float]:
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
        return floats(loss=loss)


def mixed_style(maps: Tensor, other: Tensor, lam: Tensor) -> Tensor:
    """The maps with style lambda own + (1 - lambda) other; no gradient through the style."""
    lam = lam.view(-1, 1, 1, 1)
    mean, std = (part.detach() for part in style(maps))
    return restyled(maps, torch.lerp(mean[other], mean, lam), torch.lerp(std[other], std, lam))
