r"""MMD-AAE: Domain Generalization with Adversarial Feature Learning (Li et al., CVPR 2018).

h = Q(x) is the code, P the decoder, D the discriminator, K the number of source domains. Q, P and h1 minimise

l(h1(h), y) + ae |P(h) - x|^2 + mmd (1 / K^2) sum over i, j of MMD^2(h of domain i, h of domain j) - adv log D(h)

and D minimises -log D(h') - log(1 - D(h)) with h' ~ Laplace(0, scale) in each dimension.
MMD^2(a, b) = mean k(a_i, a_j) + mean k(b_i, b_j) - 2 mean k(a_i, b_j), k(u, v) = mean over w of exp(-|u - v|^2 / 2 w N)

Q is the encoder with a linear layer on it, N to N: in the paper Q is one linear layer on given features, and codes that
come from a ReLU could not follow a symmetric prior. h1 sees the codes. The prior has variance 1 (scale = 1 / sqrt 2).
The values are those of a public reproduction that follows the paper's settings (YuqiCui/MMD_AAE): ae = 0.1, mmd = 2,
adv = 0.1, w = 1, 5, 10, standardised inputs, means over values and widths, D with one hidden layer, -log D(h) for the
encoder, and Adam, here for P and D, at `other_lr`. P minimises the reconstruction error alone, which is all it appears
in. With SGD at the run's rate P learns nothing and D does not settle.

Different from the paper: |u - v|^2 is divided by N. At N = 128 and with codes of variance 1 it is near 2 N, where the
kernels of widths 1, 5, 10 vanish (`mmd_aae+per_dimension=0`). The two means within a domain leave out i = j, for the
reason that `mmd` gives. The MMD and the adversarial term ramp up over the first half of the run.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, softplus

from cirl.methods.auxiliary import adam
from cirl.methods.base import Method, detached, distances, over_pairs, parameters_of
from cirl.methods.images import Decoder
from cirl.run.config import Run

WIDTHS = (1, 5, 10)


class MMDAAE(Method):
    """An autoencoder whose codes follow the same prior in all source domains."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        self.code, self.decoder = nn.Linear(run.dim, run.dim), Decoder(run)
        self.discriminator = nn.Sequential(nn.Linear(run.dim, run.dim), nn.ReLU(), nn.Linear(run.dim, 1))
        others = adam(self.values["other_lr"], self.decoder, self.discriminator)
        self.optimizers = [*self.make_optimizers(self.code), others]

    def features(self, x: Tensor) -> Tensor:
        return self.code(self.encoder(x))

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        h, ae, mmd, adv = self.features(x), *(self.values[name] for name in ("ae", "mmd", "adv"))
        L_cls, L_ae = cross_entropy(self.h1(h), y), mse_loss(self.decoder(h), self.encoder.normalise(x))
        L_mmd, L_adv = self.discrepancy(h, d), softplus(-self.discriminator(h)).mean()
        loss = L_cls + ae * L_ae + self.ramped(epoch) * (mmd * L_mmd + adv * L_adv)
        prior = laplace(h.shape, self.values["scale"], h.device)
        L_dis = softplus(-self.discriminator(prior)).mean() + softplus(self.discriminator(h)).mean()
        gradients = torch.autograd.grad(L_ae + L_dis, parameters_of(self.optimizers[1]), retain_graph=True)
        self.step(self.optimizers[0], loss, epoch)
        self.move(self.optimizers[1], gradients, epoch)
        return detached(loss=loss, L_cls=L_cls, L_ae=L_ae, L_mmd=L_mmd, L_adv=L_adv, L_dis=L_dis)

    def discrepancy(self, h: Tensor, d: Tensor) -> Tensor:
        """Over all K^2 pairs (i, j); those with i = j add nothing."""
        size = h.shape[1] if self.values["per_dimension"] else 1
        return (1 - 1 / len(d.unique())) * over_pairs(squared_mmd, h / size**0.5, d)


def laplace(shape: torch.Size, scale: float, device: torch.device) -> Tensor:
    """The difference of two exponential variables."""
    one, other = torch.empty(2, *shape, device=device).exponential_()
    return scale * (one - other)


def squared_mmd(a: Tensor, b: Tensor) -> Tensor:
    return within(a) + within(b) - 2 * kernel(a, b).mean()


def within(a: Tensor) -> Tensor:
    """Mean kernel of two different rows."""
    k = kernel(a, a)
    return (k.sum() - k.diagonal().sum()) / (len(a) * (len(a) - 1))


def kernel(a: Tensor, b: Tensor) -> Tensor:
    squares = distances(a, b).square()
    return torch.stack([(-squares / (2 * width)).exp() for width in WIDTHS]).mean(0)
