"""``to_onnx``: a network as an ONNX file, written from our graph, so that any tool can check what we say of it.

Every operation has one entry, the counterpart of those in ``_onnx_operators``. Nothing of torch's exporter is needed,
and the file holds what was bounded: the graph, not the module it was traced from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.graph import INPUT, Graph, Node, Params
from certibayes.networks.onnx_import import EXTRA
from certibayes.networks.trace import Network, trace
from certibayes.support.files import write_atomically
from certibayes.support.optional import require_package

OPSET, IR_VERSION = 17, 8
"""Old enough for other tools to read, new enough to have every operator in its present form."""

SOURCE, RESULT = "X", "Y"
"""Names of a file's input and output, after the variables of VNN-LIB."""


class OnnxWriter:
    """An ONNX graph in the making.

    Args:
        input_shape: shape of one example; the file's batch is 1.
        dtype: float32 or float64.
    """

    def __init__(self, input_shape: tuple[int, ...], dtype: torch.dtype):
        self.onnx = require_package("onnx", EXTRA)
        self.input_shape, self.dtype = input_shape, dtype
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.prefix = ""

    def add(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        output = name or f"{self.prefix}{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, value: Tensor | float, name: str | None = None) -> str:
        """Add a constant in the network's precision, and return its name."""
        tensor = torch.as_tensor(value, dtype=self.dtype)
        return self._initializer(tensor.detach().cpu().numpy(), name)

    def sizes(self, *numbers: int) -> str:
        """Add a list of whole numbers, and return its name."""
        return self._initializer(np.array(numbers, dtype=np.int64), None)

    def _initializer(self, array: np.ndarray, name: str | None) -> str:
        name = f"{self.prefix}{name or f'constant_{len(self.initializers)}'}"
        if all(entry.name != name for entry in self.initializers):
            self.initializers.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def network(self, graph: Graph, tensors: Params, prefix: str = "", name: str | None = None) -> str:
        """Add a whole network that reads the file's input.

        Args:
            graph: what is computed.
            tensors: its parameters and buffers.
            prefix: put before all names, so that several networks can stand in one file.
            name: of its output.

        Returns:
            The name of its output, (1, C).
        """
        self.prefix = prefix
        shapes, made = {INPUT: graph.input_shape}, {INPUT: SOURCE}
        for node in graph.nodes:
            kind = type(node.operation)
            if kind not in _ENTRIES:
                raise UnsupportedLayer(f"the operation {kind.__name__} (node {node.name!r}) cannot be written as ONNX.")
            call = _Node(self, node, tensors, tuple(made[source] for source in node.inputs), shapes[node.inputs[0]])
            made[node.name], shapes[node.name] = _ENTRIES[kind](node.operation, call), node.shape
        self.prefix = ""
        output = made[graph.nodes[-1].name]
        return output if name is None else self.add("Identity", output, name=name)

    def model(self, outputs: int) -> Any:
        """Return the ``onnx.ModelProto``; ``RESULT`` must be the name of some node's output, (1, outputs)."""
        helper, numbers = self.onnx.helper, self.onnx.TensorProto
        kind = {torch.float32: numbers.FLOAT, torch.float64: numbers.DOUBLE}[self.dtype]
        graph = helper.make_graph(
            self.nodes,
            "certibayes",
            [helper.make_tensor_value_info(SOURCE, kind, [1, *self.input_shape])],
            [helper.make_tensor_value_info(RESULT, kind, [1, outputs])],
            self.initializers,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="certibayes"
        )
        self.onnx.checker.check_model(model, full_check=True)
        return model


def to_onnx(net: nn.Module | Network, path: str | Path, example: Tensor | None = None) -> Path:
    """Write a network as an ONNX file.

    Args:
        net: a module made of supported layers, or a traced network.
        path: of the file.
        example: a batch of inputs, where the module does not tell the shape of one.

    Returns:
        The path.

    Raises:
        MissingPackage: onnx is not installed.
        UnsupportedLayer: an operation cannot be written as ONNX, or has no bounds to begin with.
    """
    network = net if isinstance(net, Network) else trace(net, example)
    tensors = {**network.params, **network.buffers}
    writer = OnnxWriter(network.graph.input_shape, next(iter(tensors.values()), torch.zeros(())).dtype)
    writer.network(network.graph, tensors, name=RESULT)
    return write_model(writer.model(network.graph.classes), path)


def write_model(model: Any, path: str | Path) -> Path:
    """Write an ``onnx.ModelProto`` to a file, all at once."""
    write_atomically(Path(path), model.SerializeToString())
    return Path(path)


class _Node:
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


def _linear(operation: ops.Linear, node: _Node) -> str:
    return node.add("Gemm", node.x, node.weight("weight"), *node.optional("bias"), transB=1)


def _conv(operation: ops.Conv2d, node: _Node) -> str:
    return node.add(
        "Conv", node.x, node.weight("weight"), *node.optional("bias"), strides=operation.stride,
        pads=_pads(operation.padding), dilations=operation.dilation, group=operation.groups,
    )  # fmt: skip


def _leaky_relu(operation: ops.LeakyReLU, node: _Node) -> str:
    return node.add("LeakyRelu", node.x, alpha=operation.slope)


def _reshape(operation: ops.Reshape, node: _Node) -> str:
    if len(operation.shape) == 1:
        return node.add("Flatten", node.x, axis=1)
    return node.add("Reshape", node.x, node.writer.sizes(-1, *operation.shape))


def _max_pool(operation: ops.MaxPool2d, node: _Node) -> str:
    return node.add(
        "MaxPool", node.x, kernel_shape=operation.kernel, strides=operation.stride, pads=_pads(operation.padding),
        dilations=operation.dilation, ceil_mode=int(operation.ceil_mode),
    )  # fmt: skip


def _avg_pool(operation: ops.AvgPool2d, node: _Node) -> str:
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


def _adaptive_avg_pool(operation: ops.AdaptiveAvgPool2d, node: _Node) -> str:
    made, read = node.node.shape[1:], node.input_shape[1:]
    if tuple(made) == (1, 1):
        return node.add("GlobalAveragePool", node.x)
    if any(size % parts for size, parts in zip(read, made, strict=True)):
        raise node.unsupported(f"images of {read} do not divide evenly into {made} windows")
    kernel = [size // parts for size, parts in zip(read, made, strict=True)]
    return node.add("AveragePool", node.x, kernel_shape=kernel, strides=kernel)


def _batch_norm(operation: ops.BatchNorm, node: _Node) -> str:
    mean, variance = node.weight("running_mean"), node.weight("running_var")
    channels = node.input_shape[0]
    scale = node.weight("weight") if "weight" in node.node.roles else node.writer.constant(torch.ones(channels))
    bias = node.weight("bias") if "bias" in node.node.roles else node.writer.constant(torch.zeros(channels))
    return node.add("BatchNormalization", node.x, scale, bias, mean, variance, epsilon=operation.eps)


def _normalize(operation: ops.Normalize, node: _Node) -> str:
    shape = node.writer.sizes(-1, *[1] * (len(node.input_shape) - 1))
    mean, std = (node.add("Reshape", node.weight(role), shape) for role in ("mean", "std"))
    return node.add("Div", node.add("Sub", node.x, mean), std)


def _multiply(operation: ops.Multiply, node: _Node) -> str:
    return node.add("Mul", node.x, node.number_or(operation.constant, "factor"))


def _divide(operation: ops.Divide, node: _Node) -> str:
    return node.add("Div", node.x, node.number_or(operation.constant, "divisor"))


def _shift(operation: ops.Shift, node: _Node) -> str:
    offset = node.number_or(operation.constant, "offset")
    if operation.sign > 0:
        return node.add("Add" if operation.offset_sign > 0 else "Sub", node.x, offset)
    if operation.offset_sign > 0:
        return node.add("Sub", offset, node.x)
    return node.add("Sub", node.add("Neg", node.x), offset)


def _plain(kind: str) -> Callable[[Any, _Node], str]:
    """Return the entry of an operation without settings."""
    return lambda operation, node: node.add(kind, *node.inputs)


_ENTRIES: Mapping[type[ops.Operation], Callable[[Any, _Node], str]] = {
    ops.Linear: _linear,
    ops.Conv2d: _conv,
    ops.ReLU: _plain("Relu"),
    ops.LeakyReLU: _leaky_relu,
    ops.Tanh: _plain("Tanh"),
    ops.Sigmoid: _plain("Sigmoid"),
    ops.Reshape: _reshape,
    ops.MaxPool2d: _max_pool,
    ops.AvgPool2d: _avg_pool,
    ops.AdaptiveAvgPool2d: _adaptive_avg_pool,
    ops.BatchNorm: _batch_norm,
    ops.Normalize: _normalize,
    ops.Multiply: _multiply,
    ops.Divide: _divide,
    ops.Shift: _shift,
    ops.Add: _plain("Add"),
    ops.Subtract: _plain("Sub"),
}
"""Operation -> what writes it and returns the name of its output."""
