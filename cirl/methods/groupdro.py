"""GroupDRO: Distributionally Robust Neural Networks for Group Shifts (Sagawa et al., ICLR 2020).

L = sum over source domains d of q_d l_d, after q_d <- q_d exp(eta l_d) / sum over d of the same

where l_d is the mean cross entropy of the domain's images in the batch; the weights q start equal. A domain without
images in the batch has no loss and keeps its weight, up to the normalisation (as in the authors' code).
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached
from cirl.run.config import Run


class GroupDRO(Method):
    """Exponentiated weights q on the losses of the source domains."""

    q: Tensor  # (domains,)

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        domains = run.settings.domains
        self.register_buffer("q", torch.tensor([float(domain in run.sources) for domain in domains]) / len(run.sources))

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        losses = cross_entropy(self.predict(x), y, reduction="none")
        present = d.unique()
        per_domain = torch.stack([losses[d == domain].mean() for domain in present])
        self.q = reweighted(self.q, present, per_domain.detach(), self.values["eta"])
        loss = (self.q[present] * per_domain).sum()
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss, L_cls=losses.mean(), worst=self.q.max())


def reweighted(q: Tensor, present: Tensor, losses: Tensor, eta: float) -> Tensor:
    """q_d exp(eta l_d) for the domains of the batch, brought back to the sum one."""
    q = q.index_copy(0, present, q[present] * (eta * losses).exp())
    return q / q.sum()
