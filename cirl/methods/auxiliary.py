"""Adam for the networks that a method trains beside the encoder, with the run's schedule."""

import torch
from torch import nn


def adam(rate: float, *nets: nn.Module, betas: tuple[float, float] = (0.9, 0.999)) -> torch.optim.Adam:
    groups = [{"params": [*net.parameters()], "base_lr": rate, "decays": True} for net in nets]
    return torch.optim.Adam(groups, rate, betas=betas)
