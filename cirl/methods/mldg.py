"""MLDG: Learning to Generalize, Meta-Learning for Domain Generalization (Li et al., AAAI 2018), first order.

The step follows grad F(theta) + beta grad G(theta'), theta' = theta - inner_lr grad F(theta), where F is the mean cross
entropy of the meta-train images, G that of the meta-test images, and grad G is taken at theta'. The paper minimises
F(theta) + beta G(theta'), whose gradient also has a term with second derivatives; DomainBed leaves it out as well.

Each step one source domain, drawn at random, is the meta-test domain. DomainBed instead pairs single domains and makes
the inner step with Adam; here, as in the paper, it is a plain gradient step. A batch of one domain is split in two.
"""

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached, parameters_of


class MLDG(Method):
    """In each step one of the source domains plays the unseen one."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        present = d.unique()
        unseen = d == present[torch.randint(len(present), ())]
        if unseen.all():  # a batch of one domain has nothing to generalise to
            unseen = torch.arange(len(d), device=d.device) % 2 == 0
        gradients, F, G = self.meta_gradients(x, y, unseen)
        self.move(self.optimizers[0], gradients, epoch)
        return detached(loss=F + self.values["beta"] * G, L_cls=F, L_test=G)

    def meta_gradients(self, x: Tensor, y: Tensor, unseen: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """The two-term sum, in the order of the optimizer's parameters, and both losses."""
        theta = parameters_of(self.optimizers[0])
        F = cross_entropy(self.predict(x[~unseen]), y[~unseen])
        train = torch.autograd.grad(F, theta)
        inner = [p - self.values["inner_lr"] * g for p, g in zip(theta, train, strict=True)]
        names = [name for name, _ in self.encoder.named_parameters()]
        r = functional_call(self.encoder, dict(zip(names, inner, strict=False)), x[unseen])
        weight, bias = inner[len(names) :]
        G = cross_entropy(torch.nn.functional.linear(r, weight, bias), y[unseen])
        test = torch.autograd.grad(G, inner)
        return [a + self.values["beta"] * b for a, b in zip(train, test, strict=True)], F, G
