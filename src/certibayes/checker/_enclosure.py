"""The independent checker's own interval arithmetic: numpy float64, lower and upper ends, one network at a time.

This file knows nothing of ``certibayes.bounds``, so that no mistake there can hide here. It is slower and plainer, and
tells of every value that the network's program may compute, by its own argument:

A term that meets k roundings with unit u on its way into a sum changes by at most γ_k = k u / (1 - k u) of its
magnitude, whatever the order of the sum. So a layer's result differs from the exact one by at most γ_k times the sum of
its terms' magnitudes, and each value that is too small to be held loses at most the smallest normal number, times what
it is multiplied by. The same holds for the float64 sums of this file with their own unit. Both errors are subtracted
from the lower end and added to the upper end, which then move one float outwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from certibayes.checker._arithmetic import LIMIT, Array, Interval, Program, Weights
from certibayes.checker._ball_enclosure import Round, moved, within_ball
from certibayes.checker._curves import CURVES
from certibayes.checker._moves import MOVES
from certibayes.checker._norms import NORMS
from certibayes.errors import UnsupportedLayer
from certibayes.networks import INPUT, Graph, Node
from certibayes.networks import operations as ops

LIBRARY_ROUNDINGS = 16
"""Errors of tanh, sigmoid and batch norm, in units: several times what their vendors document."""


def enclose(
    graph: Graph, params: Mapping[str, Array], box: Interval, program: Program, ball: Round | None = None
) -> tuple[Interval, Any]:
    """Enclose the outputs of one network over a batch of boxes.

    Args:
        graph: the network.
        params: its parameters and buffers.
        box: inputs, (B, *input_shape).
        program: the arithmetic in which it runs.
        ball: holds the inputs besides, where they lie in a ball of the l2 or l1 norm.

    Returns:
        The outputs (B, outputs), and where they mean something, (B,): nothing is known of a point whose
        bounds came close to overflow in any layer.

    Raises:
        UnsupportedLayer: the network holds an operation that is not known here.
    """
    values, balls = {INPUT: box}, {INPUT: ball}
    known = np.ones(len(box.lower), dtype=bool)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            rule = _RULES.get(type(node.operation))
            if rule is None:
                raise UnsupportedLayer(
                    f"the independent checker does not know the operation {type(node.operation).__name__}."
                )
            weights = {role: np.asarray(params[name], dtype=np.float64) for role, name in node.roles.items()}
            output = rule(program, node, weights, *(values[name] for name in node.inputs))
            around = balls[node.inputs[0]]
            balls[node.name] = None
            if around is not None and isinstance(node.operation, (ops.Linear, ops.Conv2d)):
                output = within_ball(rule, program, node, weights, values[node.inputs[0]], around, output)
            elif around is not None and isinstance(node.operation, (ops.Reshape, ops.Normalize)):
                balls[node.name] = moved(rule, program, node, weights, values[node.inputs[0]], around)
            # Not left to the end: a bounded activation would make an overflow look harmless. NaN is not <= LIMIT.
            known &= ((output.magnitude <= LIMIT) & (output.lower <= output.upper)).reshape(len(known), -1).all(1)
            values[node.name] = output
    return values[graph.nodes[-1].name], known


def _largest(x: Array) -> Array:
    """Largest absolute value of each point, shaped so that it broadcasts."""
    return np.abs(x).reshape(len(x), -1).max(1).reshape(-1, *(1,) * (x.ndim - 1))


def _hull(a: Array, b: Array) -> tuple[Array, Array]:
    return np.minimum(a, b), np.maximum(a, b)


def _affine(program: Program, x: Interval, weight: Array, bias: Array | None) -> Interval:
    """Sums over the last dimension: (B, ..., n) times (m, n), plus (m,)."""
    rising, falling, magnitudes = np.maximum(weight, 0.0).T, np.minimum(weight, 0.0).T, np.abs(weight).T
    lower = x.lower @ rising + x.upper @ falling
    upper = x.upper @ rising + x.lower @ falling
    magnitude = x.magnitude @ magnitudes
    if bias is not None:
        lower, upper, magnitude = lower + bias, upper + bias, magnitude + np.abs(bias)
    return program.widen(lower, upper, magnitude, weight.shape[1] + 2, magnitudes.max() + _largest(x.magnitude))


def _linear(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    return _affine(program, x, weights["weight"], weights.get("bias"))


def _taps(
    x: Array, node: Node, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
    dilation: tuple[int, int], fill: float,
) -> Array:  # fmt: skip
    """For every place of the kernel, the pixel under it for every output: (kernel places, B, C, H, W)."""
    sides, spans = [], []
    for axis in (0, 1):
        span = (node.shape[axis + 1] - 1) * stride[axis] + 1
        reach = (kernel[axis] - 1) * dilation[axis] + span
        # In ceil mode the last window may reach beyond the padding.
        sides.append((padding[axis], max(0, reach - x.shape[axis + 2] - padding[axis])))
        spans.append(span)
    x = np.pad(x, ((0, 0), (0, 0), *sides), constant_values=fill)
    return np.stack(
        [
            x[:, :, row : row + spans[0] : stride[0], column : column + spans[1] : stride[1]]
            for row in range(0, kernel[0] * dilation[0], dilation[0])
            for column in range(0, kernel[1] * dilation[1], dilation[1])
        ]
    )


def _conv2d(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    conv, weight, bias = node.operation, weights["weight"], weights.get("bias")
    assert isinstance(conv, ops.Conv2d)
    channels, per_group = weight.shape[0] // conv.groups, weight.shape[1]
    kernel = weight.shape[2], weight.shape[3]
    taps = [_taps(end, node, kernel, conv.stride, conv.padding, conv.dilation, 0.0) for end in x]
    lower, upper = [], []
    for group in range(conv.groups):
        taken = slice(group * per_group, (group + 1) * per_group)
        # (B, H, W, channels, places): each output pixel is an affine function of its patch.
        patches = Interval(*(np.moveaxis(end[:, :, taken], (0, 2), (4, 3)) for end in taps))
        patches = Interval(*(end.reshape(*end.shape[:3], -1) for end in patches))
        made = slice(group * channels, (group + 1) * channels)
        out = _affine(program, patches, weight[made].reshape(channels, -1), None if bias is None else bias[made])
        lower.append(np.moveaxis(out.lower, 3, 1))
        upper.append(np.moveaxis(out.upper, 3, 1))
    return Interval(np.concatenate(lower, 1), np.concatenate(upper, 1))


def _conv1d(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    """A sequence is an image of one row."""
    assert isinstance(node.operation, ops.Conv1d)
    channels, length = node.shape
    lifted = replace(node, operation=node.operation.on_images, shape=(channels, 1, length))
    filters = {**weights, "weight": weights["weight"][:, :, None]}
    found = _conv2d(program, lifted, filters, Interval(x.lower[:, :, None], x.upper[:, :, None]))
    return Interval(found.lower[:, :, 0], found.upper[:, :, 0])


def _conv_transpose(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    """Every pixel is multiplied by every place of the kernel, and added where that falls."""
    conv, weight = node.operation, weights["weight"]
    assert isinstance(conv, ops.ConvTranspose2d)
    groups, (inputs, per_group, height, width) = conv.groups, weight.shape
    rows, columns = x.lower.shape[2:]
    sides = [node.shape[1 + axis] + 2 * conv.padding[axis] for axis in (0, 1)]
    found = [np.zeros((len(x.lower), groups * per_group, *sides)) for _ in range(3)]
    for row in range(height):
        for column in range(width):
            top, left = row * conv.dilation[0], column * conv.dilation[1]
            falls = (
                slice(top, top + (rows - 1) * conv.stride[0] + 1, conv.stride[0]),
                slice(left, left + (columns - 1) * conv.stride[1] + 1, conv.stride[1]),
            )
            for group in range(groups):
                read = slice(group * inputs // groups, (group + 1) * inputs // groups)
                made = slice(group * per_group, (group + 1) * per_group)
                factor = weight[read, :, row, column]
                rising, falling = np.maximum(factor, 0.0), np.minimum(factor, 0.0)
                low, high, size = (part[:, read] for part in (x.lower, x.upper, x.magnitude))
                terms = (
                    _mixed(rising, low) + _mixed(falling, high),
                    _mixed(rising, high) + _mixed(falling, low),
                    _mixed(np.abs(factor), size),
                )
                for total, term in zip(found, terms, strict=True):
                    total[:, made][:, :, falls[0], falls[1]] += term
    crop = tuple(slice(conv.padding[axis], conv.padding[axis] + node.shape[1 + axis]) for axis in (0, 1))
    lower, upper, magnitude = (total[:, :, crop[0], crop[1]] for total in found)
    if "bias" in weights:
        bias = weights["bias"].reshape(-1, 1, 1)
        lower, upper, magnitude = lower + bias, upper + bias, magnitude + np.abs(bias)
    factors = np.abs(weight).max() + _largest(x.magnitude)
    return program.widen(lower, upper, magnitude, inputs // groups * height * width + 2, factors)


def _mixed(factor: Array, x: Array) -> Array:
    """Combine channels: (in, out) and (B, in, H, W) -> (B, out, H, W)."""
    mixed: Array = np.einsum("io,bihw->bohw", factor, x)
    return mixed


def _matmul(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    return _affine(program, x, weights["weight"].T, None)


def _reduction(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    reduction = node.operation
    assert isinstance(reduction, (ops.Sum, ops.Mean))
    terms = int(np.prod([x.lower.shape[dim] for dim in reduction.dims]))
    divisor = float(terms) if isinstance(reduction, ops.Mean) else 1.0
    parts = (x.lower, x.upper, x.magnitude)
    lower, upper, size = (part.sum(reduction.dims, keepdims=reduction.keepdim) / divisor for part in parts)
    return program.widen(lower, upper, size, terms + 4, 1.0)


def _relu(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    return Interval(np.maximum(x.lower, 0.0), np.maximum(x.upper, 0.0))


def _leaky_relu(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    assert isinstance(node.operation, ops.LeakyReLU)
    slope = node.operation.slope
    at_lower, at_upper = (np.where(end > 0, end, slope * end) for end in x)
    lower, upper = _hull(at_lower, at_upper)
    # Piecewise linear: the extremes are at the ends or, if it lies between them, at the kink.
    bent = (x.lower < 0) & (x.upper > 0)
    lower, upper = np.where(bent, np.minimum(lower, 0.0), lower), np.where(bent, np.maximum(upper, 0.0), upper)
    magnitude = np.maximum(np.abs(lower), np.abs(upper))
    return program.widen(lower, upper, magnitude, 4, abs(slope) + _largest(x.magnitude))


def _increasing(function: Callable[[Array], Array]) -> Callable[..., Interval]:
    """Make the rule of an increasing library function."""

    def rule(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
        lower, upper = function(x.lower), function(x.upper)
        return program.widen(lower, upper, np.maximum(np.abs(lower), np.abs(upper)), LIBRARY_ROUNDINGS)

    return rule


def _reshape(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    assert isinstance(node.operation, ops.Reshape)
    shape = (len(x.lower), *node.operation.shape)
    return Interval(x.lower.reshape(shape), x.upper.reshape(shape))


def _max_pool(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    pool = node.operation
    assert isinstance(pool, ops.MaxPool2d)
    settings = pool.kernel, pool.stride, pool.padding, pool.dilation
    return Interval(*(_taps(end, node, *settings, -np.inf).max(0) for end in x))


def _average(program: Program, taps: tuple[Array, Array, Array], divisor: Array | float) -> Interval:
    """Means of (taps, B, C, H, W); the third array holds magnitudes."""
    lower, upper = _hull(taps[0].sum(0) / divisor, taps[1].sum(0) / divisor)
    magnitude = taps[2].sum(0) / np.abs(divisor)
    return program.widen(lower, upper, magnitude, len(taps[0]) + 4, 1.0)


def _avg_pool(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    pool = node.operation
    assert isinstance(pool, ops.AvgPool2d)
    settings = pool.kernel, pool.stride, pool.padding, (1, 1)
    lower, upper, magnitude = (_taps(part, node, *settings, 0.0) for part in (x.lower, x.upper, x.magnitude))
    divisor: Array | float
    if pool.divisor is not None:
        divisor = float(pool.divisor)
    elif pool.count_include_pad:
        rows, columns = (
            [
                min(o * pool.stride[axis] - pool.padding[axis] + pool.kernel[axis], extent + pool.padding[axis])
                - (o * pool.stride[axis] - pool.padding[axis])
                for o in range(node.shape[axis + 1])
            ]
            for axis, extent in enumerate(x.lower.shape[2:])
        )
        divisor = np.outer(rows, columns).astype(np.float64)
    else:
        divisor = _taps(np.ones_like(x.lower[:1, :1]), node, *settings, 0.0).sum(0)
    return _average(program, (lower, upper, magnitude), divisor)


def _adaptive_avg_pool(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    row_ends, column_ends = (
        [(o * extent // count, -(-(o + 1) * extent // count)) for o in range(count)]
        for extent, count in zip(x.lower.shape[2:], node.shape[1:], strict=True)
    )
    lower = np.empty((len(x.lower), *node.shape))
    upper = np.empty_like(lower)
    for row, (top, bottom) in enumerate(row_ends):
        for column, (left, right) in enumerate(column_ends):
            parts = (x.lower, x.upper, x.magnitude)
            taps = [p[:, :, top:bottom, left:right].reshape(*p.shape[:2], -1, 1) for p in parts]
            a, b, c = (np.moveaxis(tap, 2, 0)[..., None] for tap in taps)
            mean = _average(program, (a, b, c), float((bottom - top) * (right - left)))
            lower[:, :, row, column], upper[:, :, row, column] = mean.lower[..., 0, 0], mean.upper[..., 0, 0]
    return Interval(lower, upper)


def _per_channel(value: Array, x: Interval) -> Array:
    return value.reshape(-1, *(1,) * (x.lower.ndim - 2))


def _batch_norm(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    assert isinstance(node.operation, ops.BatchNorm)
    variance = weights["running_var"] + node.operation.eps
    scale = 1.0 / np.sqrt(np.where(variance > 1.0 / LIMIT, variance, np.nan))
    weight = weights.get("weight", np.ones_like(scale))
    mean, slope = _per_channel(weights["running_mean"], x), _per_channel(scale * weight, x)
    bias = _per_channel(weights.get("bias", np.zeros_like(scale)), x)
    lower, upper = _hull((x.lower - mean) * slope + bias, (x.upper - mean) * slope + bias)
    # Programs compute (x - mean) * slope + bias or x * slope + (bias - mean * slope): these terms cover both.
    magnitude = (x.magnitude + np.abs(mean)) * np.abs(slope) + np.abs(bias)
    # Nor may (x - mean) * scale overflow before the weight shrinks it; it is also what an underflowed weight meets.
    before = (x.magnitude + np.abs(mean)) * _per_channel(scale, x)
    magnitude = np.where(before <= LIMIT, magnitude, np.nan)
    factors = sum(np.abs(part).max() for part in (slope, mean, weight)) + _largest(x.magnitude) + _largest(before)
    return program.widen(lower, upper, magnitude, LIBRARY_ROUNDINGS, factors)


def _scaled(program: Program, lower: Array, upper: Array, factor: Array | float) -> Interval:
    """[lower, upper] times a factor."""
    low, high = _hull(lower * factor, upper * factor)
    magnitude = np.maximum(np.abs(low), np.abs(high))
    largest = _largest(np.maximum(np.abs(lower), np.abs(upper)))
    largest = largest.reshape(-1, *(1,) * (magnitude.ndim - 1))
    return program.widen(low, high, magnitude, 8, np.abs(factor).max() + largest)


def _usable(constant: Array | float, divisor: bool = False) -> Array:
    """A constant, or NaN where a float32 program could not hold it or its inverse."""
    magnitude = np.abs(constant)
    return np.where((magnitude <= LIMIT) & ((magnitude >= 1.0 / LIMIT) | (not divisor)), constant, np.nan)


def _normalize(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    mean, std = (_per_channel(weights[role], x) for role in ("mean", "std"))
    return _scaled(program, x.lower - mean, x.upper - mean, 1.0 / _usable(std, divisor=True))


def _multiply(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    assert isinstance(node.operation, ops.Multiply)
    constant = node.operation.constant
    return _scaled(program, *x, _usable(weights["factor"] if constant is None else constant))


def _divide(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    assert isinstance(node.operation, ops.Divide)
    constant = node.operation.constant
    return _scaled(program, *x, 1.0 / _usable(weights["divisor"] if constant is None else constant, divisor=True))


def _shift(program: Program, node: Node, weights: Weights, x: Interval) -> Interval:
    shift = node.operation
    assert isinstance(shift, ops.Shift)
    offset = shift.offset_sign * _usable(weights["offset"] if shift.constant is None else shift.constant)
    lower, upper = x if shift.sign > 0 else (-x.upper, -x.lower)
    lower, upper = lower + offset, upper + offset
    # A constant is itself rounded to the program's precision, so its magnitude counts beside the result's.
    return program.widen(lower, upper, np.maximum(np.abs(lower), np.abs(upper)) + np.abs(offset), 2)


def _add(program: Program, node: Node, weights: Weights, x: Interval, y: Interval) -> Interval:
    lower, upper = x.lower + y.lower, x.upper + y.upper
    return program.widen(lower, upper, np.maximum(np.abs(lower), np.abs(upper)), 1)


def _subtract(program: Program, node: Node, weights: Weights, x: Interval, y: Interval) -> Interval:
    return _add(program, node, weights, x, Interval(-y.upper, -y.lower))


_RULES: dict[type[ops.Operation], Callable[..., Interval]] = {
    ops.Linear: _linear,
    ops.MatMul: _matmul,
    ops.Conv2d: _conv2d,
    ops.Conv1d: _conv1d,
    ops.ConvTranspose2d: _conv_transpose,
    ops.Sum: _reduction,
    ops.Mean: _reduction,
    ops.ReLU: _relu,
    ops.LeakyReLU: _leaky_relu,
    ops.Tanh: _increasing(np.tanh),
    ops.Sigmoid: _increasing(lambda x: 1.0 / (1.0 + np.exp(-x))),
    ops.Reshape: _reshape,
    ops.MaxPool2d: _max_pool,
    ops.AvgPool2d: _avg_pool,
    ops.AdaptiveAvgPool2d: _adaptive_avg_pool,
    ops.BatchNorm: _batch_norm,
    ops.Normalize: _normalize,
    ops.Multiply: _multiply,
    ops.Divide: _divide,
    ops.Shift: _shift,
    ops.Add: _add,
    ops.Subtract: _subtract,
    **MOVES,
    **NORMS,
    **CURVES,
}
