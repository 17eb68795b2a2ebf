"""RSC: Self-Challenging Improves Cross-Domain Generalization (Huang et al., ECCV 2020).

L = l(h1(r * m), y). The mask m sets to 0 the share f of the features with the largest gradients of the true class's
logit, for the share b of the images whose true class loses most probability by it; for the other images m = 1.

This is the version of DomainBed, on the pooled features. The authors' code draws in each step whether to mute channels
or positions of the last maps, leaves out the images that lose less than 0.0001, adds mirrored images to the batch, and
raises b from 0.3 by 0.2 every ten epochs. Here b is ramped up over the first half of the run (`Method.ramped`): trained
from scratch, a network that is challenged from the start does not learn.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached


class RSC(Method):
    """The mask is a constant: no gradient passes through it."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        r = self.features(x)
        loss = cross_entropy(self.h1(r * self.mask(r, y, self.ramped(epoch))), y)
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss)

    @torch.no_grad()
    def mask(self, r: Tensor, y: Tensor, ramp: float) -> Tensor:
        """m, (B, N), for the share b * ramp of the images."""
        gradient = self.h1.weight[y]  # of the true class's logit by the features, since h1 is linear
        mask = muting(gradient, self.values["f"])
        drop = self.confidence(r, y) - self.confidence(r * mask, y)
        hurt = torch.zeros(len(r), dtype=torch.bool, device=r.device)
        hurt[drop.topk(round(self.values["b"] * ramp * len(r))).indices] = True
        return torch.where(hurt[:, None], mask, 1.0)

    def confidence(self, r: Tensor, y: Tensor) -> Tensor:
        """The probability of the true class, (B,)."""
        return self.h1(r).softmax(1).gather(1, y[:, None]).squeeze(1)


def muting(gradient: Tensor, share: float) -> Tensor:
    """A mask, (B, N), 0 for exactly the given share of each image's features: those with the largest gradient."""
    top = gradient.topk(round(share * gradient.shape[1]), dim=1).indices
    return torch.ones_like(gradient).scatter_(1, top, 0.0)
