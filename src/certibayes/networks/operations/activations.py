"""Functions of one number, applied to every number apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

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
