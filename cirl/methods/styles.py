"""Style of feature maps: mean and variance over the pixels, per image and channel (for MixStyle and SagNet)."""

import torch
from torch import Tensor


def style(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance, (B, C, 1, 1) each."""
    variance, mean = torch.var_mean(maps, (2, 3), keepdim=True)
    return mean, variance
