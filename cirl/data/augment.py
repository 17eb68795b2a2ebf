"""All augmentation of training images: random resized crop and flip on the CPU, colour jitter on the device.

The colour jitter is torchvision's ColorJitter for a whole batch: every image has its own factors, and the order of the
four changes is drawn once per batch. Images are (B, 3, H, W) in [0, 1].
"""

from collections.abc import Callable

import torch
from torch import Tensor

JITTER = 0.4  # of brightness, contrast, saturation and hue
GREY = (0.2989, 0.587, 0.114)


def augmentation(size: int) -> Callable[[Tensor], Tensor]:
    """PACS, Office-Home, mini-DomainNet and folders: random resized crop and flip; colours follow on the device."""
    from torchvision.transforms import v2  # slow import, and digits are not augmented

    return v2.Compose([v2.RandomResizedCrop(size, scale=(0.8, 1.0), antialias=True), v2.RandomHorizontalFlip()])


def colour_jitter(x: Tensor, strength: float, seed: int) -> Tensor:
    """Brightness, contrast and saturation by U(1 - s, 1 + s), hue by U(-s, s); a function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    factors = 1 + strength * (2 * torch.rand(4, len(x), 1, 1, 1, generator=generator) - 1)
    factors[3] -= 1
    factors = factors.to(x.device)
    for change in torch.randperm(4, generator=generator).tolist():
        x = (brightness, contrast, saturation, hue)[change](x, factors[change])
    return x


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).clamp_(0, 1)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(grey(x).mean((1, 2, 3), keepdim=True), x, factor).clamp_(0, 1)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(grey(x), x, factor).clamp_(0, 1)


def hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the colour wheel by `turn` of a whole turn: in HSV, value and chroma stay and the hue moves."""
    value, chroma, h = hue_of(x)
    h = h + 6 * turn
    parts = []
    for n in (5, 3, 1):  # red, green, blue
        k = (n + h) % 6
        parts.append(value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1))
    return torch.cat(parts, 1)


def hue_of(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, chroma and the hue as a number from 0 to 6, (B, 1, H, W) each."""
    value, where = x.max(1, keepdim=True)
    chroma = value - x.amin(1, keepdim=True)
    red, green, blue = x.split(1, 1)
    behind = torch.cat([green - blue, blue - red, red - green], 1).gather(1, where)
    return value, chroma, behind / chroma.clamp_min(1e-12) + 2 * where


def grey(x: Tensor) -> Tensor:
    return GREY[0] * x[:, 0:1] + GREY[1] * x[:, 1:2] + GREY[2] * x[:, 2:3]
