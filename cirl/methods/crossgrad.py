"""CrossGrad: Generalizing Across Domains via Cross-Gradient Training (Shankar et al., ICLR 2018).

L_label = (1 - alpha) l(x, y) + alpha l(x + eps grad_x l_dom, y), and L_dom the other way round.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cirl.config import Run
from cirl.methods.base import Method, floats
from cirl.model import Network


class CrossGrad(Method):
    """A label network and a domain network; each trains on images that the other's gradient has perturbed."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        encoder, head = Network(run.backbone, run.dim, run.weights), nn.Linear(run.dim, len(run.settings.domains))
        self.domain = nn.Sequential(encoder, head)
        self.optimizers = [*self.make_optimizers(), self.sgd((self.domain, 1.0, True))]

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, float]:
        alpha, x = self.values["alpha"], x.requires_grad_()
        labels, domains = self.predict(x), self.domain(x)
        x_d = self.perturbed(x, cross_entropy(domains, d, reduction="sum"))
        x_l = self.perturbed(x, cross_entropy(labels, y, reduction="sum"))
        L_cls, L_dom = cross_entropy(labels, y), cross_entropy(domains, d)
        loss = (1 - alpha) * L_cls + alpha * cross_entropy(self.predict(x_d), y)
        loss_d = (1 - alpha) * L_dom + alpha * cross_entropy(self.domain(x_l), d)
        self.step(self.optimizers[0], loss, epoch)
        self.step(self.optimizers[1], loss_d, epoch)
        return floats(loss=loss, L_cls=L_cls, L_dom=L_dom)

    def perturbed(self, x: Tensor, loss: Tensor) -> Tensor:
        """x + eps grad_x loss, each value of the gradient bounded."""
        (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
        return (x + self.values["eps"] * gradient.clamp(-self.values["bound"], self.values["bound"])).detach()
