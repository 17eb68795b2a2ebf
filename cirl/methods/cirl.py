"""CIRL: causal intervention, causal factorization and adversarial mask (Lv et al., CVPR 2022).

Generator and classifiers minimise L_sup + L_inf + tau(t) L_Fac, the masker minimises L_sup - L_inf (Eq. 14), with
L_sup = l(h1(m_o r_o), y) + l(h1(m_a r_a), y), L_inf = l(h2((1 - m_o) r_o), y) + l(h2((1 - m_a) r_a), y) (Eq. 13) and
L_Fac = 1/2 |C - I|^2 (Eq. 10). The recipe `released` weighs L_sup and L_inf by 1/4 and takes the L_Fac of the authors'
code; during its warm-up the generator's step has m = 1 in L_sup and 1 - m = 1 in L_inf; the masker's step uses masks.

One forward and one backward pass of the encoder per step: the masker's step uses the same representations and masks,
with the classifiers as the generator's step left them. The authors' code runs the encoder and draws the masks a second
time (ledger, rows 10 and 21). `Method.step` computes the gradients of one optimizer's parameters only.
"""

import torch
from torch import Tensor, nn

from cirl import losses
from cirl.methods.base import Method, detached, ramp
from cirl.model import Masker
from cirl.run.config import Run


class CIRL(Method):
    """Both optimizers of Eq. 14, and the variants of Table 5.

    Table 5: without `cint` there are no mixed images and C is that of r_o with itself, without its diagonal; without
    `cfac` only the diagonal of C counts; without `advm` there is no mask, and Eq. 11 takes the place of Eq. 13."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        self.C: Tensor = None  # type: ignore[assignment]  # of the last step, for inspection
        if run.advm:
            self.h2 = nn.Linear(run.dim, classes)
            self.masker = Masker(run.dim, run.k, self.recipe.draws, self.recipe.logits)
            rate, decays = self.recipe.head_lr, self.recipe.decays == "all"
            generator = self.sgd((self.encoder, 1.0, True), (self.h1, rate, True), (self.h2, rate, decays))
            self.optimizers = [generator, self.sgd((self.masker, rate, decays))]

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        r_o, r_a = self.represent(x, d)
        L_fac = self.factorization(r_o, r_a)
        if not self.run.advm:
            return self.update_without_mask(r_o, r_a, y, L_fac, epoch)
        generator, masker = self.optimizers
        m_o, m_a = self.masker(torch.cat([r_o, r_a]).detach()).chunk(2)
        warming_up = int(epoch) < self.epochs_of(self.recipe.warmup)  # the generator sees no masks yet (ledger, row 7)
        L_sup, L_inf = self.unmasked(r_o, r_a, y) if warming_up else self.masked(r_o, r_a, m_o, m_a, y)
        loss, _ = losses.objectives(L_sup, L_inf, L_fac, self.tau(epoch))
        self.step(generator, loss, epoch)
        _, adversary = losses.objectives(*self.masked(r_o, r_a, m_o, m_a, y), L_fac, self.tau(epoch))
        self.step(masker, adversary, epoch)
        terms = dict(loss=loss, L_sup=L_sup, L_inf=L_inf, L_fac=L_fac, adversary=adversary)
        return detached(**terms, diagonal=losses.invariance(self.C), mask=m_o.mean())

    def update_without_mask(self, r_o, r_a, y, L_fac, epoch) -> dict[str, Tensor]:
        """The variants of Table 5 that have no masker: Eq. 11 in place of Eq. 13."""
        L_cls = self.weight(1) * losses.classification_loss(self.h1(r_o), self.h1(r_a), y)
        loss = L_cls + self.tau(epoch) * L_fac
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss, L_cls=L_cls, L_fac=L_fac, diagonal=losses.invariance(self.C))

    def represent(self, x_o: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """r_o and r_a in one pass of the encoder; without intervention r_a is r_o."""
        if not self.run.cint:
            r_o = self.encoder(x_o)
            return r_o, r_o
        return self.encoder(torch.cat([x_o, self.intervened(x_o, d)])).chunk(2)

    def factorization(self, r_o: Tensor, r_a: Tensor) -> Tensor:
        """L_Fac of the modules that are switched on."""
        C = losses.correlation_matrix(r_o, r_a, unbiased=self.recipe.std == "unbiased")
        self.C = C.detach()
        identity = torch.eye(len(C), device=C.device)
        if not self.run.cint:  # invariance is not required: treat it as met
            C = torch.where(identity.bool(), identity, C)
        if not self.run.cfac:  # independence is not required: treat it as met
            C = C * identity
        return losses.FACTORIZATION[self.recipe.loss](C)

    def masked(self, r_o, r_a, m_o, m_a, y) -> tuple[Tensor, Tensor]:
        """L_sup and L_inf, as the recipe weighs them."""
        L_sup, L_inf = losses.masked_losses(self.h1, self.h2, r_o, r_a, m_o, m_a, y)
        return self.weight(2) * L_sup, self.weight(2) * L_inf

    def unmasked(self, r_o, r_a, y) -> tuple[Tensor, Tensor]:
        """The same during the warm-up: both branches see the whole representation."""
        L_sup, L_inf = (losses.classification_loss(h(r_o), h(r_a), y) for h in (self.h1, self.h2))
        return self.weight(2) * L_sup, self.weight(2) * L_inf

    def tau(self, epoch: float) -> float:
        """The weight of L_Fac, ramped up epoch by epoch (ledger, row 6)."""
        return self.run.tau * ramp(int(epoch), self.epochs_of(self.recipe.ramp))

    def weight(self, branches: int) -> float:
        """Of a sum of cross entropies over two views: one, or what makes it the mean over views and branches."""
        return 1.0 if self.recipe.cross_entropy == "sum" else 0.5 / branches
