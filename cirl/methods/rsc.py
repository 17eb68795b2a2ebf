"""RSC: Self-Challenging Improves Cross-Domain Generalization (Huang et al., ECCV 2020).

L = l(h1(r * m), y), where m mutes the features with the largest gradients of the true class's logit. The share of the
images is ramped up: from scratch a network that is challenged at once does not begin to learn.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, floats


class RSC(Method):
    """A share f of the features is muted, for the share b of the images that it hurts most."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, float]:
        r = self.features(x)
        with torch.no_grad():
            gradient = self.h1.weight[y]  # of the true class's logit by the features, since h1 is linear
            mask = muting(gradient, self.values["f"])
            drop = self.confidence(r, y) - self.confidence(r * mask, y)
            hurt = torch.zeros(len(r), dtype=torch.bool, device=r.device)
            hurt[drop.topk(round(self.values["b"] * self.ramped(epoch) * len(r))).indices] = True
            mask = torch.where(hurt[:, None], mask, 1.0)
        loss = cross_entropy(self.h1(r * mask), y)
        self.step(self.optimizers[0], loss, epoch)
        return floats(loss=loss)

    def confidence(self, r: Tensor, y: Tensor) -> Tensor:
        return self.h1(r).softmax(1).gather(1, y[:, None]).squeeze(1)


def muting(gradient: Tensor, share: float) -> Tensor:
    """A mask, (B, N), 0 for exactly the given share of each image's features: those with the largest gradient."""
    top = gradient.topk(round(share * gradient.shape[1]), dim=1).indices
    return torch.ones_like(gradient).scatter_(1, top, 0.0)
