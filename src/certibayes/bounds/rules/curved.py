r"""Activations with bends: clamped, exponential, softplus, GELU, SiLU and their like.

Each falls up to one point, or nowhere, and rises from there on. So on an interval it is largest at an end, and smallest
at the point of the interval that is nearest to its lowest point.

For the linear relaxation a slope is chosen for each side, that of the chord above and about that of the middle below.
What is certified is the offset: the extremes of g(z) = f(z) - k z over the interval [l, u]. The interval has three
parts. Beyond a core [a, b] the function is a straight line s z + o, up to a known deviation, so that g is extreme at
the ends of that part. The core is cut into cells, and on a cell of width h, g is no farther than

    h² / 8  max |f''|

beyond the values at its two ends, by the error of linear interpolation; |f''| on a cell is bounded by a function that
falls with the distance from the core's peak. Everything of this is computed in float64.

The float program errs by some units of A + B |z|, not of f(z): GELU multiplies by 1 + erf(...), in which digits cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds.registry import IntervalRule, LinearRule, register
from certibayes.bounds.rounding import Rounding
from certibayes.bounds.rules.activation import LIBRARY_ULPS, LinearRelaxation, relax
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.regions import Box

CELLS = 32
"""Into how many the core is cut; 1 where the function is straight there."""

Number = float | Tensor


@dataclass(frozen=True)
class Line:
    """The straight line that a function follows beyond its core: slope * z + offset, up to ``deviation``."""

    slope: Number
    offset: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True)
class Curve:
    """What is known of an activation f.

    Attributes:
        core: outside of it the function is a straight line; an end may be infinite.
        left: that line below the core.
        right: that line above it.
        curvature: distance from 0 -> bound on |f''| at this distance and farther away; None where f'' is 0 in the core.
        lowest: where f is smallest, or None for an increasing function.
        steepest: bound on |f'|.
        error: A and B: the float program errs by units of A + B |z|.
        units: how many, for the program and for an evaluation here.
        absolute: what else the program may err by.
    """

    core: tuple[float, float]
    left: Line
    right: Line
    curvature: Callable[[Tensor], Tensor] | None = None
    lowest: Number | None = None
    steepest: Number = 1.0
    error: tuple[Number, Number] = (0.0, 1.0)
    units: float = LIBRARY_ULPS
    absolute: float = 0.0

    def float_error(self, magnitude: Tensor, rounding: Rounding) -> Tensor:
        """Bound the error of the program and of one evaluation here, at inputs of at most this magnitude."""
        constant, factor = self.error
        # A slope that is a weight may have lost its digits to underflow.
        factor = factor + rounding.weight_underflow / self.units
        return (magnitude * factor + constant) * (self.units * rounding.unit) + (self.absolute + rounding.underflow)


Known = Callable[[Any, Weights, Tensor], Curve]
"""(operation, weights, input) -> what is known of it."""


def curved_interval(known: Known) -> IntervalRule:
    """Make the interval rule of an activation."""

    def interval(operation: Any, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
        center, radius = boxes[0].center, rounding.widened_radius(boxes[0], 0)
        curve = known(operation, weights, center)
        low, high = center - radius, center + radius
        below, above = operation.evaluate(weights, low), operation.evaluate(weights, high)
        if curve.lowest is not None:
            nearest = torch.minimum(torch.maximum(_like(curve.lowest, low), low), high)
            least = torch.minimum(operation.evaluate(weights, nearest), torch.minimum(below, above))
            below, above = least, torch.maximum(below, above)
        box = rounding.box_between(below, above)
        if not rounding.outward:
            return box
        return Box(box.center, box.radius + curve.float_error(center.abs() + radius, rounding))

    return interval


def curved_backward(known: Known) -> LinearRule:
    """Make the linear rule of an activation."""

    def backward(operation: Any, weights: Weights, step: Step) -> Backward:
        ends = step.ends()
        low, high = (end.double() for end in ends)
        exact = {role: weight.double() for role, weight in weights.items()}
        curve = known(operation, exact, low)

        def function(z: Tensor) -> Tensor:
            return operation.evaluate(exact, z)

        dtype = ends[0].dtype
        upper = _slope(function, low, high, curve).to(dtype)
        middle, apart = torch.lerp(low, high, 0.5), (high - low) / 8
        lower = _slope(function, middle - apart, middle + apart, curve).to(dtype)
        ceiling = _extreme(function, curve, low, high, upper.double(), 1.0)
        floor = -_extreme(function, curve, low, high, lower.double(), -1.0)
        unit = max(step.rounding.unit, torch.finfo(dtype).eps / 2)
        reach = low.abs() + high.abs()
        # The library's functions in float64, offsets in the network's precision, and the products with the slopes.
        own = curve.float_error(reach, Rounding(2.0**-53)) + reach * curve.steepest * 2.0**-50
        floor = floor - own - 8 * unit * (lower.double().abs() * reach + floor.abs())
        ceiling = ceiling + own + 8 * unit * (upper.double().abs() * reach + ceiling.abs())
        relaxation = LinearRelaxation(lower, floor.to(dtype), upper, ceiling.to(dtype))
        return relax(relaxation, step)._replace(
            output_error=lambda: known(operation, weights, ends[0]).float_error(step.magnitude(), step.rounding)
        )

    return backward


def _slope(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, curve: Curve) -> Tensor:
    """Slope of a chord; any slope is sound, and that of an interval without width matters to nobody."""
    chord = (function(high) - function(low)) / (high - low).clamp(min=1e-30)
    return torch.minimum(torch.maximum(chord, -_like(curve.steepest, low)), _like(curve.steepest, low))


def _extreme(
    function: Callable[[Tensor], Tensor], curve: Curve, low: Tensor, high: Tensor, slope: Tensor, sign: float
) -> Tensor:
    """Bound sign (f(z) - slope z) from above on [low, high], of the shape of these, in float64."""
    start, stop = curve.core
    left, right = low.clamp(start, stop), high.clamp(start, stop)
    cells = CELLS if curve.curvature is not None else 1
    width = (right - left) / cells
    found = torch.full_like(low, -torch.inf)
    at, value = left, sign * (function(left) - slope * left)
    for index in range(1, cells + 1):
        after = right if index == cells else left + width * index
        beyond = sign * (function(after) - slope * after)
        bound = torch.maximum(value, beyond)
        if curve.curvature is not None:
            # How far the cell is from 0, at least; the width may be a rounding error more.
            near = torch.where(at * after > 0, torch.minimum(at.abs(), after.abs()), 0.0)
            bound = bound + curve.curvature(near) * width.square() * (1 + 2.0**-40) / 8
        found = torch.maximum(found, bound)
        at, value = after, beyond
    # An interval that lies beyond the core altogether has no part in it.
    found = torch.where((low <= stop) & (high >= start), found, -torch.inf)
    if math.isfinite(start):
        found = torch.maximum(found, _beyond(curve.left, low, high.clamp(max=start), slope, sign, low < start))
    if math.isfinite(stop):
        found = torch.maximum(found, _beyond(curve.right, low.clamp(min=stop), high, slope, sign, high > stop))
    return found


def _beyond(line: Line, low: Tensor, high: Tensor, slope: Tensor, sign: float, exists: Tensor) -> Tensor:
    """Bound the same on a part of the interval, if it exists, where the function is a line: at its ends."""
    tilt = line.slope - slope
    found = torch.maximum(sign * tilt * low, sign * tilt * high) + (sign * line.offset + line.deviation)
    return torch.where(exists, found, -torch.inf)


def _like(number: Number, like: Tensor) -> Tensor:
    return number.to(like) if isinstance(number, Tensor) else torch.full_like(like, number)


# What is known of each


def _clamp(operation: ops.Clamp, weights: Weights, x: Tensor) -> Curve:
    low = -math.inf if operation.low is None else operation.low
    high = math.inf if operation.high is None else operation.high
    # What is clamped is exact, but for ends that the program rounds to its precision.
    largest = max((abs(end) for end in (low, high) if math.isfinite(end)), default=0.0)
    return Curve((low, high), Line(0.0, low), Line(0.0, high), error=(largest, 0.0), units=4.0)


def _prelu(operation: ops.PReLU, weights: Weights, x: Tensor) -> Curve:
    slope = operation.slope(weights, x)
    lowest = torch.where(slope < 0, 0.0, -torch.inf).to(x)
    steepest = slope.abs().clamp(min=1.0)
    return Curve((0.0, 0.0), Line(slope), Line(1.0), None, lowest, steepest, (0.0, steepest), units=8.0)


def _elu(operation: ops.ELU, weights: Weights, x: Tensor) -> Curve:
    scale, rate = operation.scale, operation.input_scale
    depth, end = scale * operation.alpha, -16.0 / rate
    # f = depth (exp(rate z) - 1) below 0.
    return Curve(
        (end, 0.0),
        Line(0.0, -depth, depth * math.exp(-16.0)),
        Line(scale),
        lambda distance: depth * rate**2 * torch.exp(-rate * distance),
        steepest=max(scale, depth * rate),
        error=(depth, scale),
    )


def _softplus(operation: ops.Softplus, weights: Weights, x: Tensor) -> Curve:
    beta = operation.beta
    end, deviation = 16.0 / beta, math.exp(-16.0) / beta
    # f'' = beta s (1 - s), s the sigmoid; at the threshold the program jumps by log(1 + exp(-threshold)) / beta.
    return Curve(
        (-end, end),
        Line(0.0, 0.0, deviation),
        Line(1.0, 0.0, deviation),
        lambda distance: beta * torch.exp(-beta * distance).clamp(max=0.25),
        error=(1.0 / beta, 1.0),
        absolute=math.exp(-operation.threshold) / beta,
    )


def _gelu(operation: ops.GELU, weights: Weights, x: Tensor) -> Curve:
    if operation.approximate == "tanh":
        lines = Line(0.0, 0.0, 1e-8), Line(1.0, 0.0, 1e-8)
        return Curve((-6.0, 6.0), *lines, _tanh_gelu_curvature, -0.7524614220710162, 1.2)

    def curvature(distance: Tensor) -> Tensor:
        # |f''| = φ(z) |2 - z²| <= φ(z) (2 + z²), which falls.
        square = distance.square()
        return (2.0 + square) * torch.exp(-square / 2) / math.sqrt(2 * math.pi)

    # z Φ(-z) <= φ(z) <= φ(6) < 1e-8.
    return Curve((-6.0, 6.0), Line(0.0, 0.0, 1e-8), Line(1.0, 0.0, 1e-8), curvature, -0.7517915246935645, 1.2)


def _tanh_gelu_curvature(z: Tensor) -> Tensor:
    """Bound |f''| at distances z >= 0 of 0.

    f = z s(g), s the sigmoid and g = a (z + c z³), so |f''| <= exp(-g) (2 g' + z (g'² + g'')), which falls.
    """
    a, c = 2 * math.sqrt(2 / math.pi), 0.044715
    first, second = a * (1 + 3 * c * z.square()), 6 * a * c * z
    return torch.exp(-a * (z + c * z**3)) * (2 * first + z * (first.square() + second))


def _silu(operation: ops.SiLU, weights: Weights, x: Tensor) -> Curve:
    # f'' = s (1 - s) (2 + z (1 - 2 s)), at most 1/2, and s (1 - s) <= exp(-|z|). z s(-z) <= z exp(-z).
    deviation = 16.0 * math.exp(-16.0) * 1.01
    return Curve(
        (-16.0, 16.0),
        Line(0.0, 0.0, deviation),
        Line(1.0, 0.0, deviation),
        lambda distance: ((2.0 + distance) * torch.exp(-distance)).clamp(max=0.5),
        -1.278464542761074,
        1.2,
    )


def _hardswish(operation: ops.Hardswish, weights: Weights, x: Tensor) -> Curve:
    # z (z + 3) / 6 between -3 and 3.
    third = 1.0 / 3.0 + 1e-15
    return Curve(
        (-3.0, 3.0), Line(0.0), Line(1.0), lambda distance: torch.full_like(distance, third), -1.5, 1.5, units=16.0
    )


for kind, known_of, written in (
    (ops.Clamp, _clamp, "nn.ReLU6, nn.Hardtanh, nn.Threshold, torch.clamp, F.relu6, F.hardtanh, F.hardsigmoid"),
    (ops.PReLU, _prelu, "nn.PReLU, F.prelu"),
    (ops.ELU, _elu, "nn.ELU, nn.SELU, nn.CELU, F.elu"),
    (ops.Softplus, _softplus, "nn.Softplus, F.softplus (threshold >= 16)"),
    (ops.GELU, _gelu, "nn.GELU, F.gelu"),
    (ops.SiLU, _silu, "nn.SiLU, F.silu"),
    (ops.Hardswish, _hardswish, "nn.Hardswish, F.hardswish"),
):
    register(kind, curved_interval(known_of), written, curved_backward(known_of))
