"""Small ONNX files, made node by node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    """A node; inputs are given in one string."""
    return helper.make_node(kind, inputs.split(" ") if inputs else [], output.split(), name=output, **attributes)


def write(
    path: Path,
    nodes: list[Any],
    shape: tuple[Any, ...],
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
    **constants: Any,
) -> Path:
    """Write a file whose input is x, of this shape, and whose output is y; constants are random if given by shape."""
    generator = np.random.default_rng(0)
    tensors = []
    for name, value in constants.items():
        array = value if isinstance(value, np.ndarray) else 0.5 * generator.normal(size=value)
        array = array if np.issubdtype(array.dtype, np.integer) else array.astype(np.float32)
        tensors.append(numpy_helper.from_array(array, name))
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def integers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)
