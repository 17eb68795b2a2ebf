"""Style of feature maps: their mean and deviation over the pixels, per image and channel (for MixStyle and SagNet)."""

from torch import Tensor

EPSILON = 1e-6


def style(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, (B, C, 1, 1) each."""
    mean = maps.mean((2, 3), keepdim=True)
    return mean, (maps.var((2, 3), keepdim=True, unbiased=False) + EPSILON).sqrt()


def restyled(maps: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The content of the maps in another style."""
    own_mean, own_std = style(maps)
    return (maps - own_mean) / own_std * std + mean
