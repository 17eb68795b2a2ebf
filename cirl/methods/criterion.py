r"""CIRL for any training loop: the module that owns masker and classifiers and computes the two objectives of Eq. 14.

criterion = cirl.CIRLLoss(dim=512, classes=7)
generator = torch.optim.SGD([*encoder.parameters(), *criterion.heads.parameters()], lr=0.001)
masker = torch.optim.SGD(criterion.masker.parameters(), lr=0.001)
for epoch in range(50):
    for x, y in loader:
        x_a = cirl.fourier.intervene(x, x.roll(1, 0), cirl.fourier.sample_lam(len(x), eta=1.0))
        r_o, r_a = encoder(torch.cat([x, x_a])).chunk(2)
        for optimizer, objective in zip((generator, masker), criterion(r_o, r_a, y, epoch)):
            optimizer.zero_grad()
            objective.backward()
            optimizer.step()
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from cirl import losses
from cirl.errors import invalid
from cirl.methods.base import ramp
from cirl.model import Masker
from cirl.run.config import mask_draws
from cirl.run.recipe import parse_recipe


class CIRLLoss(nn.Module):
    """Masker w and classifiers h1, h2 over representations of `dim` values, with the losses of a recipe.

    `epochs` is the length of the training, to which warm-up and ramp of the recipe scale. Learning rates, their decay,
    the clipping of gradients and the images are the loop's. At inference the classifier is `heads[0]`, without mask."""

    def __init__(
        self,
        dim: int,
        classes: int,
        kappa: float = 0.6,
        tau: float = 5.0,
        epochs: int = 50,
        recipe: str = "released",
    ):
        super().__init__()
        if not 0 < kappa < 1:
            raise invalid("kappa", kappa, "a number between 0 and 1, both excluded")
        self.recipe, self.tau, self.epochs = parse_recipe(recipe), tau, epochs
        self.heads = nn.ModuleList([nn.Linear(dim, classes), nn.Linear(dim, classes)])
        k = mask_draws(kappa, dim, self.recipe.k)
        self.masker = Masker(dim, k, self.recipe.draws, self.recipe.logits)

    def forward(self, r_o: Tensor, r_a: Tensor, y: Tensor, epoch: float) -> Iterator[Tensor]:
        """The objective of generator and classifiers, then that of the masker, one after the other.

        The second is computed when it is asked for, with the classifiers as the step on the first left them. Neither
        sends a gradient to the parameters of the other."""
        C = losses.correlation_matrix(r_o, r_a, unbiased=self.recipe.std == "unbiased")
        L_fac = losses.FACTORIZATION[self.recipe.loss](C)
        h1, h2 = self.heads
        m_o, m_a = self.masker(torch.cat([r_o, r_a]).detach()).chunk(2)
        tau = self.tau * ramp(int(epoch), self.recipe.ramp * self.epochs / 50)
        if int(epoch) < self.recipe.warmup * self.epochs / 50:
            L_sup, L_inf = (losses.classification_loss(h(r_o), h(r_a), y) for h in (h1, h2))
        else:
            L_sup, L_inf = losses.masked_losses(h1, h2, r_o, r_a, m_o.detach(), m_a.detach(), y)
        weight = 1.0 if self.recipe.cross_entropy == "sum" else 0.25  # the mean over views and branches
        yield losses.objectives(weight * L_sup, weight * L_inf, L_fac, tau)[0]
        h1, h2 = (_fixed(h) for h in self.heads)
        L_sup, L_inf = losses.masked_losses(h1, h2, r_o.detach(), r_a.detach(), m_o, m_a, y)
        yield losses.objectives(weight * L_sup, weight * L_inf, L_fac, tau)[1]


def _fixed(h):
    """The classifier with its present parameters as constants."""
    return partial(linear, weight=h.weight.detach(), bias=h.bias.detach())
