"""CrossGrad: Generalizing Across Domains via Cross-Gradient Training (Shankar et al., ICLR 2018).

The label network h1(g(x)) minimises (1 - alpha) l(x, y) + alpha l(x_d, y), the domain network
(1 - alpha) l_dom(x, d) + alpha l_dom(x_l, d). x_d is x perturbed by the gradient of l_dom, x_l by that of l; both are
constants. A perturbation is delta = eps * clamp(gradient, -bound, bound), where the gradient is that of the batch's
mean loss with respect to the normalised image. So it is in Dassl, whose clamp of 0.1 is in normalised units too. The
networks normalise inside, so images in [0, 1] are perturbed by std * delta.

The same alpha and eps serve both networks. Both losses are computed before either network moves. The domain network has
an output for the target domain too, which is never the right one.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached
from cirl.run.config import Run


class CrossGrad(Method):
    """A label network and a domain network; each trains on images that the other's gradient has perturbed."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        encoder, head = self.network(), nn.Linear(run.dim, len(run.settings.domains))
        self.domain = nn.Sequential(encoder, head)
        self.optimizers = [*self.make_optimizers(), self.sgd((self.domain, 1.0, True))]

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        alpha, x = self.values["alpha"], x.detach().requires_grad_()
        L_cls, L_dom = cross_entropy(self.predict(x), y), cross_entropy(self.domain(x), d)
        x_d, x_l = self.perturbed(x, L_dom), self.perturbed(x, L_cls)
        loss = (1 - alpha) * L_cls + alpha * cross_entropy(self.predict(x_d), y)
        loss_d = (1 - alpha) * L_dom + alpha * cross_entropy(self.domain(x_l), d)
        self.step(self.optimizers[0], loss, epoch)
        self.step(self.optimizers[1], loss_d, epoch)
        return detached(loss=loss, L_cls=L_cls, L_dom=L_dom)

    def perturbed(self, x: Tensor, loss: Tensor) -> Tensor:
        """x + std * eps * the gradient of the loss by the normalised image, each of its values bounded."""
        std, bound = self.encoder.std, self.values["bound"]
        (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
        return x + std * self.values["eps"] * (std * gradient).clamp(-bound, bound)
