"""Normalization of each example by itself: layer norm, group norm, instance norm and root mean square norm.

All of them are made of two operations on groups of numbers. Seen as (B, groups, n), each group of an example is

    Center:               d = x - mean(x)
    RootMeanSquareNorm:   y = d / sqrt(mean(d²) + eps) * weight + bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.networks.moments import per_channel
from certibayes.networks.operations.base import Operation, Weights


@dataclass(frozen=True)
class Center(Operation):
    """x less the mean of its group, for x seen as (B, groups, n)."""

    groups: int = 1

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        x = grouped(inputs[0], self.groups)
        return (x - x.mean(-1, keepdim=True)).reshape(inputs[0].shape)


@dataclass(frozen=True)
class RootMeanSquareNorm(Operation):
    """x / sqrt(mean of x² over its group + eps), times "weight" plus "bias", where there are any.

    In this order, square, mean, root and quotient: torch's own kernels differ in theirs from device to device, and some
    lose all digits where the mean is large.

    Attributes:
        groups: x is seen as (B, groups, n).
        eps: added to the mean square.
        by_channel: weights are (C,), for dimension 1; else they have the shape of the last dimensions.
    """

    groups: int = 1
    eps: float = 1e-5
    by_channel: bool = False

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        x = grouped(inputs[0], self.groups)
        y = (x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.eps)).reshape(inputs[0].shape)
        wide = {role: self.wide(weight, y) for role, weight in weights.items()}
        y = y * wide["weight"] if "weight" in wide else y
        return y + wide["bias"] if "bias" in wide else y

    def wide(self, weight: Tensor, like: Tensor) -> Tensor:
        """Shape a weight so that it broadcasts against (B, ...)."""
        return per_channel(weight, like) if self.by_channel else weight


def grouped(x: Tensor, groups: int) -> Tensor:
    """See x (B, ...) as (B, groups, n)."""
    return x.reshape(len(x), groups, math.prod(x.shape[1:]) // groups)
