"""Operations that move numbers and change none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.networks.operations.base import Operation, Weights


@dataclass(frozen=True)
class Reshape(Operation):
    """Give every example the stated shape; flatten, view and reshape all become this."""

    shape: tuple[int, ...]

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0].reshape(inputs[0].shape[0], *self.shape)


@dataclass(frozen=True)
class Permute(Operation):
    """Reorder the dimensions of an example; the batch is dimension 0 and stays in front."""

    order: tuple[int, ...]

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0].permute(0, *self.order)

    @property
    def inverse(self) -> Permute:
        """What puts the dimensions back."""
        return Permute(tuple(self.order.index(dim + 1) + 1 for dim in range(len(self.order))))


@dataclass(frozen=True)
class Slice(Operation):
    """Every ``steps``-th number from ``starts`` to before ``stops``, in every dimension of an example."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def index(self) -> tuple[slice, ...]:
        """How to index one example."""
        return tuple(slice(*ends) for ends in zip(self.starts, self.stops, self.steps, strict=True))

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0][(slice(None), *self.index)]


@dataclass(frozen=True)
class Concatenate(Operation):
    """Several nodes side by side along a dimension; that of the batch is 0."""

    dim: int

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return torch.cat(inputs, self.dim)


@dataclass(frozen=True)
class Pad(Operation):
    """Numbers around an example: a constant, or copies of its own.

    Attributes:
        widths: before and after each dimension, the last one first, as in ``torch.nn.functional.pad``; negative to
            crop.
        mode: ``"constant"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        value: the constant.
    """

    widths: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        if self.mode == "constant":
            return functional.pad(inputs[0], self.widths, value=self.value)
        return functional.pad(inputs[0], self.widths, self.mode)


@dataclass(frozen=True)
class Upsample(Operation):
    """Every number several times in a row, along each of the last dimensions: nearest neighbors of a larger image."""

    factors: tuple[int, ...]

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        x = inputs[0]
        for place, factor in enumerate(self.factors):
            x = x.repeat_interleave(factor, dim=place - len(self.factors))
        return x
