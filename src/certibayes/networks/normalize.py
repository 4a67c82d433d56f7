"""Preprocessing as a layer, so that it is part of what is certified."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from certibayes.errors import InvalidInput
from certibayes.networks.operations import Normalize as NormalizeOperation


class Normalize(nn.Module):
    """(x - mean) / std per channel.

    Put it first in the network: radii and domains are then stated in the units of the raw inputs.

    Args:
        mean: one value, or one per channel (dimension 1 of the batch).
        std: likewise; must be positive.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]):
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float32).reshape(-1))
        self.register_buffer("std", torch.as_tensor(std, dtype=torch.float32).reshape(-1))
        if not bool((self.std > 0).all() & torch.isfinite(self.std).all() & torch.isfinite(self.mean).all()):
            raise InvalidInput(f"mean must be finite and std positive, got {mean} and {std}.")

    def extra_repr(self) -> str:
        """Show mean and standard deviation in the repr of the network."""
        mean, std = ([round(value, 6) for value in values.tolist()] for values in (self.mean, self.std))
        return f"mean={mean}, std={std}"

    def forward(self, x: Tensor) -> Tensor:
        """Normalize a batch (B, C, ...)."""
        return NormalizeOperation().evaluate({"mean": self.mean, "std": self.std}, x)
