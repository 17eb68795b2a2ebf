r"""L2A-OT: Learning to Generate Novel Domains for Domain Generalization (Zhou et al., ECCV 2020).

G(x, k) shows the images x in domain k, one of K source domains or one of as many novel ones. Each source domain i in
the batch is mapped to a different novel domain n_i, x_n = G(x, n_i). G minimises

-domain [mean over i of S(x of i, x_n of i) + mean over pairs i, j of S(x_n of i, x_n of j)]
+ cycle |G(x_n, i) - x| + keep l(Y(x_n), y)

and the encoder and h1 minimise (1 - alpha) l(h1(g(x)), y) + alpha l(h1(g(x_n)), y): half source, half novel images.
S(a, b) = 2 W(a, b) - W(a, a) - W(b, b) is the Sinkhorn divergence, W(a, b) = sum of pi C with the cosine distances C of
the features phi of two samples and pi the transport plan of entropic regularisation epsilon, which is a constant.

Y, a label classifier, and phi, the features of a domain classifier, are trained on the sources in a first phase, half
as long as the run, and are frozen in the second, which trains G, encoder and h1 as long as the other methods.
domain = 1, cycle = 10, keep = 1, alpha = 1/2, as many novel domains as sources. Taken from Dassl's Sinkhorn divergence
(of the same authors, who have not published the code of L2A-OT): the cosine distance, epsilon = 0.01, 5 iterations, no
gradient through the plan. Taken from a public reproduction (mousecpn/L2A-OT): the mean absolute difference, Adam with
betas 0.5 and 0.999 for G at 1e-4, x_n from before the step of G. Its rate is for long runs on large images. In the
2,000 steps of tiny, 1e-3 brings G to less than half the cycle error, at the same source-validation accuracy.
The novel domains of a step are drawn without repetition, so that no source owns one. Both sums of distances are means.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, l1_loss, normalize

from cirl.methods.auxiliary import adam
from cirl.methods.base import TwoPhases, by_domain, detached, over_pairs
from cirl.methods.images import Translator
from cirl.run.config import Run


class L2AOT(TwoPhases):
    """Trains on the sources and on domains that a generator makes as different from them as the labels allow."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        count = len(run.settings.domains)
        self.label, self.domain = self.classifier(classes), self.classifier(count)
        self.generator = Translator(run, 2 * count)
        frozen = self.sgd((self.label, 1.0, False), (self.domain, 1.0, False))
        others = adam(self.values["generator_lr"], self.generator, betas=(0.5, 0.999))
        self.optimizers = [*self.make_optimizers(), frozen, others]

    def classifier(self, outputs: int) -> nn.Sequential:
        """A network beside encoder and h1."""
        return nn.Sequential(self.network(), nn.Linear(self.run.dim, outputs))

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        if epoch < self.first_phase:
            return self.prepare(x, y, d, epoch)
        for net in (self.label, self.domain):
            net.eval()
        t, alpha = epoch - self.first_phase, self.values["alpha"]
        x_n, terms = self.generate(x, y, d, t)
        L_cls, L_novel = cross_entropy(self.predict(x), y), cross_entropy(self.predict(x_n), y)
        loss = (1 - alpha) * L_cls + alpha * L_novel
        self.step(self.optimizers[0], loss, t)
        return detached(loss=loss, L_cls=L_cls, L_novel=L_novel, **terms)

    def prepare(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        """A step of the first phase."""
        L_label, L_dom = cross_entropy(self.label(x), y), cross_entropy(self.domain(x), d)
        loss = L_label + L_dom
        self.step(self.optimizers[1], loss, epoch)
        return detached(loss=loss, L_label=L_label, L_dom=L_dom)

    def generate(self, x: Tensor, y: Tensor, d: Tensor, t: float) -> tuple[Tensor, dict[str, Tensor]]:
        """x_n, a constant, and the terms that G has minimised for it."""
        novel = self.novel_domains(x.device)[d]
        x_n = self.generator(x, novel)
        L_far = -self.distance(x, x_n, d)
        L_cycle, L_keep = l1_loss(self.generator(x_n, d), x), cross_entropy(self.label(x_n), y)
        domain, cycle, keep = (self.values[name] for name in ("domain", "cycle", "keep"))
        self.step(self.optimizers[2], domain * L_far + cycle * L_cycle + keep * L_keep, t)
        terms = dict(L_far=L_far, L_cycle=L_cycle, L_keep=L_keep)
        return x_n.detach(), terms  # mutant: without detach, autograd leaves the generator out all the same

    def novel_domains(self, device: torch.device) -> Tensor:
        """For each domain the label of a novel one, no two the same."""
        count = len(self.run.settings.domains)
        return count + torch.randperm(count, device=device)

    def distance(self, x: Tensor, x_n: Tensor, d: Tensor) -> Tensor:
        """How far the novel domains are from their sources and from each other."""
        with torch.no_grad():  # mutant: saves memory only
            phi = self.domain[0](x)
        phi_n = self.domain[0](x_n)
        novelty = torch.stack([self.divergence(phi[rows], phi_n[rows]) for rows in by_domain(d)]).mean()
        return novelty + over_pairs(self.divergence, phi_n, d)

    def divergence(self, a: Tensor, b: Tensor) -> Tensor:
        """S: zero for a = b."""
        W = partial(transport, epsilon=self.values["epsilon"], iterations=int(self.values["iterations"]))
        return 2 * W(a, b) - W(a, a) - W(b, b)


def transport(a: Tensor, b: Tensor, epsilon: float, iterations: int) -> Tensor:
    """W: the cost of the plan; gradients flow through the distances only."""
    cost = 1 - normalize(a) @ normalize(b).T  # (n, m)
    return (plan(cost.detach(), epsilon, iterations) * cost).sum()


def plan(cost: Tensor, epsilon: float, iterations: int) -> Tensor:
    """The entropic transport plan between n and m points of equal weight by Sinkhorn's iterations, (n, m).

    Computed in logarithms, since exp(-cost / epsilon) underflows for a small epsilon."""
    log_pi = -cost / epsilon
    for _ in range(iterations):
        log_pi = log_pi.log_softmax(1)  # equal sums of the rows
        log_pi = log_pi.log_softmax(0) - math.log(cost.shape[1])  # columns sum to 1 / m
    return log_pi.exp()
