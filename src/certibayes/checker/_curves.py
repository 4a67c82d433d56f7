"""Activations that fall up to one point and rise from there on, in the independent checker.

On an interval such a function is largest at an end, and smallest where it is nearest to its lowest point. The program
errs by some units of A + B |x|, since digits cancel where it adds 1 to erf, tanh or -exp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from certibayes.checker._arithmetic import Array, Interval, Program, Weights
from certibayes.networks import Node
from certibayes.networks import operations as ops

ROUNDINGS = 32

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _between(
    program: Program, x: Interval, function: Callable[[Array], Array], lowest: Array | float, constant: float = 0.0
) -> Interval:
    """Bound a function that is smallest at ``lowest`` and errs by units of ``constant`` + |x| and of its own values."""
    ends = function(x.lower), function(x.upper)
    least = np.minimum(function(np.clip(lowest, x.lower, x.upper)), np.minimum(*ends))
    most = np.maximum(*ends)
    magnitude = x.magnitude + np.maximum(np.abs(least), np.abs(most)) + constant
    return program.widen(least, most, magnitude, ROUNDINGS, 1.0)


def _clamp(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    assert isinstance(node.operation, ops.Clamp)
    low, high = node.operation.low, node.operation.high
    lower, upper = (np.clip(end, low, high) for end in x)
    # Nothing is rounded but the ends of the clamp.
    largest = max(abs(end) for end in (low, high, 0.0) if end is not None)
    return program.widen(lower, upper, np.full_like(lower, largest), 1)


def _prelu(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    slope = weights["weight"].reshape(-1, *(1,) * (x.lower.ndim - 2))
    lowest = np.where(slope < 0, 0.0, -np.inf)
    found = _between(program, x, lambda z: np.where(z > 0, z, slope * z), np.broadcast_to(lowest, x.lower.shape))
    # An underflowed slope meets values of any size.
    magnitude = np.maximum(np.abs(found.lower), np.abs(found.upper))
    return program.widen(found.lower, found.upper, magnitude, 2, np.abs(slope).max() + x.magnitude)


def _elu(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    elu: Any = node.operation

    def function(z: Array) -> Array:
        below = elu.scale * elu.alpha * np.expm1(elu.input_scale * np.minimum(z, 0.0))
        return np.where(z > 0, elu.scale * z, below)

    return _between(program, x, function, -np.inf, elu.scale * elu.alpha)


def _softplus(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    softplus: Any = node.operation
    found = _between(
        program, x, lambda z: np.logaddexp(0.0, softplus.beta * z) / softplus.beta, -np.inf, 1.0 / softplus.beta
    )
    # Above the threshold the program takes x itself, which is a little less.
    return Interval(found.lower - 1.01 * math.exp(-softplus.threshold) / softplus.beta, found.upper)


def _gelu(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    assert isinstance(node.operation, ops.GELU)
    if node.operation.approximate == "tanh":
        slope = math.sqrt(2.0 / math.pi)
        return _between(
            program, x, lambda z: 0.5 * z * (1.0 + np.tanh(slope * (z + 0.044715 * z**3))), -0.7524614220710162
        )
    return _between(program, x, lambda z: 0.5 * z * _erfc(-z / math.sqrt(2.0)), -0.7517915246935645)


def _silu(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    return _between(program, x, lambda z: z / (1.0 + np.exp(-z)), -1.278464542761074)


def _hardswish(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    return _between(program, x, lambda z: z * np.clip(z + 3.0, 0.0, 6.0) / 6.0, -1.5)


CURVES: dict[type[ops.Operation], Callable[..., Interval]] = {
    ops.Clamp: _clamp,
    ops.PReLU: _prelu,
    ops.ELU: _elu,
    ops.Softplus: _softplus,
    ops.GELU: _gelu,
    ops.SiLU: _silu,
    ops.Hardswish: _hardswish,
}
