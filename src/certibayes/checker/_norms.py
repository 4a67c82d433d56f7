"""Normalization of each example by itself, in the independent checker.

With R the sum of the squares of all others in a group of n, and x not 0,

    x / sqrt((x² + R) / n + eps) = sign(x) sqrt(n / (1 + (R + n eps) / x²)),

which rises with x, and is nearer to 0 the larger R is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from certibayes.checker._arithmetic import Array, Interval, Program, Weights
from certibayes.networks import Node
from certibayes.networks import operations as ops

ROUNDINGS = 16
"""Of root, quotient, weight and bias, beside those of the sum: several times as many as there are."""

LARGEST, SMALLEST = 2.0**50, 2.0**-68
"""Numbers beyond the first may overflow when they are squared; eps below the second may be taken for 0."""


def _groups(x: Array, groups: int) -> Array:
    return x.reshape(len(x), groups, int(np.prod(x.shape[1:])) // groups)


def _center(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    assert isinstance(node.operation, ops.Center)
    lower, upper, size = (_groups(part, node.operation.groups) for part in (x.lower, x.upper, x.magnitude))
    count = lower.shape[-1]
    # Each number counts once by itself, and is one of those of which the mean is taken.
    low = lower * (1 - 1 / count) - (upper.sum(-1, keepdims=True) - upper) / count
    high = upper * (1 - 1 / count) - (lower.sum(-1, keepdims=True) - lower) / count
    magnitude = 2 * size + 2 * size.mean(-1, keepdims=True)
    found = program.widen(low, high, magnitude, count + 6, 2.0)
    return Interval(found.lower.reshape(x.lower.shape), found.upper.reshape(x.lower.shape))


def _norm(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    norm = node.operation
    assert isinstance(norm, ops.RootMeanSquareNorm)
    shape = x.lower.shape
    lower, upper = (_groups(end, norm.groups) for end in x)
    count = lower.shape[-1]
    squares = np.stack([lower**2, upper**2])
    across = (lower <= 0) & (upper >= 0)
    least, most = np.where(across, 0.0, squares.min(0)), squares.max(0)
    slack = 1e-12 * count
    others_least = np.maximum(least.sum(-1, keepdims=True) * (1 - slack) - least, 0.0)
    others_most = most.sum(-1, keepdims=True) * (1 + slack) - most

    def quotient(end: Array, others: Array) -> Array:
        ratio = (others + count * norm.eps) / np.where(end == 0, 1.0, end) ** 2
        return np.where(end == 0, 0.0, np.sign(end) * np.sqrt(count / (1 + ratio)))

    low = quotient(lower, np.where(lower > 0, others_most, others_least)).reshape(shape)
    high = quotient(upper, np.where(upper > 0, others_least, others_most)).reshape(shape)
    wide = {role: w.reshape(-1, *(1,) * (len(shape) - 2)) if norm.by_channel else w for role, w in weights.items()}
    factor, offset = wide.get("weight", np.ones(())), wide.get("bias", np.zeros(()))
    ends = np.stack([low * factor, high * factor])
    magnitude = np.maximum(np.abs(low), np.abs(high)) * np.abs(factor) + np.abs(offset)
    largest = _groups(x.magnitude, norm.groups).max(-1, keepdims=True)
    known = np.broadcast_to(largest <= LARGEST, lower.shape).reshape(shape) & (norm.eps >= SMALLEST)
    factors = np.abs(factor).max() + np.sqrt(count)
    return program.widen(
        ends.min(0) + offset, ends.max(0) + offset, np.where(known, magnitude, np.nan), count + ROUNDINGS, factors
    )


NORMS: dict[type[ops.Operation], Callable[..., Interval]] = {ops.Center: _center, ops.RootMeanSquareNorm: _norm}
