"""MTL: Domain Generalization by Marginal Transfer Learning (Blanchard et al., JMLR 2021).

L = l(h1([r, e_d]), y), the mean over all images, where e_d is the embedding of the image's domain. It starts from 0,
and each step first updates it: e_d <- ema * mean of r over the images of domain d + (1 - ema) * e_d. The gradient
passes through the new mean, not through the old e_d.

`ema` is the weight of the new mean, as in DomainBed: with 0.99 the embedding is nearly the mean of the current batch.
DomainBed's code overwrites the embedding with normal noise just before it is used; this is not followed. It also sums
the mean losses of the domains, where this is the mean over the images.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached
from cirl.run.config import Run


class MTL(Method):
    """The classifier sees the features and the domain's embedding; at inference the mean of the batch replaces it."""

    embeddings: Tensor

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        self.h1 = nn.Linear(2 * run.dim, classes)
        self.optimizers = self.make_optimizers()
        self.register_buffer("embeddings", torch.zeros(len(run.settings.domains), run.dim))

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        r = self.features(x)
        loss = cross_entropy(self.h1(torch.cat([r, self.embed(r, d)], 1)), y)
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss)

    def embed(self, r: Tensor, d: Tensor) -> Tensor:
        """Update e_d for the domains of the batch; return the e_d of each image, (B, N)."""
        ema, new = self.values["ema"], {}
        for domain in d.unique().tolist():
            new[domain] = ema * r[d == domain].mean(0) + (1 - ema) * self.embeddings[domain]
            self.embeddings[domain] = new[domain].detach()
        return torch.stack([new[domain] for domain in d.tolist()])

    def classify(self, r: Tensor) -> Tensor:
        return self.h1(torch.cat([r, r.mean(0).expand_as(r)], 1))
