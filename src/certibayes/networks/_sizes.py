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

BATCHES = (*range(1, 66), *sorted({2**k + d for k in range(7, 25) for d in (-1, 0, 1)} | {10**k for k in range(2, 8)}))
"""Sizes of batches that stand for all."""


def is_shape_arithmetic(node: fx.Node) -> bool:
    """Tell whether a node only computes sizes (``x.size(0)``, ``x.shape[0]``), which need no rule."""
    if node.op not in ("call_function", "call_method"):
        return False  # a layer may well be called "size"
    if node.target is getattr:
        return node.args[1] not in TENSORS
    if node.target in _QUESTIONS:
        return True
    sizes = bool(node.all_input_nodes) and all(is_shape_arithmetic(source) for source in node.all_input_nodes)
    # Python's own functions: torch.zeros(x.shape) is a tensor.
    python = getattr(node.target, "__module__", None) in ("_operator", "operator", "math", "builtins")
    return sizes and (node.op == "call_method" or python or node.target is torch._assert)


def depends_on_batch(node: fx.Node, two: Mapping[fx.Node, Any], three: Mapping[fx.Node, Any]) -> bool:
    """Tell whether what a node computes of sizes differs from one size of the batch to another.

    Args:
        node: shape arithmetic.
        two: the value of every node for a batch of two.
        three: the same for a batch of three.
    """
    if two[node] != three[node]:
        return True
    try:
        return any(_value(node, batch, two, three) != two[node] for batch in BATCHES)
    except Exception:  # whatever Python's functions do with sizes that a module does not expect
        return True


def _value(node: fx.Node, batch: int, two: Mapping[fx.Node, Any], three: Mapping[fx.Node, Any]) -> Any:
    """Return what a node gives for a batch of any size, without computing the tensors whose sizes it reads."""
    if not is_shape_arithmetic(node):
        found = two[node]
        if not isinstance(found, Tensor):
            return found
        sizes = zip(found.shape, three[node].shape, strict=True)
        return torch.empty([a + (b - a) * (batch - 2) for a, b in sizes], dtype=found.dtype, device="meta")
    if node.target is getattr and node.args[1] not in ("shape", "ndim"):
        if two[node] != three[node]:
            raise ValueError(f"{node.args[1]} differs from batch to batch")
        return two[node]
    arguments: Any = fx.node.map_arg(node.args, lambda source: _value(source, batch, two, three))
    named: Any = fx.node.map_arg(node.kwargs, lambda source: _value(source, batch, two, three))
    if node.op == "call_method":
        return getattr(arguments[0], str(node.target))(*arguments[1:], **named)
    function: Any = node.target
    return function(*arguments, **named)
