"""DDAIG: Deep Domain-Adversarial Image Generation for Domain Generalisation (Zhou et al., AAAI 2020).

x_p = x + lam T(x), with T in (-1, 1) the domain-transformation network (`images.perturbation`). In this order

T minimises            l(h1(g(x_p)), y) - l(D(x_p), d): the label stays, the domain is not recognised
g and h1 minimise      (1 - alpha) l(h1(g(x)), y) + alpha l(h1(g(x_p)), y), with x_p of the T that has just moved
D, a domain network,   l(D(x), d)

As in Dassl, x_p is neither clamped to [0, 1] nor is lam scaled: images have values in [0, 1] there too. The first
`warmup` of 50 epochs train g and h1 on x alone: 3 of 25 epochs in Dassl's settings for PACS and Office-Home, none for
Digits-DG. The spatial transformer that Dassl has as an option is left out, as in all its settings. D has an output for
the target domain too, which is never the right one. All networks have the same optimizer and rate.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached
from cirl.methods.images import perturbation
from cirl.run.config import Run


class DDAIG(Method):
    """A label network, a domain network, and a network that changes images against the latter."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        encoder, head = self.network(), nn.Linear(run.dim, len(run.settings.domains))
        self.domain, self.transformation = nn.Sequential(encoder, head), perturbation(run)
        others = [self.sgd((net, 1.0, True)) for net in (self.domain, self.transformation)]
        self.optimizers = [*self.make_optimizers(), *others]

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        x_p = self.transformed(x)
        L_keep, L_fool = cross_entropy(self.predict(x_p), y), -cross_entropy(self.domain(x_p), d)
        self.step(self.optimizers[2], L_keep + L_fool, epoch)
        with torch.no_grad():  # mutant: saves memory only
            x_p = self.transformed(x)
        alpha = self.values["alpha"] if epoch >= self.epochs_of(self.values["warmup"]) else 0.0
        L_cls, L_dom = cross_entropy(self.predict(x), y), cross_entropy(self.domain(x), d)
        loss = (1 - alpha) * L_cls + alpha * cross_entropy(self.predict(x_p), y)
        self.step(self.optimizers[0], loss, epoch)
        self.step(self.optimizers[1], L_dom, epoch)
        return detached(loss=loss, L_cls=L_cls, L_dom=L_dom, L_keep=L_keep, L_fool=L_fool)

    def transformed(self, x: Tensor) -> Tensor:
        return x + self.values["lam"] * self.transformation(x)
