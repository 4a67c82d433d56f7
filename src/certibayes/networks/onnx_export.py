"""``to_onnx``: a network as an ONNX file, written from our graph, so that any tool can check what we say of it.

Every operation has one entry in ``_onnx_entries``. Nothing of torch's exporter is needed,
and the file holds what was bounded: the graph, not the module it was traced from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from certibayes.errors import UnsupportedLayer
from certibayes.networks._onnx_entries import ENTRIES, IR_VERSION, OPSET, NodeToWrite
from certibayes.networks.graph import INPUT, Graph, Params
from certibayes.networks.onnx_import import EXTRA
from certibayes.networks.trace import Network, trace
from certibayes.support.files import write_atomically
from certibayes.support.optional import require_package

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

    def floats(self, *numbers: float) -> str:
        """Add a list of float32 numbers, whatever the network's precision, and return its name."""
        return self._initializer(np.array(numbers, dtype=np.float32), None)

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
            if kind not in ENTRIES:
                raise UnsupportedLayer(f"the operation {kind.__name__} (node {node.name!r}) cannot be written as ONNX.")
            call = NodeToWrite(
                self, node, tensors, tuple(made[source] for source in node.inputs), shapes[node.inputs[0]]
            )
            made[node.name], shapes[node.name] = ENTRIES[kind](node.operation, call), node.shape
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
    network.graph.require_all_of("a file")
    tensors = {**network.params, **network.buffers}
    writer = OnnxWriter(network.graph.input_shape, next(iter(tensors.values()), torch.zeros(())).dtype)
    writer.network(network.graph, tensors, name=RESULT)
    return write_model(writer.model(network.graph.classes), path)


def write_model(model: Any, path: str | Path) -> Path:
    """Write an ``onnx.ModelProto`` to a file, all at once."""
    write_atomically(Path(path), model.SerializeToString())
    return Path(path)
