"""DeepAll (empirical risk minimisation): cross entropy on the originals of all source domains, and nothing else."""

from torch import Tensor
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached


class DeepAll(Method):
    """L = l(h1(g(x)), y)."""

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        loss = cross_entropy(self.predict(x), y)
        self.step(self.optimizers[0], loss, epoch)
        return detached(loss=loss)
