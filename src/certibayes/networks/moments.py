"""Mean and variance of the channels of a batch, and their gradient.

    m = mean of x,        v = mean of (x - m)²,        dL/dx = (dL/dm + 2 (x - m) dL/dv) / n,

over the n values of a channel. Torch's own ``var_mean`` says the same, and takes several times as long on a CPU,
forward and backward; what its batch norm uses in training has no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """Shape (C,) values so that they broadcast against (B, C, ...)."""
    return values.view((-1,) + (1,) * (like.dim() - 2))


class _Moments(torch.autograd.Function):
    """See the module."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
        return mean, variance

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], output[0])

    @staticmethod
    def backward(ctx: Any, by_mean: Tensor, by_variance: Tensor) -> Tensor:
        x, mean = ctx.saved_tensors
        number = x.numel() // x.shape[1]
        slope = by_variance * (2.0 / number)
        return torch.addcmul(per_channel(by_mean / number - slope * mean, x), x, per_channel(slope, x))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Take the channels of all networks for those of one, (S, B, C, ...) -> (B, S C, ...)."""
        stacked = x.movedim(in_dims[0], 1)
        mean, variance = _Moments.apply(stacked.flatten(1, 2))
        shape = (info.batch_size, -1)
        return (mean.view(shape), variance.view(shape)), (0, 0)


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance, (C,) each, of every channel of a batch (B, C, ...).

    The variance is that of the values themselves, divided by their number and not by one less.
    """
    mean, variance = _Moments.apply(x)
    return mean, variance
