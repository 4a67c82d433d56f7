"""Functions of one number, applied to every number apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.networks.moments import per_channel
from certibayes.networks.operations.base import Operation, Weights


@dataclass(frozen=True)
class ReLU(Operation):
    """max(x, 0)."""

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return functional.relu(inputs[0])


@dataclass(frozen=True)
class LeakyReLU(Operation):
    """x where x > 0, slope * x elsewhere."""

    slope: float = 0.01

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return functional.leaky_relu(inputs[0], self.slope)


@dataclass(frozen=True)
class Tanh(Operation):
    """The hyperbolic tangent."""

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return torch.tanh(inputs[0])


@dataclass(frozen=True)
class Sigmoid(Operation):
    """1 / (1 + exp(-x))."""

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return torch.sigmoid(inputs[0])


@dataclass(frozen=True)
class Clamp(Operation):
    """min(max(x, low), high); None for no end. ReLU6 and Hardtanh are this."""

    low: float | None = None
    high: float | None = None

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return torch.clamp(inputs[0], self.low, self.high)


@dataclass(frozen=True)
class PReLU(Operation):
    """x where x > 0, weight * x elsewhere; the weight is one number, (1,), or one for each channel, (C,)."""

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        x = inputs[0]
        return torch.where(x > 0, x, x * self.slope(weights, x))

    def slope(self, weights: Weights, x: Tensor) -> Tensor:
        """Return the weight so that it broadcasts against x, (B, C, ...)."""
        return per_channel(weights["weight"], x) if x.dim() > 1 else weights["weight"]


@dataclass(frozen=True)
class ELU(Operation):
    """scale * x where x > 0, scale * alpha * (exp(input_scale * x) - 1) elsewhere: ELU, SELU and CELU."""

    alpha: float = 1.0
    scale: float = 1.0
    input_scale: float = 1.0

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        found: Tensor = torch.ops.aten.elu(inputs[0], self.alpha, self.scale, self.input_scale)
        return found


@dataclass(frozen=True)
class Softplus(Operation):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""

    beta: float = 1.0
    threshold: float = 20.0

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return functional.softplus(inputs[0], self.beta, self.threshold)


@dataclass(frozen=True)
class GELU(Operation):
    """x Φ(x), Φ the distribution function of a normal number; or its approximation by tanh."""

    approximate: str = "none"

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return functional.gelu(inputs[0], approximate=self.approximate)


@dataclass(frozen=True)
class SiLU(Operation):
    """x / (1 + exp(-x)), also called swish."""

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return functional.silu(inputs[0])


@dataclass(frozen=True)
class Hardswish(Operation):
    """x min(max(x + 3, 0), 6) / 6."""

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return functional.hardswish(inputs[0])
