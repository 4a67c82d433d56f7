"""Layers with a matrix of weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.networks import _patches
from certibayes.networks.operations.base import Operation, Pair, Weights


@dataclass(frozen=True)
class Linear(Operation):
    """y = x Wᵀ + b, with x (B, n), W (m, n), b (m,)."""

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return functional.linear(inputs[0], weights["weight"], weights.get("bias"))


def _by_patches(x: Tensor) -> bool:
    """Tell whether a convolution is better made as a product over patches: on a GPU, while cuDNN is switched off."""
    return x.is_cuda and not torch.backends.cudnn.enabled


IMAGES = 50
"""Images that a CPU convolves at once in float64. torch copies the patches of all of them first, and those of so few
stay in its caches."""


@dataclass(frozen=True)
class Conv2d(Operation):
    """Cross-correlation of (B, C, H, W) images with zero padding."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return self.convolve(inputs[0], weights["weight"], weights.get("bias"))

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve with weights other than the layer's own, such as their absolute values."""
        if x.dtype == torch.float64 and not x.is_cuda and x.shape[0] > IMAGES:
            return torch.cat([self.convolve(part, weight, bias) for part in x.split(IMAGES)])
        if not _by_patches(x):
            return functional.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        down, across = self.padding
        y = _patches.convolve(x, weight, self.stride, (across, across, down, down), self.dilation, self.groups)
        return y if bias is None else y + bias[:, None, None]

    def filter_slope(self, derivative: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient with respect to the filters for derivatives of the outputs; on a GPU alone."""
        down, across = self.padding
        padding = (across, across, down, down)
        return _patches.filter_slope(derivative, x, weight, self.stride, padding, self.dilation, self.groups)

    def transpose(self, y: Tensor, weight: Tensor, size: Pair) -> Tensor:
        """Apply the transpose of the linear map to (B, O, oh, ow), for inputs (B, C, *size)."""
        reach = [self.dilation[i] * (weight.shape[2 + i] - 1) for i in range(2)]
        # What the strides left over at the far side.
        rest = [size[i] + 2 * self.padding[i] - reach[i] - 1 - (y.shape[2 + i] - 1) * self.stride[i] for i in range(2)]
        if not _by_patches(y):
            return functional.conv_transpose2d(
                y, weight, None, self.stride, self.padding, rest, self.groups, self.dilation
            )
        near = [reach[i] - self.padding[i] for i in range(2)]
        padding = (near[1], near[1] + rest[1], near[0], near[0] + rest[0])
        return _patches.convolve_transposed(y, weight, self.stride, padding, self.dilation, self.groups)


@dataclass(frozen=True)
class Conv1d(Operation):
    """Cross-correlation of (B, C, L) sequences with zero padding; weights are (O, C / groups, k)."""

    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        settings = self.stride, self.padding, self.dilation, self.groups
        return functional.conv1d(inputs[0], weights["weight"], weights.get("bias"), *settings)

    @property
    def on_images(self) -> Conv2d:
        """The same for images of one row."""
        return Conv2d((1, self.stride), (0, self.padding), (1, self.dilation), self.groups)


@dataclass(frozen=True)
class ConvTranspose2d(Operation):
    """The transpose of a convolution, of (B, C, H, W) images; weights are (C, O / groups, kh, kw)."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    output_padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return self.convolve(inputs[0], weights["weight"], weights.get("bias"))

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute with weights other than the layer's own, such as their absolute values."""
        return functional.conv_transpose2d(
            x, weight, bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )

    def terms(self, weight: Tensor) -> int:
        """Products that an output adds up, at most."""
        return len(weight) // self.groups * weight[0, 0].numel()

    def fan_in(self, weight: Tensor) -> float:
        """See the base class."""
        return float(self.terms(weight))


@dataclass(frozen=True)
class MatMul(Operation):
    """y = x W, with x (B, ..., n) and W (n, m)."""

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0] @ weights["weight"]

    def fan_in(self, weight: Tensor) -> float:
        """See the base class."""
        return float(len(weight))


AFFINE = (Linear, MatMul, Conv1d, Conv2d, ConvTranspose2d)
"""Layers with a matrix of weights, by the role "weight"."""
