"""What each of our operations is in ONNX: one short entry each, the counterparts of those in ``_onnx_operators``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.graph import Node, Params

if TYPE_CHECKING:
    from certibayes.networks.onnx_export import OnnxWriter

OPSET, IR_VERSION = 17, 8
"""Old enough for other tools to read, new enough to have every operator in its present form."""


class NodeToWrite:
    """A node to be written: what its inputs are called, and its weights on request."""

    def __init__(
        self, writer: OnnxWriter, node: Node, tensors: Params, inputs: tuple[str, ...], shape: tuple[int, ...]
    ):
        self.writer, self.node, self.inputs, self.input_shape = writer, node, inputs, shape
        self.x = inputs[0]
        self._tensors = tensors

    def weight(self, role: str) -> str:
        """Return the name of a weight."""
        name = self.node.roles[role]
        return self.writer.constant(self._tensors[name], name)

    def optional(self, *roles: str) -> tuple[str, ...]:
        """Return the names of those weights that there are."""
        return tuple(self.weight(role) for role in roles if role in self.node.roles)

    def number_or(self, constant: float | None, role: str) -> str:
        """Return the name of a constant that is a number, or else of a weight."""
        return self.weight(role) if constant is None else self.writer.constant(constant)

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of the file."""
        return self.writer.add(kind, *inputs, **attributes)

    def unsupported(self, why: str) -> UnsupportedLayer:
        """Return the error that says why the node cannot be written."""
        return UnsupportedLayer(f"{type(self.node.operation).__name__} cannot be written as ONNX: {why}.")


def _pads(padding: ops.Pair) -> list[int]:
    return [*padding, *padding]


def _linear(operation: ops.Linear, node: NodeToWrite) -> str:
    if len(node.input_shape) == 1:
        return node.add("Gemm", node.x, node.weight("weight"), *node.optional("bias"), transB=1)
    product = node.add("MatMul", node.x, node.add("Transpose", node.weight("weight"), perm=[1, 0]))
    return node.add("Add", product, *node.optional("bias")) if "bias" in node.node.roles else product


def _conv(operation: ops.Conv2d, node: NodeToWrite) -> str:
    return node.add(
        "Conv", node.x, node.weight("weight"), *node.optional("bias"), strides=operation.stride,
        pads=_pads(operation.padding), dilations=operation.dilation, group=operation.groups,
    )  # fmt: skip


def _conv1d(operation: ops.Conv1d, node: NodeToWrite) -> str:
    return node.add(
        "Conv", node.x, node.weight("weight"), *node.optional("bias"), strides=[operation.stride],
        pads=[operation.padding] * 2, dilations=[operation.dilation], group=operation.groups,
    )  # fmt: skip


def _conv_transpose(operation: ops.ConvTranspose2d, node: NodeToWrite) -> str:
    return node.add(
        "ConvTranspose", node.x, node.weight("weight"), *node.optional("bias"), strides=operation.stride,
        pads=_pads(operation.padding), output_padding=operation.output_padding, dilations=operation.dilation,
        group=operation.groups,
    )  # fmt: skip


def _matmul(operation: ops.MatMul, node: NodeToWrite) -> str:
    return node.add("MatMul", node.x, node.weight("weight"))


def _sum(operation: ops.Sum, node: NodeToWrite) -> str:
    return node.add("ReduceSum", node.x, node.writer.sizes(*operation.dims), keepdims=int(operation.keepdim))


def _mean(operation: ops.Mean, node: NodeToWrite) -> str:
    return node.add("ReduceMean", node.x, axes=operation.dims, keepdims=int(operation.keepdim))


def _leaky_relu(operation: ops.LeakyReLU, node: NodeToWrite) -> str:
    return node.add("LeakyRelu", node.x, alpha=operation.slope)


def _clamp(operation: ops.Clamp, node: NodeToWrite) -> str:
    low, high = ("" if end is None else node.writer.constant(end) for end in (operation.low, operation.high))
    return node.add("Clip", node.x, low, *([high] if high else []))


def _prelu(operation: ops.PReLU, node: NodeToWrite) -> str:
    shape = node.writer.sizes(-1, *[1] * (len(node.input_shape) - 1))
    return node.add("PRelu", node.x, node.add("Reshape", node.weight("weight"), shape))


def _elu(operation: ops.ELU, node: NodeToWrite) -> str:
    if operation.input_scale != 1.0:
        if node.writer.dtype != torch.float32:
            raise node.unsupported("Celu has float32 alone")
        return node.add("Celu", node.x, alpha=operation.alpha)
    if operation.scale != 1.0:
        return node.add("Selu", node.x, alpha=operation.alpha, gamma=operation.scale)
    return node.add("Elu", node.x, alpha=operation.alpha)


def _softplus(operation: ops.Softplus, node: NodeToWrite) -> str:
    if operation.beta == 1.0:
        return node.add("Softplus", node.x)
    beta = node.writer.constant(operation.beta)
    return node.add("Div", node.add("Softplus", node.add("Mul", node.x, beta)), beta)


def _without_operator(operation: ops.Operation, node: NodeToWrite) -> str:
    raise node.unsupported(f"opset {OPSET} has no operator for it")


def _reshape(operation: ops.Reshape, node: NodeToWrite) -> str:
    if len(operation.shape) == 1:
        return node.add("Flatten", node.x, axis=1)
    return node.add("Reshape", node.x, node.writer.sizes(-1, *operation.shape))


def _max_pool(operation: ops.MaxPool2d, node: NodeToWrite) -> str:
    return node.add(
        "MaxPool", node.x, kernel_shape=operation.kernel, strides=operation.stride, pads=_pads(operation.padding),
        dilations=operation.dilation, ceil_mode=int(operation.ceil_mode),
    )  # fmt: skip


def _avg_pool(operation: ops.AvgPool2d, node: NodeToWrite) -> str:
    if operation.divisor is not None and operation.ceil_mode:
        raise node.unsupported("a divisor of its own, with windows that reach over the border")
    output = node.add(
        "AveragePool", node.x, kernel_shape=operation.kernel, strides=operation.stride,
        pads=_pads(operation.padding), ceil_mode=int(operation.ceil_mode),
        count_include_pad=int(operation.count_include_pad or operation.divisor is not None),
    )  # fmt: skip
    if operation.divisor is None:
        return output
    area = operation.kernel[0] * operation.kernel[1]
    return node.add("Mul", output, node.writer.constant(area / operation.divisor))


def _adaptive_avg_pool(operation: ops.AdaptiveAvgPool2d, node: NodeToWrite) -> str:
    made, read = node.node.shape[1:], node.input_shape[1:]
    if tuple(made) == (1, 1):
        return node.add("GlobalAveragePool", node.x)
    if any(size % parts for size, parts in zip(read, made, strict=True)):
        raise node.unsupported(f"images of {read} do not divide evenly into {made} windows")
    kernel = [size // parts for size, parts in zip(read, made, strict=True)]
    return node.add("AveragePool", node.x, kernel_shape=kernel, strides=kernel)


def _batch_norm(operation: ops.BatchNorm, node: NodeToWrite) -> str:
    mean, variance = node.weight("running_mean"), node.weight("running_var")
    channels = node.input_shape[0]
    scale = node.weight("weight") if "weight" in node.node.roles else node.writer.constant(torch.ones(channels))
    bias = node.weight("bias") if "bias" in node.node.roles else node.writer.constant(torch.zeros(channels))
    return node.add("BatchNormalization", node.x, scale, bias, mean, variance, epsilon=operation.eps)


def _in_groups(groups: int, node: NodeToWrite) -> str:
    return node.add("Reshape", node.x, node.writer.sizes(1, groups, -1))


def _center(operation: ops.Center, node: NodeToWrite) -> str:
    x = _in_groups(operation.groups, node)
    centered = node.add("Sub", x, node.add("ReduceMean", x, axes=[-1], keepdims=1))
    return node.add("Reshape", centered, node.writer.sizes(1, *node.input_shape))


def _norm(operation: ops.RootMeanSquareNorm, node: NodeToWrite) -> str:
    x = _in_groups(operation.groups, node)
    square = node.add("ReduceMean", node.add("Mul", x, x), axes=[-1], keepdims=1)
    root = node.add("Sqrt", node.add("Add", square, node.writer.constant(operation.eps)))
    y = node.add("Reshape", node.add("Div", x, root), node.writer.sizes(1, *node.input_shape))
    for kind, role in (("Mul", "weight"), ("Add", "bias")):
        if role in node.node.roles:
            weight = node.weight(role)
            if operation.by_channel:
                weight = node.add("Reshape", weight, node.writer.sizes(-1, *[1] * (len(node.input_shape) - 1)))
            y = node.add(kind, y, weight)
    return y


def _normalize(operation: ops.Normalize, node: NodeToWrite) -> str:
    shape = node.writer.sizes(-1, *[1] * (len(node.input_shape) - 1))
    mean, std = (node.add("Reshape", node.weight(role), shape) for role in ("mean", "std"))
    return node.add("Div", node.add("Sub", node.x, mean), std)


def _multiply(operation: ops.Multiply, node: NodeToWrite) -> str:
    return node.add("Mul", node.x, node.number_or(operation.constant, "factor"))


def _divide(operation: ops.Divide, node: NodeToWrite) -> str:
    return node.add("Div", node.x, node.number_or(operation.constant, "divisor"))


def _shift(operation: ops.Shift, node: NodeToWrite) -> str:
    offset = node.number_or(operation.constant, "offset")
    if operation.sign > 0:
        return node.add("Add" if operation.offset_sign > 0 else "Sub", node.x, offset)
    if operation.offset_sign > 0:
        return node.add("Sub", offset, node.x)
    return node.add("Sub", node.add("Neg", node.x), offset)


def _permute(operation: ops.Permute, node: NodeToWrite) -> str:
    return node.add("Transpose", node.x, perm=[0, *operation.order])


def _slice(operation: ops.Slice, node: NodeToWrite) -> str:
    numbers = (operation.starts, operation.stops, range(1, len(operation.starts) + 1), operation.steps)
    return node.add("Slice", node.x, *(node.writer.sizes(*each) for each in numbers))


def _concatenate(operation: ops.Concatenate, node: NodeToWrite) -> str:
    return node.add("Concat", *node.inputs, axis=operation.dim)


def _pad(operation: ops.Pad, node: NodeToWrite) -> str:
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    if operation.mode not in modes:
        raise node.unsupported(f"padding by {operation.mode!r} is newer than opset {OPSET}")
    padded = len(operation.widths) // 2
    rest = [0] * (len(node.input_shape) + 1 - padded)
    before, after = ([*rest, *operation.widths[side::2][::-1]] for side in (0, 1))
    x = node.x
    if min(operation.widths) < 0:
        # Other tools know negative widths of Slice alone.
        starts = [max(0, -width) for width in before]
        stops = [size - max(0, -width) for size, width in zip((1, *node.input_shape), after, strict=True)]
        x = node.add("Slice", x, node.writer.sizes(*starts), node.writer.sizes(*stops))
        before, after = ([max(0, width) for width in side] for side in (before, after))
    return node.add(
        "Pad", x, node.writer.sizes(*before, *after), node.writer.constant(operation.value),
        mode=modes[operation.mode],
    )  # fmt: skip


def _upsample(operation: ops.Upsample, node: NodeToWrite) -> str:
    sides = len(node.input_shape) + 1 - len(operation.factors)
    scales = node.writer.floats(*[1] * sides, *operation.factors)
    return node.add(
        "Resize", node.x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )  # fmt: skip


def _plain(kind: str) -> Callable[[Any, NodeToWrite], str]:
    """Return the entry of an operation without settings."""
    return lambda operation, node: node.add(kind, *node.inputs)


ENTRIES: Mapping[type[ops.Operation], Callable[[Any, NodeToWrite], str]] = {
    ops.Linear: _linear,
    ops.MatMul: _matmul,
    ops.Conv2d: _conv,
    ops.Conv1d: _conv1d,
    ops.ConvTranspose2d: _conv_transpose,
    ops.Sum: _sum,
    ops.Mean: _mean,
    ops.ReLU: _plain("Relu"),
    ops.LeakyReLU: _leaky_relu,
    ops.Clamp: _clamp,
    ops.PReLU: _prelu,
    ops.ELU: _elu,
    ops.Softplus: _softplus,
    ops.GELU: _without_operator,
    ops.SiLU: _without_operator,
    ops.Hardswish: _plain("HardSwish"),
    ops.Tanh: _plain("Tanh"),
    ops.Sigmoid: _plain("Sigmoid"),
    ops.Reshape: _reshape,
    ops.Permute: _permute,
    ops.Slice: _slice,
    ops.Concatenate: _concatenate,
    ops.Pad: _pad,
    ops.Upsample: _upsample,
    ops.MaxPool2d: _max_pool,
    ops.AvgPool2d: _avg_pool,
    ops.AdaptiveAvgPool2d: _adaptive_avg_pool,
    ops.BatchNorm: _batch_norm,
    ops.Center: _center,
    ops.RootMeanSquareNorm: _norm,
    ops.Normalize: _normalize,
    ops.Multiply: _multiply,
    ops.Divide: _divide,
    ops.Shift: _shift,
    ops.Add: _plain("Add"),
    ops.Subtract: _plain("Sub"),
}
"""Operation -> what writes it and returns the name of its output."""
