"""MTL: Domain Generalization by Marginal Transfer Learning (Blanchard et al., JMLR 2021).

L = l(h1([r, e_d]), y), e_d an average over steps of the mean features of domain d.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cirl.config import Run
from cirl.methods.base import Method, floats


class MTL(Method):
    """The classifier sees an image's features and its domain's; at inference those of the batch stand for these."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        self.h1 = nn.Linear(2 * run.dim, classes)
        self.optimizers = self.make_optimizers()
        self.register_buffer("embeddings", torch.zeros(len(run.settings.domains), run.dim))

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, float]:
        r = self.features(x)
        loss = cross_entropy(self.h1(torch.cat([r, self.embed(r, d)], 1)), y)
        self.step(self.optimizers[0], loss, epoch)
        return floats(loss=loss)

    def embed(self, r: Tensor, d: Tensor) -> Tensor:
        """e_d <- ema e_d + (1 - ema) mean r of the domain; the e_d of each image."""
        ema, new = self.values["ema"], {}
        for domain in d.unique().tolist():
            new[domain] = ema * self.embeddings[domain] + (1 - ema) * r[d == domain].mean(0)
            self.embeddings[domain] = new[domain].detach()
        return torch.stack([new[domain] for domain in d.tolist()])

    def classify(self, r: Tensor) -> Tensor:
        return self.h1(torch.cat([r, r.mean(0).expand_as(r)], 1))
