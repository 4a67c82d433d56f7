"""ONNX's operators as torch modules: one short entry each.

An entry reads one node of an ONNX graph, with its constants, and returns the module that computes it from the node's
activations. What torch.fx then makes of the module has rules, so an operator belongs here only if its modules do.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from certibayes.networks._onnx_call import Activation, Call

Pads = tuple[tuple[int, int], tuple[int, int]]
"""Rows of zeros above and below an image, and columns to its left and right."""


Entry = Callable[[Call], nn.Module]
Layer = TypeVar("Layer", bound=nn.Module)

OPERATORS: dict[str, Entry] = {}
"""By ONNX's names; the module is called with the node's activations in order."""


def onnx_operator(*kinds: str) -> Callable[[Entry], Entry]:
    """Decorate the entry of one or several operators."""

    def register(entry: Entry) -> Entry:
        OPERATORS.update(dict.fromkeys(kinds, entry))
        return entry

    return register


class Reshape(nn.Module):
    """Give every example the stated shape."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.shape = tuple(int(size) for size in shape)

    def extra_repr(self) -> str:
        """Show the shape in the repr of the network."""
        return f"shape={self.shape}"

    def forward(self, x: Tensor) -> Tensor:
        """Reshape a batch."""
        return torch.reshape(x, (-1, *self.shape))


class Reduction(nn.Module):
    """The mean or the sum over some dimensions."""

    def __init__(self, mean: bool, dims: tuple[int, ...], keepdim: bool):
        super().__init__()
        self.mean, self.dims, self.keepdim = mean, dims, keepdim

    def extra_repr(self) -> str:
        """Show the settings in the repr of the network."""
        return f"{'mean' if self.mean else 'sum'}, dims={self.dims}, keepdim={self.keepdim}"

    def forward(self, x: Tensor) -> Tensor:
        """Reduce a batch."""
        return x.mean(self.dims, self.keepdim) if self.mean else x.sum(self.dims, self.keepdim)


class Arithmetic(nn.Module):
    """A sum or difference of two activations."""

    def __init__(self, function: Callable[[Any, Any], Any]):
        super().__init__()
        self.function = function

    def extra_repr(self) -> str:
        """Show the operation in the repr of the network."""
        return self.function.__name__

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Apply the operation."""
        result: Tensor = self.function(left, right)
        return result


class WithConstant(Arithmetic):
    """An activation and a constant, on either side: a number, or a buffer that broadcasts against one example."""

    def __init__(self, function: Callable[[Any, Any], Any], constant: float | Tensor, on_left: bool):
        super().__init__(function)
        self.on_left, self.number = on_left, constant if isinstance(constant, float) else None
        self.register_buffer("constant", constant if isinstance(constant, Tensor) else None)

    def forward(self, x: Tensor, right: Tensor | None = None) -> Tensor:
        """Apply the operation; there is no activation on the right."""
        constant: Any = self.constant if self.number is None else self.number
        result: Tensor = self.function(constant, x) if self.on_left else self.function(x, constant)
        return result


# Layers with weights


@onnx_operator("Gemm")
def _(call: Call) -> nn.Module:
    if call.attributes.get("transA", 0) or len(call.x.shape) != 2:
        raise call.unsupported("its first input must be a batch of vectors, not transposed")
    weight = call.weight(1) * call.attributes.get("alpha", 1.0)
    weight = weight if call.attributes.get("transB", 0) else weight.T
    bias = call.constant(2)
    if bias is not None:
        bias = (bias * call.attributes.get("beta", 1.0)).expand(1, len(weight))[0]
    return linear(weight, bias)


@onnx_operator("MatMul")
def _(call: Call) -> nn.Module:
    right = isinstance(call.inputs[0], Activation)
    (activation,), weight = call.activations, call.weight(1) if right else call.weight(0)
    shape, weight = activation.shape, weight.T if right else weight
    # x W for rows, W x for a column; another product multiplies several vectors of one example from the left.
    size, others = (shape[-1], ()) if right else (shape[-2] if len(shape) > 2 else 0, (*shape[1:-2], shape[-1]))
    if weight.dim() != 2 or weight.shape[1] != size or any(other != 1 for other in others):
        raise call.unsupported(f"only one vector of an example is multiplied by a matrix, not shape {shape}")
    layer = linear(weight, None)
    if right:
        return layer
    return nn.Sequential(Reshape((size,)), layer, Reshape((*shape[1:-2], len(weight), 1)))


@onnx_operator("Conv")
def _(call: Call) -> nn.Module:
    if len(call.x.shape) == 3:
        return _sequence_convolution(call)
    call.image()
    weight, stride, dilation = call.weight(1), call.pair("strides"), call.pair("dilations")
    kernel = (weight.shape[2], weight.shape[3])
    weight, padding = symmetric(call, weight, pads_of(call, kernel, stride, dilation), dilation)
    groups, outputs = int(call.attributes.get("group", 1)), len(weight)
    layer = nn.Conv2d(
        weight.shape[1] * groups, outputs, (weight.shape[2], weight.shape[3]), stride, padding, dilation, groups,
        bias=call.constant(2) is not None,
    )  # fmt: skip
    return with_weights(layer, weight=weight, bias=call.constant(2))


def _sequence_convolution(call: Call) -> nn.Module:
    weight, bias, groups = call.weight(1), call.constant(2), int(call.attributes.get("group", 1))
    (stride,), (dilation,) = (call.attributes.get(name, (1,)) for name in ("strides", "dilations"))
    near, far = call.attributes.get("pads", (0, 0))
    if call.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or near != far:
        raise call.unsupported("its padding is not given by equal numbers")
    outputs, channels, kernel = weight.shape
    layer = nn.Conv1d(channels * groups, outputs, kernel, stride, near, dilation, groups, bias=bias is not None)
    return with_weights(layer, weight=weight, bias=bias)


@onnx_operator("ConvTranspose")
def _(call: Call) -> nn.Module:
    call.image()
    weight, bias, groups = call.weight(1), call.constant(2), int(call.attributes.get("group", 1))
    top, left, bottom, right = call.attributes.get("pads", (0, 0, 0, 0))
    words = call.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
    if groups > 1:
        raise call.unsupported("its channels are in groups, for which onnx's reference has no evaluation")
    if words or "output_shape" in call.attributes or (top, left) != (bottom, right):
        raise call.unsupported("its padding is not given by equal numbers on both sides")
    layer = nn.ConvTranspose2d(
        len(weight), weight.shape[1], (weight.shape[2], weight.shape[3]), call.pair("strides"), (top, left),
        call.pair("output_padding", 0), 1, bias is not None, call.pair("dilations"),
    )  # fmt: skip
    return with_weights(layer, weight=weight, bias=bias)


@onnx_operator("BatchNormalization")
def _(call: Call) -> nn.Module:
    if call.attributes.get("training_mode", 0) or call.outputs > 1:
        raise call.unsupported("it is in training mode; export the network in eval mode")
    scale, bias, mean, variance = (call.weight(index) for index in range(1, 5))
    kind = nn.BatchNorm2d if len(call.x.shape) == 4 else nn.BatchNorm1d
    layer = kind(len(scale), eps=float(call.attributes.get("epsilon", 1e-5)))
    return with_weights(layer, weight=scale, bias=bias, running_mean=mean, running_var=variance)


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer with these weights, (m, n) and (m,)."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    return with_weights(layer, weight=weight, bias=bias)


def with_weights(layer: Layer, **weights: Tensor | None) -> Layer:
    """Put weights into a layer, in their own precision."""
    layer = layer.to(next(weight.dtype for weight in weights.values() if weight is not None))
    with torch.no_grad():
        for name, weight in weights.items():
            if weight is not None:
                getattr(layer, name).copy_(weight)
    return layer.eval()


def pads_of(call: Call, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]) -> Pads:
    """Read the padding, given by numbers or by the words of ``auto_pad``."""
    how = call.attributes.get("auto_pad", b"NOTSET").decode()
    if how == "VALID":
        return (0, 0), (0, 0)
    if how == "NOTSET":
        top, left, bottom, right = call.attributes.get("pads", (0, 0, 0, 0))
        return (top, bottom), (left, right)
    both = []
    for size, span, step, reach in zip(call.image().shape[2:], kernel, stride, dilation, strict=True):
        total = max(0, (math.ceil(size / step) - 1) * step + (span - 1) * reach + 1 - size)
        near = total // 2 if how == "SAME_UPPER" else total - total // 2
        both.append((near, total - near))
    return both[0], both[1]


def symmetric(call: Call, weight: Tensor, pads: Pads, dilation: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """Return filters and symmetric padding that compute the same: filters are widened by zeros on the padded side."""
    wider = []
    for (near, far), reach in zip(pads, dilation, strict=True):
        extra, rest = divmod(abs(far - near), reach)
        if rest:
            raise call.unsupported(f"its padding {pads} is not symmetric, and dilated")
        wider.append((extra, 0) if far > near else (0, extra))
    (above, below), (left, right) = wider
    weight = nn.functional.pad(weight, (left, right, above, below))
    return weight, (max(pads[0]), max(pads[1]))


# Pooling


@onnx_operator("MaxPool")
def _(call: Call) -> nn.Module:
    if call.outputs > 1:
        raise call.unsupported("its indices are used")
    kernel, stride, padding, dilation = _window(call)
    return nn.MaxPool2d(kernel, stride, padding, dilation, ceil_mode=bool(call.attributes.get("ceil_mode", 0)))


@onnx_operator("AveragePool")
def _(call: Call) -> nn.Module:
    kernel, stride, padding, dilation = _window(call)
    if dilation != (1, 1):
        raise call.unsupported("its windows are dilated")
    ceil_mode, count_include_pad = (bool(call.attributes.get(name, 0)) for name in ("ceil_mode", "count_include_pad"))
    return nn.AvgPool2d(kernel, stride, padding, ceil_mode, count_include_pad)


def _window(call: Call) -> tuple[tuple[int, int], ...]:
    """Return kernel, stride, padding and dilation of a pooling layer."""
    call.image()
    kernel, stride, dilation = call.pair("kernel_shape"), call.pair("strides"), call.pair("dilations")
    pads = pads_of(call, kernel, stride, dilation)
    if any(near != far for near, far in pads):
        raise call.unsupported(f"its padding {pads} is not symmetric")
    return kernel, stride, (pads[0][0], pads[1][0]), dilation


@onnx_operator("ReduceMean", "ReduceSum")
def _(call: Call) -> nn.Module:
    given = call.constant(1)
    # Older files have the axes as an attribute.
    axes: Any = call.attributes.get("axes", ()) if given is None else given.tolist()
    dims = tuple(sorted(int(axis) % len(call.x.shape) for axis in axes))
    if not dims or 0 in dims:
        raise call.unsupported("it goes over the batch")
    return Reduction(call.kind == "ReduceMean", dims, bool(call.attributes.get("keepdims", 1)))


@onnx_operator("GlobalAveragePool")
def _(call: Call) -> nn.Module:
    call.image()
    return nn.AdaptiveAvgPool2d(1)


# Arithmetic


@onnx_operator("Add")
def _(call: Call) -> nn.Module:
    return _arithmetic(call, operator.add)


@onnx_operator("Sub")
def _(call: Call) -> nn.Module:
    return _arithmetic(call, operator.sub)


@onnx_operator("Mul")
def _(call: Call) -> nn.Module:
    if len(call.activations) > 1:
        raise call.unsupported("a product of two activations has no rules; one factor must be a constant")
    return _arithmetic(call, operator.mul)


@onnx_operator("Div")
def _(call: Call) -> nn.Module:
    if isinstance(call.inputs[1], Activation):
        raise call.unsupported("it divides by an activation; the divisor must be a constant")
    return _arithmetic(call, operator.truediv)


@onnx_operator("Neg")
def _(call: Call) -> nn.Module:
    return WithConstant(operator.mul, -1.0, on_left=False)


def _arithmetic(call: Call, function: Callable[[Any, Any], Any]) -> nn.Module:
    left, right = call.inputs
    if isinstance(left, Activation) and isinstance(right, Activation):
        if len(left.shape) != len(right.shape):
            raise call.unsupported(f"shapes {left.shape} and {right.shape} have different numbers of dimensions")
        return Arithmetic(function)
    on_left = isinstance(right, Activation)
    (activation,), constant = call.activations, left if on_left else right
    assert isinstance(constant, Tensor)
    if constant.dim() == len(activation.shape) and len(constant) == 1 and constant.numel() > 1:
        constant = constant[0]  # of one example, like all weights
    if (constant.numel() > 1 and constant.dim() >= len(activation.shape)) or constant.dim() > len(activation.shape):
        raise call.unsupported(
            f"a constant of shape {tuple(constant.shape)} makes several of a batch {activation.shape}"
        )
    return WithConstant(function, float(constant) if constant.numel() == 1 else constant, on_left)
