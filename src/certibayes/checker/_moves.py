"""Operations that move numbers, in the independent checker: both ends go the same way, and nothing is rounded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from certibayes.checker._arithmetic import Array, Interval, Program, Weights
from certibayes.networks import Node
from certibayes.networks import operations as ops


def _both(move: Callable[[ops.Operation, Array], Array]) -> Callable[..., Interval]:
    """Make the rule of an operation with one input from what it does to an array."""

    def rule(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
        return Interval(*(move(node.operation, end) for end in x))

    return rule


def _permute(operation: ops.Operation, x: Array) -> Array:
    assert isinstance(operation, ops.Permute)
    return np.transpose(x, (0, *operation.order))


def _slice(operation: ops.Operation, x: Array) -> Array:
    assert isinstance(operation, ops.Slice)
    ranges = zip(operation.starts, operation.stops, operation.steps, strict=True)
    for axis, (start, stop, step) in enumerate(ranges):
        x = np.take(x, np.arange(start, stop, step), axis + 1)
    return x


_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _pad(operation: ops.Operation, x: Array) -> Array:
    assert isinstance(operation, ops.Pad)
    widths = [(0, 0)] * x.ndim
    for place in range(len(operation.widths) // 2):
        widths[-1 - place] = operation.widths[2 * place], operation.widths[2 * place + 1]
    index = tuple(slice(-min(0, near), size + min(0, far)) for (near, far), size in zip(widths, x.shape, strict=True))
    wider = [(max(0, near), max(0, far)) for near, far in widths]
    if operation.mode == "constant":
        # The program holds the constant in its own precision; see ``_padded``.
        return np.pad(x[index], wider, constant_values=operation.value)
    return np.pad(x[index], wider, mode=_MODES[operation.mode])  # type: ignore[call-overload]


def _padded(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    assert isinstance(node.operation, ops.Pad)
    moved = Interval(*(_pad(node.operation, end) for end in x))
    if node.operation.mode != "constant" or node.operation.value == 0.0:
        return moved
    inside = _pad(ops.Pad(node.operation.widths, value=0.0), np.ones_like(x.lower[:1])) > 0
    value = np.asarray(node.operation.value, dtype=np.float64)
    around = program.widen(value, value, np.abs(value), 1)
    return Interval(np.where(inside, moved.lower, around.lower), np.where(inside, moved.upper, around.upper))


def _upsample(operation: ops.Operation, x: Array) -> Array:
    assert isinstance(operation, ops.Upsample)
    for place, factor in enumerate(reversed(operation.factors)):
        x = np.repeat(x, factor, x.ndim - 1 - place)
    return x


def _concatenate(program: Program, node: Node, weights: Weights, *parts: Interval) -> Interval:
    assert isinstance(node.operation, ops.Concatenate)
    dim = node.operation.dim
    return Interval(
        np.concatenate([part.lower for part in parts], dim), np.concatenate([part.upper for part in parts], dim)
    )


MOVES: dict[type[ops.Operation], Callable[..., Interval]] = {
    ops.Permute: _both(_permute),
    ops.Slice: _both(_slice),
    ops.Pad: _padded,
    ops.Upsample: _both(_upsample),
    ops.Concatenate: _concatenate,
}
