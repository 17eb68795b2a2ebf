"""Mix: DeepAll with the amplitude mix of Eqs. 4-6 as augmentation, a control that the paper lacks.

L = 1/2 l(h1(g(x_o)), y) + 1/2 l(h1(g(x_a)), y): the cross entropies of FACT, and of CIRL without its other terms.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached


class Mix(Method):
    """Cross entropy on the originals and on their mixtures, in one pass of the encoder."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        logits = self.predict(torch.cat([x, self.intervened(x, d)]))
        loss = cross_entropy(logits, y.repeat(2))
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss)
