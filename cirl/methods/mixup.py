"""Mixup between domains (Zhang et al., mixup, ICLR 2018; Yan et al., Improve Unsupervised Domain Adaptation with Mixup
Training, 2020).

L = lambda l(h1(g(x~)), y) + (1 - lambda) l(h1(g(x~)), y'), x~ = lambda x + (1 - lambda) x',
lambda ~ Beta(alpha, alpha), one per image. For x' first another source domain is drawn, then an image of it.

DomainBed pairs the domains of a step in a ring and draws one lambda per pair. Here each image draws a partner and a
lambda, since a batch need not hold equally many images of each domain.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.fourier import partners
from cirl.methods.base import Method, detached, sample_beta


class Mixup(Method):
    """Each image is mixed with one of another source domain."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        other = partners(d, "inter")
        lam = sample_beta(self.values["alpha"], len(x), x.device)
        logits = self.predict(mixed(x, x[other], lam))
        losses = [cross_entropy(logits, labels, reduction="none") for labels in (y, y[other])]
        loss = torch.lerp(losses[1], losses[0], lam).mean()
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss)


def mixed(x: Tensor, x_prime: Tensor, lam: Tensor) -> Tensor:
    """lambda x + (1 - lambda) x', one lambda per image."""
    return torch.lerp(x_prime, x, lam.view(-1, 1, 1, 1))
