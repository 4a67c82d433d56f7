"""Elementwise arithmetic with constants, and sums of two nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.networks.moments import per_channel
from certibayes.networks.operations.base import Operation, Weights


@dataclass(frozen=True)
class BatchNorm(Operation):
    """(x - mean) / sqrt(var + eps) * weight + bias with given statistics, per channel (dimension 1).

    Statistics are constants, by the roles "running_mean" and "running_var"; or those of a training batch, by the roles
    "batch_mean" and "batch_var", which are differentiated. ``networks.batch_norm`` says which, and when.
    """

    eps: float = 1e-5

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        x = inputs[0]
        if "batch_mean" in weights:
            # Torch's own has no gradient for the statistics.
            scale = self.scale(weights)
            shift = -weights["batch_mean"] * scale
            shift = shift + weights["bias"] if "bias" in weights else shift
            return torch.addcmul(per_channel(shift, x), x, per_channel(scale, x))
        return functional.batch_norm(
            x,
            weights["running_mean"],
            weights["running_var"],
            weights.get("weight"),
            weights.get("bias"),
            training=False,
            eps=self.eps,
        )

    def scale(self, weights: Weights) -> Tensor:
        """Return what x is multiplied by, weight / sqrt(var + eps), (C,)."""
        inverse = torch.rsqrt(weights["batch_var" if "batch_var" in weights else "running_var"] + self.eps)
        return inverse * weights["weight"] if "weight" in weights else inverse


@dataclass(frozen=True)
class Normalize(Operation):
    """(x - mean) / std per channel (dimension 1), with mean and std of shape (C,)."""

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        mean, std = (per_channel(weights[role], inputs[0]) for role in ("mean", "std"))
        return (inputs[0] - mean) / std


@dataclass(frozen=True)
class Multiply(Operation):
    """x times a constant, given here as a number or by role "factor" as a parameter or buffer."""

    constant: float | None = None

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0] * (weights["factor"] if self.constant is None else self.constant)


@dataclass(frozen=True)
class Divide(Operation):
    """x divided by a constant, given here as a number or by role "divisor"."""

    constant: float | None = None

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0] / (weights["divisor"] if self.constant is None else self.constant)


@dataclass(frozen=True)
class Shift(Operation):
    """sign * x + a constant, given here as a number or by role "offset"; sign is 1 or -1.

    ``offset_sign`` is -1 for ``x - offset``.
    """

    constant: float | None = None
    sign: int = 1
    offset_sign: int = 1

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        offset = weights["offset"] if self.constant is None else self.constant
        x = inputs[0] if self.sign > 0 else -inputs[0]
        return x + offset if self.offset_sign > 0 else x - offset


@dataclass(frozen=True)
class Add(Operation):
    """The sum of two nodes: a residual connection."""

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0] + inputs[1]


@dataclass(frozen=True)
class Subtract(Operation):
    """The difference of two nodes."""

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0] - inputs[1]
