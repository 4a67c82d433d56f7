"""Maxima and means over windows, sums and means over whole dimensions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from certibayes.networks.operations.base import Operation, Pair, Weights


@dataclass(frozen=True)
class MaxPool2d(Operation):
    """Maximum over windows of (B, C, H, W) images."""

    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    ceil_mode: bool = False

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return functional.max_pool2d(inputs[0], self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)


@dataclass(frozen=True)
class AvgPool2d(Operation):
    """Mean over windows of (B, C, H, W) images."""

    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor: int | None = None

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return functional.avg_pool2d(
            inputs[0],
            self.kernel,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor,
        )


@dataclass(frozen=True)
class AdaptiveAvgPool2d(Operation):
    """Mean over as many windows as the output has pixels; ``None`` keeps the input's size."""

    size: tuple[int | None, int | None]

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return functional.adaptive_avg_pool2d(inputs[0], self.size)


@dataclass(frozen=True)
class Sum(Operation):
    """The sum over some dimensions of an example; that of the batch is 0."""

    dims: tuple[int, ...]
    keepdim: bool = False

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0].sum(self.dims, self.keepdim)


@dataclass(frozen=True)
class Mean(Operation):
    """The mean over some dimensions of an example; that of the batch is 0."""

    dims: tuple[int, ...]
    keepdim: bool = False

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0].mean(self.dims, self.keepdim)
