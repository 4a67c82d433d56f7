"""Monotone activations: their images of an interval, and linear relaxations on it.

The image of an interval lies between the images of its ends.

ReLU and the maximum are exact in floats and commute with rounding (rounding is monotone and keeps the sign), so the
error of ``c - r`` stays a unit of the result. LeakyReLU rounds once more. Tanh and sigmoid are library functions,
whose vectorized and scalar versions err by a few units in the last place: ``LIBRARY_ULPS`` allows sixteen in the
network and sixteen in the bound, several times what the vendors document, and their argument is widened first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds._pullback import Pullback, TrainingRule, Wanted, points_and_centers, with_points
from certibayes.bounds.registry import IntervalRule, LinearRule, register
from certibayes.bounds.rounding import Rounding
from certibayes.bounds.sums import dot, joined, portion, portions, sum_error
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.regions import Box
from certibayes.support.fused import fused, is_fused

LIBRARY_ULPS = 32.0


def monotone(ulps: float, commutes_with_rounding: bool = False) -> IntervalRule:
    """Make the rule of an increasing function.

    Args:
        ulps: relative error of the float version, in units, of network and bound in all.
        commutes_with_rounding: f(x (1 + δ)) = f(x) (1 + δ'), |δ'| <= |δ|; true of piecewise linear functions with
            a kink at 0.
    """

    def interval(operation: Any, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
        center = boxes[0].center
        radius = boxes[0].radius if commutes_with_rounding else rounding.widened_radius(boxes[0], 0)
        lower = operation.evaluate(weights, center - radius)
        upper = operation.evaluate(weights, center + radius)
        return rounding.box_between(lower, upper, ulps)

    return interval


_relu_ends = monotone(ulps=1, commutes_with_rounding=True)


def relu_interval(operation: ops.ReLU, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound ReLU; in outward rounding in half the passes over memory that a monotone function takes in general.

    The image of [c - r, c + r] has the radius min(max(c + r, 0) / 2, r), and its center is the larger of c and that
    radius. With s the underflow allowance and units u,

        top = max(fl(c + r), s),    r' = max(min((1 + 4 u) top / 2, r), s / 2),    c' = max(c, r').

    r' is no smaller than the radius in exact arithmetic: two roundings lose 2 u, and what underflows is far below s.
    Any such r' holds the image, without an allowance: c' + r' grows with r', and c' - r' = max(c - r', 0) falls. No
    activation exceeds top, up to rounding.
    """
    if not rounding.outward:
        return _relu_ends(operation, weights, boxes, rounding)
    center, radius = boxes[0].center, boxes[0].radius
    top = (center + radius).clamp_min_(rounding.underflow)
    radius = (top * (0.5 + 2 * rounding.unit)).clamp_max_(radius).clamp_min_(rounding.underflow / 2)
    return Box(torch.maximum(center, radius), radius, largest=top)


def monotone_training(times_slope: Callable[[Any, Tensor, Tensor], Tensor]) -> TrainingRule:
    """Make the training rule of an increasing function f.

    The ends l, u = f(c - r), f(c + r) give the center (l + u) / 2 and the radius (u - l) / 2. Backwards the same
    formulas hold: derivatives d and e with respect to these two give (d - e) f'(c - r) and (d + e) f'(c + r), and half
    their sum and half their difference are the derivatives with respect to c and r.

    Args:
        times_slope: (operation, derivative, f(z)) -> derivative times f'(z).
    """

    def training(
        operation: Any, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding, wanted: Wanted
    ) -> tuple[Box, Pullback]:
        points, center = points_and_centers(boxes[0])
        points = operation.evaluate(weights, points)
        lower = operation.evaluate(weights, center - boxes[0].radius)
        upper = operation.evaluate(weights, center + boxes[0].radius)

        def pullback(derivative: Box) -> tuple[tuple[Box, ...], Weights]:
            at_points, at_centers = points_and_centers(derivative)
            below = times_slope(operation, at_centers - derivative.radius, lower)
            above = times_slope(operation, at_centers + derivative.radius, upper)
            at_points = times_slope(operation, at_points, points)
            return (with_points(at_points, rounding.box_between(below, above)),), {}

        return with_points(points, rounding.box_between(lower, upper)), pullback

    return training


_relu_in_torch = monotone_training(lambda operation, d, value: torch.ops.aten.threshold_backward(d, value, 0))


def relu_training(
    operation: ops.ReLU, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding, wanted: Wanted
) -> tuple[Box, Pullback]:
    """Do the same for ReLU; on a GPU with one kernel each way for the points and one for the boxes."""
    box = boxes[0]
    if not is_fused(box.center, mapped=True):
        return _relu_in_torch(operation, weights, boxes, rounding, wanted)
    points, centers = points_and_centers(box)
    number = len(points)

    def pullback(derivative: Box) -> tuple[tuple[Box, ...], Weights]:
        into, into_radius = torch.empty_like(box.center), torch.empty_like(box.radius)
        if number:
            _relu_slope(derivative.center[:number], points, out=(into[:number],))
        if len(box.radius):
            slopes = derivative.center[number:], derivative.radius
            _relu_box_slope(*slopes, centers, box.radius, out=(into[number:], into_radius))
        return (Box(into, into_radius),), {}

    center, radius = torch.empty_like(box.center), torch.empty_like(box.radius)
    if number:
        _relu(points, out=(center[:number],))
    if len(box.radius):
        _relu_box(centers, box.radius, out=(center[number:], radius))
    return Box(center, radius), pullback


@fused
def _relu(x: Any) -> tuple[Any, ...]:
    return (torch.relu(x),)


@fused
def _relu_slope(d: Any, x: Any) -> tuple[Any, ...]:
    return (d * (x > 0),)


@fused
def _relu_box(c: Any, r: Any) -> tuple[Any, ...]:
    lower, upper = torch.relu(c - r), torch.relu(c + r)
    middle = torch.lerp(lower, upper, 0.5)
    return middle, upper - middle


@fused
def _relu_box_slope(d: Any, e: Any, c: Any, r: Any) -> tuple[Any, ...]:
    below, above = (d - e) * (c - r > 0), (d + e) * (c + r > 0)
    middle = torch.lerp(below, above, 0.5)
    return middle, above - middle


class LinearRelaxation(NamedTuple):
    """A linear relaxation of an activation f on its interval, with tensors of shape (B, ...).

        lower_slope z + lower_offset  <=  f(z)  <=  upper_slope z + upper_offset


    A lower offset of None is 0. The lower slope may have a dimension S of its own, (B, S, ...).
    """

    lower_slope: Tensor
    lower_offset: Tensor | None
    upper_slope: Tensor
    upper_offset: Tensor


def relax(relaxation: LinearRelaxation, step: Step, overwrite: bool = False) -> Backward:
    """Take the lower bound where a coefficient is positive and the upper one where it is negative.

    With ``overwrite``, the coefficients of the step are lost.
    """
    # All terms have one sign, or the offset's own magnitude covers the rounding of the sum.
    error = sum_error(relaxation.upper_offset, step.rounding)
    ceiling = relaxation.upper_offset + relaxation.upper_offset.abs() * error
    floor = relaxation.lower_offset
    if floor is not None:
        floor = floor - floor.abs() * error
    lower, upper = relaxation.lower_slope, relaxation.upper_slope[:, None]
    if lower.dim() < step.coefficients.dim():
        lower = lower[:, None]
    into, constants = [], []
    for part in portions(step.coefficients):
        some = step.coefficients[part]
        negative = some.clamp(max=0)
        positive = some.sub_(negative) if overwrite else some.clamp(min=0)
        constant = dot(negative, portion(ceiling, part))
        constants.append(constant if floor is None else constant + dot(positive, portion(floor, part)))
        if overwrite:
            positive.mul_(portion(lower, part)).addcmul_(negative, portion(upper, part))
        else:
            into.append(negative * portion(upper, part) + positive * portion(lower, part))
    coefficients = step.coefficients if overwrite else joined(into)
    return Backward((coefficients,), joined(constants), owned=overwrite)


def kinked(slope_below: float, step: Step) -> LinearRelaxation:
    """Relax f(z) = z for z > 0, ``slope_below`` z elsewhere, 0 <= ``slope_below`` <= 1: f is convex.

    A convex function lies below every linear function that is above it at both ends, and above every one through the
    kink whose slope is between those of its two sides.
    """
    low, high = step.ends()
    unit, smallest = step.rounding.unit, torch.finfo(low.dtype).smallest_normal
    # How far the interval reaches to either side of the kink. ReLU has no gradient at 0, and nothing here compares:
    # tensors of truth values are several times as slow as arithmetic.
    depth, height = torch.relu(-low), torch.relu(high)
    chord = torch.add(height, depth, alpha=slope_below) / (depth + height).clamp(min=smallest)
    # Rounded up, but for ReLU's 0 and 1, which stay exact: then the upper bound is nearest to f at the left end, and
    # the right one matters only where the slope underflows. A product may underflow, too.
    upper_slope = (chord * (1 + 8 * unit)).clamp(max=1)
    lift = torch.maximum(torch.addcmul(height, upper_slope, height, value=-1), (upper_slope - slope_below) * depth)
    offset = lift * (1 + 8 * unit) + smallest * 2.0**-20
    # 1 where the lower bound takes the slope below the kink, 0 where it takes that above.
    flat = torch.sign(torch.relu(depth - height) if step.slope == "adaptive" else depth)
    lower_slope = torch.rsub(flat, 1, alpha=1 - slope_below).clamp(min=slope_below)
    if isinstance(step.slope, Tensor):
        chosen = slope_below + (1 - slope_below) * step.slope
        lower_slope = torch.where(((depth > 0) & (height > 0))[:, None], chosen, lower_slope[:, None])
    return LinearRelaxation(lower_slope, None, upper_slope, offset)


def relu_backward(operation: ops.ReLU, weights: Weights, step: Step) -> Backward:
    """Bound ReLU by the chord from above and a linear function through 0 from below; it is exact in floats."""
    return relax(kinked(0.0, step), step, overwrite=step.owned)


def leaky_relu_backward(operation: ops.LeakyReLU, weights: Weights, step: Step) -> Backward:
    """Bound LeakyReLU likewise; where the slope is above 1 it is concave, and -f is bounded instead."""
    if operation.slope <= 1.0:
        back = relax(kinked(operation.slope, step), step)
    else:
        # f(z) = s g(z) with g convex in -z: g(z) = -k(-z), k(t) = t for t > 0 and t / s elsewhere.
        mirrored = Step(
            -operation.slope * step.coefficients,
            (Box(-step.inputs[0].center, step.inputs[0].radius),),
            step.output,
            step.rounding,
            step.slope,
        )
        back = relax(kinked(1.0 / operation.slope, mirrored), mirrored)
        back = back._replace(coefficients=(-back.coefficients[0],))

    def error() -> Tensor:
        # The slope itself may be subnormal in the program, and so may the product.
        underflow = step.magnitude() * (step.rounding.weight_underflow * step.rounding.unit) + step.rounding.underflow
        return step.output.magnitude() * (8 * step.rounding.unit) + underflow

    return back._replace(output_error=error)


def sigmoidal(derivative: Any) -> LinearRule:
    """Make the rule of an S-shaped function f, whose derivative is given in terms of its value.

    The derivative of f has a single peak, so on an interval it is smallest at an end: k = min(f'(l), f'(u)). Then
    f(z) - k z does not fall, and f lies between the linear functions of slope k through its two ends. Any smaller
    k >= 0 is sound, too.
    """

    def backward(operation: Any, weights: Weights, step: Step) -> Backward:
        low, high = step.ends()
        bottom, top = operation.evaluate(weights, low), operation.evaluate(weights, high)
        unit = max(step.rounding.unit, torch.finfo(low.dtype).eps / 2)
        slope = (torch.minimum(derivative(bottom), derivative(top)) - 4 * LIBRARY_ULPS * unit).clamp(min=0)
        # What the library functions, the products and the sums below can lose.
        slack = 4 * LIBRARY_ULPS * unit * (1 + slope * (low.abs() + high.abs()))
        relaxation = LinearRelaxation(slope, bottom - slope * low - slack, slope, top - slope * high + slack)
        return relax(relaxation, step)._replace(
            output_error=lambda: torch.ones_like(low) * (2 * LIBRARY_ULPS * step.rounding.unit)
        )

    return backward


register(
    ops.ReLU,
    relu_interval,
    "nn.ReLU, F.relu, torch.relu",
    relu_backward,
    reuses=True,
    training=relu_training,
    keeps_range=True,
)
register(
    ops.LeakyReLU,
    monotone(ulps=4, commutes_with_rounding=True),
    "nn.LeakyReLU, F.leaky_relu (slope >= 0)",
    leaky_relu_backward,
)
register(
    ops.Tanh,
    monotone(LIBRARY_ULPS),
    "nn.Tanh, torch.tanh",
    sigmoidal(lambda value: 1 - value * value),
    training=monotone_training(lambda operation, d, value: torch.ops.aten.tanh_backward(d, value)),
)
register(
    ops.Sigmoid,
    monotone(LIBRARY_ULPS),
    "nn.Sigmoid, torch.sigmoid",
    sigmoidal(lambda value: value * (1 - value)),
    training=monotone_training(lambda operation, d, value: torch.ops.aten.sigmoid_backward(d, value)),
)
