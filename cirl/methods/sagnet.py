"""SagNet: Reducing Domain Gap by Reducing Style Bias (Nam et al., CVPR 2021).

Content net: l(h1(c(SR(f(x)))), y) + w_adv H(uniform, s(CR(f(x)))); style net s: l(s(CR(f(x))), y). SR gives the maps a
style between their own and another image's, CR the content of another image.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cirl.config import Run
from cirl.methods.base import Method, floats
from cirl.methods.styles import restyled, style


class SagNet(Method):
    """f: the first three stages, c and s: two copies of the last, with a classifier each."""

    def __init__(self, run: Run, classes: int):
        super().__init__(run, classes)
        self.style_net = nn.Sequential(copy.deepcopy(self.encoder.stages()[-1]), nn.Linear(run.dim, classes))
        self.optimizers = [*self.make_optimizers(), self.sgd((self.style_net, 1.0, True))]

    def update(self, x: Tensor, y: Tensor, d: Tensor, epoch: float) -> dict[str, float]:
        *front, back = self.encoder.stages()
        maps = self.encoder.normalise(x)
        for stage in front:
            maps = stage(maps)
        other = torch.randperm(len(x), device=x.device)
        alpha = torch.rand(len(x), 1, 1, 1, device=x.device)
        L_cls = cross_entropy(self.h1(back(style_randomised(maps, other, alpha))), y)
        guess = self.style_net(content_randomised(maps, other))
        L_adv = -guess.log_softmax(1).mean()  # cross entropy with the uniform distribution
        loss = L_cls + self.values["adversarial"] * L_adv
        L_style = cross_entropy(self.style_net(content_randomised(maps.detach(), other)), y)
        self.step(self.optimizers[0], loss, epoch)
        self.step(self.optimizers[1], L_style, epoch)
        return floats(loss=loss, L_cls=L_cls, L_adv=L_adv, L_style=L_style)


def style_randomised(maps: Tensor, other: Tensor, alpha: Tensor) -> Tensor:
    """Own content, style between the image's own and another's."""
    mean, std = style(maps)
    return restyled(maps, torch.lerp(mean[other], mean, alpha), torch.lerp(std[other], std, alpha))


def content_randomised(maps: Tensor, other: Tensor) -> Tensor:
    """Own style, another's content."""
    return restyled(maps[other], *style(maps))
