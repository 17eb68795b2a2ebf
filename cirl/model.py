r"""The networks: representation generator g (`Network`) and `Masker` w.

code     paper
x        images in [0, 1], (B, 3, H, W); normalised inside the network
r        representation g(x), (B, N)
m        mask, (B, N)
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cirl.data.pretrained import load_weights, resnet_of_torchvision
from cirl.errors import UserError, invalid
from cirl.gumbel import DRAWS
from cirl.run.config import BACKBONES

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet


class ConvNet(nn.Sequential):
    """Digits-DG: four times 3x3 convolution, ReLU, 2x2 max-pooling; N = 4 x width at 32 pixels.

    Pooling before the ReLU gives the same function and rectifies a quarter of the values. The initialisation keeps the
    variance (LeCun): PyTorch's default shrinks it and causes plateaus; with Kaiming's the network dies at lr=0.05."""

    def __init__(self, width: int):
        layers, channels = [], 3
        for _ in range(4):
            convolution = nn.Conv2d(channels, width, 3, padding=1)
            nn.init.normal_(convolution.weight, std=(9 * channels) ** -0.5)
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]  # a Conv2d has one by default
            layers += [convolution, nn.MaxPool2d(2), nn.ReLU()]
            channels = width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())


def resnet(name: str, weights: str) -> nn.Module:
    """torchvision's ResNet without its classifier; `weights` is imagenet, none, or a state-dict file."""
    net = resnet_of_torchvision(name)
    if weights != "none":
        net.load_state_dict(load_weights(name, weights))
    net.fc = nn.Identity()
    return net


class Network(nn.Module):
    """g: images to representations of N = dim values, normalisation inside.

    If N differs from the backbone's width, a linear layer maps to it (Tables 7 and 8). With precision=bf16 its
    convolutions run in bfloat16; representations, heads, masks and losses stay in float32."""

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: str, dim: int, weights: str, precision: str = "fp32"):
        super().__init__()
        self.precision = precision
        if backbone.startswith("convnet"):
            if weights != "none":
                raise UserError(f"weights={weights!r}: there are none for the {backbone}; allowed: none.")
            self.backbone: nn.Module = ConvNet(BACKBONES[backbone] // 4)
        else:
            self.backbone = resnet(backbone, weights)
        own = BACKBONES[backbone]
        self.project = nn.Identity() if dim == own else nn.Linear(own, dim)
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            r = self.project(self.backbone(self.normalise(x)))
        return r.to(x.dtype)

    def normalise(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)

    def stages(self) -> Sequence[nn.Module]:
        """g in four parts, for the methods that work on the maps between them; applied in order they equal g."""
        if self.precision != "fp32":
            raise invalid("precision", self.precision, "fp32 for methods that work between the stages of the network")
        net: Any = self.backbone  # a ResNet has its parts as attributes
        if isinstance(net, ConvNet):
            blocks = [*net]
            return [nn.Sequential(*blocks[i : i + 3]) for i in (0, 3, 6)] + [nn.Sequential(*blocks[9:], self.project)]
        stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool, net.layer1)
        return [stem, net.layer2, net.layer3, nn.Sequential(net.layer4, net.avgpool, nn.Flatten(), self.project)]

    @property
    def last_convolution(self) -> nn.Module:
        """The last convolution; in a ResNet a batch norm and the residual sum follow it."""
        return [layer for layer in self.backbone.modules() if isinstance(layer, nn.Conv2d)][-1]


class Masker(nn.Module):
    """w: a three-layer perceptron as released; k draws from its scores make the mask."""

    def __init__(self, dim: int, k: int, draws: str = "independent", logits: str = "plain", temperature: float = 0.5):
        super().__init__()
        wide = 4 * dim
        self.layers = nn.Sequential(
            *(nn.Dropout(0.5), nn.Linear(dim, wide), nn.BatchNorm1d(wide), nn.ReLU()),
            *(nn.Dropout(0.5), nn.Linear(wide, wide), nn.BatchNorm1d(wide), nn.ReLU()),
            nn.Linear(wide, dim),
        )
        if logits == "batchnorm":
            self.layers.append(nn.BatchNorm1d(dim, affine=False))
        self.k, self.draws, self.temperature = k, draws, temperature

    def log_z(self, r: Tensor) -> Tensor:
        """The scores of the dimensions, up to a constant that cancels in the softmax."""
        return self.layers(r)

    def forward(self, r: Tensor) -> Tensor:
        r"""Eq. (12): m = Gumbel-Softmax(w(r), kappa N), (B, N) in [0, 1]."""
        return DRAWS[self.draws](self.log_z(r), self.k, self.temperature)
