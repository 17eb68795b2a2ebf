"""MetaReg: Towards Domain Generalization using Meta-Regularization (Balaji et al., NeurIPS 2018).

Phase 1 learns the weights phi of a weighted L1 norm of the classifier, R_phi(theta) = sum_i phi_i |theta_i|, on a
separate network: a feature extractor psi that the sources share, and a classifier theta_d for each source d.
Each step first moves psi and all theta_d by the cross entropy, every image under the classifier of its domain. Then it
draws two domains a and b and follows theta_a for some steps of plain gradient descent on a, with psi fixed:
  beta_0 = theta_a,  beta_t = beta_{t-1} - alpha grad [l_a(psi, beta_{t-1}) + R_phi(beta_{t-1})]
and phi <- phi - alpha grad_phi l_b(psi, beta_steps), by backpropagation through the steps. theta_a itself stays.
Phase 2 trains a new network, encoder and h1, on all sources with phi fixed: L = l(x, y) + R_phi(theta of h1).

No code of the authors was found. Chosen here: psi and theta_d move in one step on the mean over all images, at the
run's learning rate, constant (the paper: domain after domain). The meta-train and meta-test images are those of a and b
in the batch, the same in every inner step. phi begins at 0, covers weights and biases, and has no bound, so that it may
also reward a large weight. psi begins as a copy of the encoder: without pre-training, this gives the dimensions, and so
the entries of phi, the same meaning in both phases. Phase 1 has half as many epochs as the run and comes before them.
steps and alpha are our values, not the authors': alpha was chosen on the source validation of `tiny`, where 0.1 lets
phi reward ever larger weights. A batch of one domain leaves phi as it is. The batch norm of psi is always in training
mode and psi is never evaluated, so its running statistics play no part; those of the encoder belong to phase 2.
"""

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from cirl.methods.base import TwoPhases, detached
from cirl.run.config import Run


class MetaReg(TwoPhases):
    """Two phases: the first learns the regulariser and comes before the run's epochs."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        self.psi = copy.deepcopy(self.encoder)
        self.tasks = nn.ModuleList(nn.Linear(run.dim, classes) for _ in run.settings.domains)
        self.phi = nn.ParameterList(torch.zeros_like(parameter) for parameter in self.h1.parameters())
        rate = self.values["alpha"]
        meta = torch.optim.SGD([{"params": [*self.phi], "base_lr": rate, "decays": False}], rate)
        self.optimizers = [*self.make_optimizers(), self.sgd((self.psi, 1.0, False), (self.tasks, 1.0, False)), meta]

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        if epoch < self.first_phase:
            L_task = self.task_loss(x, y, d)
            self.step(self.optimizers[1], L_task, epoch)
            L_meta = self.meta_step(x, y, d, epoch)
            return detached(loss=L_task + L_meta, L_task=L_task, L_meta=L_meta)
        L_cls, L_reg = cross_entropy(self.predict(x), y), weighted_l1(self.phi, [*self.h1.parameters()])
        loss = L_cls + L_reg
        self.step(self.optimizers[0], loss, epoch - self.first_phase)
        return detached(loss=loss, L_cls=L_cls, L_reg=L_reg)

    def task_loss(self, x: Tensor, y: Tensor, d: Tensor) -> Tensor:
        """Mean cross entropy, each image under the classifier of its domain."""
        r = self.psi(x)
        parts = [cross_entropy(self.tasks[i](r[d == i]), y[d == i], reduction="sum") for i in d.unique().tolist()]
        return torch.stack(parts).sum() / len(x)

    def meta_step(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> Tensor:
        """Move phi by the loss on domain b of the classifier that regularised steps on domain a lead to."""
        present = d.unique()
        if len(present) < 2:
            return torch.zeros((), device=x.device)
        a, b = present[torch.randperm(len(present))[:2]].tolist()
        with torch.no_grad():  # mutant: spares the graph; phi alone is moved
            r = self.psi(x)
        beta = self.unroll([*self.tasks[a].parameters()], r[d == a], y[d == a])
        L_meta = cross_entropy(linear(r[d == b], *beta), y[d == b])
        self.step(self.optimizers[2], L_meta, epoch)
        return L_meta

    def unroll(self, beta: Sequence[Tensor], r: Tensor, y: Tensor) -> Sequence[Tensor]:
        """The classifier after the inner steps, as a function of phi."""
        for _ in range(int(self.values["steps"])):
            loss = cross_entropy(linear(r, *beta), y) + weighted_l1(self.phi, beta)
            gradients = torch.autograd.grad(loss, beta, create_graph=True)
            beta = [b - self.values["alpha"] * gradient for b, gradient in zip(beta, gradients, strict=True)]
        return beta


def weighted_l1(phi: Iterable[Tensor], theta: Iterable[Tensor]) -> Tensor:
    """R_phi(theta) = sum_i phi_i |theta_i| over weights and biases."""
    return torch.stack([(weights * values.abs()).sum() for weights, values in zip(phi, theta, strict=True)]).sum()
