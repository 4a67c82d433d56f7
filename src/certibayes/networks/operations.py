"""The vocabulary of our graphs: what one node of a network computes.

An operation is a frozen dataclass of plain settings with one method, ``evaluate``. It holds no tensors: its
weights are given by *role* ("weight", "bias", "running_mean", ...), so the same operation serves every posterior
sample. Bounds are not here; ``certibayes.bounds`` maps each operation type to its rules.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import _patches
from certibayes.networks.moments import per_channel

Weights = dict[str, Tensor]
"""Tensors of one node by role."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class Operation:
    """Base of all operations; subclasses register themselves by name, so that a graph can be stored as JSON."""

    known: ClassVar[dict[str, type[Operation]]] = {}

    def __init_subclass__(cls) -> None:
        """Remember the subclass under its name; a later one of the same name wins."""
        Operation.known[cls.__name__] = cls

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """Compute the output for a batch of inputs, each of shape (B, ...)."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the operation's name and settings."""
        return {"type": type(self).__name__, **asdict(self)}

    @staticmethod
    def from_json(record: dict[str, Any]) -> Operation:
        """Rebuild an operation from ``to_json``'s answer."""
        settings = dict(record)
        name = settings.pop("type")
        if name not in Operation.known:
            raise UnsupportedLayer(
                f"this network holds an operation {name!r} that is not known here. If it is your own, import "
                "the module that defines it before loading."
            )
        frozen = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
        return Operation.known[name](**frozen)


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
class Reshape(Operation):
    """Give every example the stated shape; flatten, view and reshape all become this."""

    shape: tuple[int, ...]

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0].reshape(inputs[0].shape[0], *self.shape)


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
