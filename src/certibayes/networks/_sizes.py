"""What a module computes of sizes alone, and whether it is the same for every batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

TENSORS = ("T", "mT", "H", "mH", "real", "imag", "data", "grad", "values", "indices")
"""Attributes that are tensors themselves."""

_QUESTIONS = ("size", "dim", "ndimension", "numel", "nelement", "is_floating_point", "get_device")
"""Methods of a tensor that say something of it but its values."""

_FUNCTIONS = (torch.numel, torch.is_floating_point)
"""Functions that do."""

BATCHES = (*range(1, 66), *sorted({2**k + d for k in range(7, 25) for d in (-1, 0, 1)} | {10**k for k in range(2, 8)}))
"""Sizes of batches that stand for all."""


def is_shape_arithmetic(node: fx.Node) -> bool:
    """Tell whether a node only computes sizes (``x.size(0)``, ``x.shape[0]``), which need no rule."""
    if node.op not in ("call_function", "call_method"):
        return False  # a layer may well be called "size"
    if node.target is getattr:
        return node.args[1] not in TENSORS
    if node.target in _QUESTIONS or node.target in _FUNCTIONS:
        return True
    sizes = bool(node.all_input_nodes) and all(is_shape_arithmetic(source) for source in node.all_input_nodes)
    # Python's own functions: torch.zeros(x.shape) is a tensor.
    python = getattr(node.target, "__module__", None) in ("_operator", "operator", "math", "builtins")
    return sizes and (node.op == "call_method" or python or node.target is torch._assert)


class Sizes:
    """What nodes that only compute sizes give for batches of every size.

    Args:
        two: the value of every node for a batch of two.
        three: the same for a batch of three.
    """

    def __init__(self, two: Mapping[fx.Node, Any], three: Mapping[fx.Node, Any]):
        self.two, self.three = two, three
        self.known: dict[int, dict[fx.Node, Any]] = {batch: {} for batch in BATCHES}

    def depend_on_batch(self, node: fx.Node) -> bool:
        """Tell whether a node's value differs from one size of the batch to another."""
        if self.two[node] != self.three[node]:
            return True
        try:
            return any(self._value(node, batch) != self.two[node] for batch in BATCHES)
        except Exception:  # whatever Python's functions do with sizes that a module does not expect
            return True

    def _value(self, node: fx.Node, batch: int) -> Any:
        """Return what a node gives for a batch of this size, without computing the tensors whose sizes it reads."""
        known = self.known[batch]
        if node not in known:
            known[node] = self._computed(node, batch) if is_shape_arithmetic(node) else self._of_size(node, batch)
        return known[node]

    def _of_size(self, node: fx.Node, batch: int) -> Any:
        found = self.two[node]
        if not isinstance(found, Tensor):
            return found
        sizes = zip(found.shape, self.three[node].shape, strict=True)
        return torch.empty([a + (b - a) * (batch - 2) for a, b in sizes], dtype=found.dtype, device="meta")

    def _computed(self, node: fx.Node, batch: int) -> Any:
        if node.target is getattr and node.args[1] not in ("shape", "ndim"):
            if self.two[node] != self.three[node]:
                raise ValueError(f"{node.args[1]} differs from batch to batch")
            return self.two[node]
        arguments: Any = fx.node.map_arg(node.args, lambda source: self._value(source, batch))
        named: Any = fx.node.map_arg(node.kwargs, lambda source: self._value(source, batch))
        if node.op == "call_method":
            return getattr(arguments[0], str(node.target))(*arguments[1:], **named)
        function: Any = node.target
        return function(*arguments, **named)
