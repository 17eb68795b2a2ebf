"""Networks from and to images that some methods need beside the encoder.

They come in two sizes, for the 32 pixels of a ConvNet and the 224 of a ResNet, with as many channels as DDAIG has for
Digits-DG and PACS. With the narrow ConvNet of tiny they have fewer channels, to keep a step affordable. All of them
work at any image size from 16 pixels.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from cirl.run.config import Run

Padding = Literal["zeros", "reflect"]
WIDTHS = {"convnet32": 8, "convnet": 32, "resnet18": 64, "resnet50": 64}  # channels at the full resolution


class Residual(nn.Module):
    """x + two convolutions of x, each normalised per image and channel."""

    def __init__(self, width: int, padding_mode: Padding = "zeros", affine: bool = False):
        super().__init__()
        self.layers = nn.Sequential(
            *convolution(width, width, 3, padding_mode, affine),
            *convolution(width, width, 3, padding_mode, affine)[:2],
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def convolution(before: int, after: int, kernel: int, padding_mode: Padding, affine: bool) -> list[nn.Module]:
    layer = nn.Conv2d(before, after, kernel, padding="same", padding_mode=padding_mode, bias=False)
    return [layer, nn.InstanceNorm2d(after, affine=affine), nn.ReLU()]


def perturbation(run: Run) -> nn.Sequential:
    """Images to a change of each of their values in (-1, 1): DDAIG's fully convolutional network with three blocks.

    All weights start from N(0, 0.02^2), so that the change is small at first. Dassl's network also joins the mean of
    each map to the maps before the 1 x 1 convolution; the normalisation after it cancels what they add, so the network
    without them is the same function."""
    width = WIDTHS[run.backbone]
    net = nn.Sequential(
        *convolution(3, width, 3, "reflect", affine=False),  # (B, width, H, W)
        *(Residual(width, "reflect") for _ in range(3)),
        *convolution(width, width, 1, "zeros", affine=False),
        *(nn.Conv2d(width, 3, 1), nn.Tanh()),  # (B, 3, H, W)
    )
    for name, parameter in net.named_parameters():
        nn.init.normal_(parameter, std=0.02) if name.endswith("weight") else nn.init.zeros_(parameter)
    return net


class Translator(nn.Module):
    """Images in [0, 1] and the wanted domain of each, to images in (0, 1): L2A-OT's conditional generator.

    Two halvings, two residual blocks, two doublings. As in StarGAN, the image is joined by one map per domain, of
    ones for the wanted domain and of zeros for the others. The first convolution is not normalised: normalisation would
    cancel what a constant map adds."""

    def __init__(self, run: Run, domains: int):
        super().__init__()
        width, ends, self.domains = WIDTHS[run.backbone], 3 if run.backbone.startswith("convnet") else 7, domains
        self.layers = nn.Sequential(
            *(nn.Conv2d(3 + domains, width, ends, padding=ends // 2), nn.ReLU()),  # (B, width, H, W)
            *resampled(nn.Conv2d, width, 2 * width),  # (B, 2 width, H / 2, W / 2)
            *resampled(nn.Conv2d, 2 * width, 4 * width),  # (B, 4 width, H / 4, W / 4)
            *(Residual(4 * width, affine=True) for _ in range(2)),
            *resampled(nn.ConvTranspose2d, 4 * width, 2 * width),
            *resampled(nn.ConvTranspose2d, 2 * width, width),
            *(nn.Conv2d(width, 3, ends, padding=ends // 2), nn.Sigmoid()),  # (B, 3, H, W)
        )

    def forward(self, x: Tensor, domain: Tensor) -> Tensor:
        height, width = x.shape[2:]
        labels = one_hot(domain, self.domains).to(x)[:, :, None, None].expand(-1, -1, height, width)
        joined = torch.cat([x, labels], 1)  # (B, 3 + domains, H, W)
        filled = pad(joined, (0, -width % 4, 0, -height % 4), mode="replicate")  # to sizes that can be halved twice
        return self.layers(filled)[:, :, :height, :width]


def resampled(layer: type, before: int, after: int) -> list[nn.Module]:
    """Half or double the resolution."""
    return [layer(before, after, 4, 2, 1, bias=False), nn.InstanceNorm2d(after, affine=True), nn.ReLU()]


class Decoder(nn.Module):
    """Codes (B, N) to normalised images (B, 3, S, S): a linear layer to small maps, doubled up to the image size.

    The maps start at about 5 pixels (4 for 32, 7 for 224) with 4 width channels and halve them at each doubling."""

    def __init__(self, run: Run):
        super().__init__()
        self.size, channels = run.image_size, 4 * WIDTHS[run.backbone]
        doublings = round(math.log2(run.image_size / 5))
        start = math.ceil(run.image_size / 2**doublings)
        layers = [nn.Linear(run.dim, channels * start**2), nn.Unflatten(1, (channels, start, start)), nn.ReLU()]
        for _ in range(doublings):
            fewer = max(8, channels // 2)
            layers += [nn.ConvTranspose2d(channels, fewer, 4, 2, 1), nn.ReLU()]
            channels = fewer
        self.layers = nn.Sequential(*layers, nn.Conv2d(channels, 3, 3, padding=1))

    def forward(self, h: Tensor) -> Tensor:
        return self.layers(h)[:, :, : self.size, : self.size]
