"""MASF: Domain Generalization via Model-Agnostic Learning of Semantic Features (Dou et al., NeurIPS 2019).

Each step one source domain, drawn at random, is the meta-test domain; the others are the meta-train domains. With F the
mean cross entropy of the meta-train images at theta (encoder and classifier), and theta' = theta - inner grad F(theta),
  theta follows grad F(theta) + grad_theta [global L_global(theta') + local L_local(theta')],
by backpropagation through the inner step; the metric embedding follows its own gradient of local L_local.
L_global aligns the soft confusion matrices of the meta-test domain and of each meta-train domain, the mean over these:
  1/C sum_c 1/2 [KL(p_c || q_c) + KL(q_c || p_c)],  p_c = softmax(mean logits of the domain's images of class c / T),
where a class that one of the two domains lacks in the batch counts as 0.
L_local is the triplet loss of all images' embeddings e, mean over pairs (a, p) of one class of
[|e_a - e_p|^2 - |e_a - e_n|^2 + margin]_+, where n is the nearest image of another class that is farther away than p,
or the farthest one if there is none (semi-hard).

From the authors' code: global = 1, local = 0.005, T = 2, margin = 10; one meta-test domain; the layers of the metric
embedding have 1024 and 256 units, each with a leaky ReLU of slope 0.2; the inner step is as long as the outer one (1e-5
both; here `inner` is in units of the run's learning rate); the gradients of F in the inner step and those of the meta
losses are clipped to norm 2, each parameter on its own (clip=0: not at all). There the gradient does not pass through
the inner step (here: order=1), Adam makes a step for each loss (here: one step of SGD with the sum), and the triplets
are those of a third of the images.

A batch of one domain is split in two. The batch norm of the pass at theta' normalises by the batch; only the pass at
theta updates the running statistics. No term is ramped: these values train from scratch as they are. A step takes 4.5
times as long as one of DeepAll, of first order 2.6 times.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, linear

from cirl.methods.base import Method, by_domain, detached, parameters_of
from cirl.run.config import Run


class MASF(Method):
    """In each step one of the source domains plays the unseen one."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        layers = nn.Linear(run.dim, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 256), nn.LeakyReLU(0.2)
        self.metric = nn.Sequential(*layers)
        self.optimizers = self.make_optimizers(self.metric)

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        present = d.unique()
        unseen = d == present[torch.randint(len(present), ())]
        if unseen.all():  # a batch of one domain has nothing to generalise to
            unseen = torch.arange(len(d), device=d.device) % 2 == 0
        F = cross_entropy(self.predict(x[~unseen]), y[~unseen])
        train, inner = self.inner_step(F)
        r, logits = self.forward_at(inner, x)
        L_global = alignment(logits, y, d, unseen, self.values["temperature"])
        L_local = triplet(self.metric(r), y, self.values["margin"])
        meta = self.values["global"] * L_global + self.values["local"] * L_local
        self.move(self.optimizers[0], self.gradients(train, meta), epoch)
        return detached(loss=F + meta, L_cls=F, L_global=L_global, L_local=L_local)

    @property
    def theta(self) -> list[Tensor]:
        return [*self.encoder.parameters(), *self.h1.parameters()]

    def inner_step(self, F: Tensor) -> tuple[Sequence[Tensor], list[Tensor]]:
        """grad F and theta', which is a function of theta to second order, or to first."""
        train = torch.autograd.grad(F, self.theta, create_graph=self.values["order"] > 1)
        rate = self.values["inner"] * self.run.lr
        return train, [p - rate * self.clipped(g) for p, g in zip(self.theta, train, strict=True)]

    def forward_at(self, theta: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Representations and logits under other parameters; the running statistics of batch norm are not updated."""
        *encoder, weight, bias = theta
        named = dict(zip((name for name, _ in self.encoder.named_parameters()), encoder, strict=True))
        buffers = {name: buffer.clone() for name, buffer in self.encoder.named_buffers()}
        r = functional_call(self.encoder, named | buffers, x)
        return r, linear(r, weight, bias)

    def gradients(self, train: Sequence[Tensor], meta: Tensor) -> list[Tensor]:
        """The gradient of each of the optimizer's parameters: theta has both parts, the metric embedding the second."""
        both = torch.autograd.grad(meta, parameters_of(self.optimizers[0]))
        theta, metric = both[: len(train)], both[len(train) :]
        return [*(own.detach() + self.clipped(g) for own, g in zip(train, theta, strict=True)), *metric]

    def clipped(self, gradient: Tensor) -> Tensor:
        """The gradient with its norm bounded by `clip`."""
        bound = self.values["clip"]
        return gradient * (bound / gradient.norm().clamp_min(bound)) if bound else gradient


def alignment(logits: Tensor, y: Tensor, d: Tensor, unseen: Tensor, temperature: float) -> Tensor:
    """L_global: mean over the meta-train domains of the divergence of their soft confusion matrix from the unseen."""
    q = confusion(logits[unseen], y[unseen], temperature)
    seen, labels = logits[~unseen], y[~unseen]
    parts = [divergence(confusion(seen[rows], labels[rows], temperature), q) for rows in by_domain(d[~unseen])]
    return torch.stack(parts).mean()


def confusion(logits: Tensor, y: Tensor, temperature: float) -> dict[int, Tensor]:
    """Of each class in the batch, the log-probabilities of its mean logits."""
    return {c: (logits[y == c].mean(0) / temperature).log_softmax(0) for c in y.unique().tolist()}


def divergence(p: dict[int, Tensor], q: dict[int, Tensor]) -> Tensor:
    """Symmetrised KL divergence of the common classes, summed and divided by the number of all classes."""
    common = [(p[c] - q[c]) * (p[c].exp() - q[c].exp()) for c in p if c in q]
    every = next(iter(p.values()))
    return torch.stack(common).sum() / (2 * len(every)) if common else every.sum() * 0


def triplet(e: Tensor, y: Tensor, margin: float) -> Tensor:
    """L_local: semi-hard triplet loss over all ordered pairs of one class."""
    D = (e[:, None] - e[None]).square().sum(2)  # (B, B)
    same = y[:, None] == y[None]
    pairs = (same & ~torch.eye(len(y), dtype=torch.bool, device=y.device)).nonzero()
    if not len(pairs) or same.all():
        return e.sum() * 0
    a, p = pairs.T
    positive, others = D[a, p], D[a].masked_fill(same[a], float("inf"))  # (pairs,), (pairs, B)
    farther = others.masked_fill(others <= positive[:, None], float("inf")).amin(1)
    farthest = D[a].masked_fill(same[a], float("-inf")).amax(1)
    negative = torch.where(farther.isinf(), farthest, farther)
    return (positive - negative + margin).clamp_min(0).mean()
