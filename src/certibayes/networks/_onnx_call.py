"""One node of an ONNX graph, as the entries of operators see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from certibayes.errors import UnsupportedLayer


class Activation(NamedTuple):
    """What depends on the network's input: its name in the ONNX graph, and its shape for one example, (1, ...)."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One node of an ONNX graph.

    Attributes:
        kind: the operator, such as ``"Gemm"``.
        name: the node's own, for errors.
        attributes: the operator's settings.
        inputs: activations and constants in the operator's order; None for one that is left out.
        outputs: how many outputs of the node are used.
    """

    kind: str
    name: str
    attributes: dict[str, Any]
    inputs: tuple[Activation | Tensor | None, ...]
    outputs: int = 1

    @property
    def activations(self) -> tuple[Activation, ...]:
        """Those inputs that are no constants."""
        return tuple(value for value in self.inputs if isinstance(value, Activation))

    @property
    def x(self) -> Activation:
        """The first input, which must be an activation."""
        first = self.inputs[0]
        if not isinstance(first, Activation):
            raise self.unsupported("its first input is a constant; the network's activation must come first")
        return first

    def constant(self, index: int) -> Tensor | None:
        """Return an input that must be a constant, or None where it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(value, Activation):
            raise self.unsupported(f"its input {index} is computed from the network's input; it must be a constant")
        return value

    def weight(self, index: int) -> Tensor:
        """Return an input that must be a constant and may not be left out."""
        value = self.constant(index)
        if value is None:
            raise self.unsupported(f"its input {index} is missing")
        return value

    def image(self) -> Activation:
        """Return the first input, which must be a batch of images."""
        if len(self.x.shape) != 4:
            raise self.unsupported(f"it acts on shape {self.x.shape}; only images (1, C, H, W) have rules")
        return self.x

    def pair(self, attribute: str, default: int = 1) -> tuple[int, int]:
        """Return a setting of two numbers, for rows and columns."""
        rows, columns = self.attributes.get(attribute, (default, default))
        return int(rows), int(columns)

    def unsupported(self, why: str) -> UnsupportedLayer:
        """Return the error that says why the node has no rules."""
        return UnsupportedLayer(f"the ONNX operator {self.kind} (node {self.name!r}) is not supported here: {why}.")
