"""FACT: A Fourier-based Framework for Domain Generalization (Xu et al., CVPR 2021).

L = 1/2 l(S(x_o), y) + 1/2 l(S(x_a), y) + beta(t) [KL(T(x_o) || S(x_a)) + KL(T(x_a) || S(x_o))]

with x_a the amplitude mix that CIRL uses (Eqs. 4-6), softmax at temperature 10 in both KL terms and no factor 10^2, and
beta(t) the sigmoid ramp over the first 5 of 50 epochs, epoch by epoch. As in the authors' code, the teacher T is in
training mode (batch norm with the statistics of the batch), without gradient; its parameters are averaged, the running
statistics of its batch norm are its own.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from cirl.methods.base import Method, detached, ramp
from cirl.run.config import Run


class FACT(Method):
    """A student S and its teacher T, the average of the student's parameters over the steps; S is evaluated."""

    steps: Tensor

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        self.teacher = copy.deepcopy(nn.Sequential(self.encoder, self.h1)).requires_grad_(False)
        self.register_buffer("steps", torch.tensor(0))

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        both = torch.cat([x, self.intervened(x, d)])
        student, teacher = self.predict(both), self.teacher(both)
        L_cls = cross_entropy(student, y.repeat(2))
        beta = self.values["beta"] * ramp(int(epoch), self.epochs_of(5))
        L_cot = co_teacher(student, teacher, self.values["temperature"])
        loss = L_cls + beta * L_cot
        self.step(self.optimizers[0], loss, epoch)
        self.average()
        return detached(loss=loss, L_cls=L_cls, L_cot=L_cot)

    @torch.no_grad()
    def average(self) -> None:
        """T <- m T + (1 - m) S, parameters only, m = min(1 - 1 / (t + 1), momentum), t = 1 in the first step."""
        self.steps += 1
        momentum = (1 - 1 / (self.steps.double() + 1)).clamp(max=self.values["momentum"])
        student = [*self.encoder.parameters(), *self.h1.parameters()]
        for mean, value in zip(self.teacher.parameters(), student, strict=True):
            mean.lerp_(value, (1 - momentum).float())


def co_teacher(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL of the teacher on one view to the student on the other, both ways; no factor temperature squared."""
    crossed = torch.cat(teacher.chunk(2)[::-1])
    log_s, log_t = ((logits / temperature).log_softmax(1) for logits in (student, crossed))
    return 2 * kl_div(log_s, log_t, reduction="batchmean", log_target=True)  # a sum of two means
