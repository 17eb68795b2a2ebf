"""SagNet: Reducing Domain Gap by Reducing Style Bias (Nam et al., CVPR 2021).

Encoder and h1 minimise l(h1(c(SR(f(x)))), y) + adversarial * H(uniform, s(CR(f(x)))), the style net s minimises
l(s(CR(f(x))), y). f is the first two of the encoder's four stages (all before layer3 of a ResNet), c the other two. The
content of maps is what remains when they are normalised per image and channel. SR keeps the content and interpolates
mean and variance with those of another image; CR keeps mean and variance and takes the content of another image.

As in the authors' code, variances (not deviations) are interpolated, the variance is unbiased, 1e-5 is added to it, the
borrowed content is detached, SR and CR draw separate permutations of the batch, and H = -mean log(softmax + 1e-5).
Different from it: there the adversarial term has a separate optimizer, which moves only the affine parameters of the
batch normalisation in f and clips their gradient to norm 0.1, and dropout of 0.5 precedes both classifiers. Here the
term is a part of the encoder's loss and moves all of f, since the ConvNet has no normalisation.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cirl.methods.base import Method, detached, parameters_of
from cirl.methods.styles import style
from cirl.run.config import Run

EPSILON = 1e-5


class SagNet(Method):
    """s: a copy of the last two stages with a separate classifier."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        back = copy.deepcopy(self.encoder.stages()[2:])
        self.style_net = nn.Sequential(*back, nn.Linear(run.dim, classes))
        self.optimizers = [*self.make_optimizers(), self.sgd((self.style_net, 1.0, True))]

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, Tensor]:
        first, second, *back = self.encoder.stages()
        maps = second(first(self.encoder.normalise(x)))
        guess = self.style_net(content_randomised(maps, torch.randperm(len(x), device=x.device)))
        other, alpha = torch.randperm(len(x), device=x.device), torch.rand(len(x), 1, 1, 1, device=x.device)
        logits = nn.Sequential(*back, self.h1)(style_randomised(maps, other, alpha))
        L_cls, L_style = cross_entropy(logits, y), cross_entropy(guess, y)
        L_adv = -(guess.softmax(1) + EPSILON).log().mean()  # cross entropy with the uniform distribution
        loss = L_cls + self.values["adversarial"] * L_adv
        gradients = torch.autograd.grad(L_style, parameters_of(self.optimizers[1]), retain_graph=True)
        self.step(self.optimizers[0], loss, epoch)
        self.move(self.optimizers[1], gradients, epoch)
        return detached(loss=loss, L_cls=L_cls, L_adv=L_adv, L_style=L_style)


def style_randomised(maps: Tensor, other: Tensor, alpha: Tensor) -> Tensor:
    """SR: own content; mean and variance alpha own + (1 - alpha) other."""
    mean, variance = style(maps)
    return restyled(content(maps), torch.lerp(mean[other], mean, alpha), torch.lerp(variance[other], variance, alpha))


def content_randomised(maps: Tensor, other: Tensor) -> Tensor:
    """CR: another image's content, which receives no gradient; own mean and variance."""
    return restyled(content(maps)[other].detach(), *style(maps))


def content(maps: Tensor) -> Tensor:
    mean, variance = style(maps)
    return (maps - mean) / (variance + EPSILON).sqrt()


def restyled(content: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return content * (variance + EPSILON).sqrt() + mean
