r"""Normalization of each example by itself: centered groups, divided by their root mean square.

**Center**, d_i = x_i - (1/n) Σ_j x_j, is linear. x_i enters with the weight 1 - 1/n, all others with 1/n, so radii r
become r_i + mean(r) - 2 r_i / n.

**Root mean square.** Given R = Σ_{j ≠ i} x_j²,

    y_i = x_i / sqrt((x_i² + R) / n + eps)

increases with x_i; it falls with R where x_i > 0 and rises where x_i < 0. With bounds on every x_j² both extremes are
known, and no y_i exceeds sqrt(n), whatever the box.

For linear bounds, y_i = s x_i with 1 / s = sqrt(mean(x²) + eps) in [1 / s_high, 1 / s_low]. So y_i - λ x_i lies between
the extremes of (s - λ) x_i at the corners of s and x_i; λ is the middle of s, or 0 with the constants above where these
are nearer to each other. What the inputs have in common through s is lost: these bounds are loose, the more so the
wider the box is beside the group's root mean square.

Rounding. Everything here is computed in float64. In the program all terms of the mean square have one sign, so it errs
by a fraction γₙ₊₂, and root, sum and quotient add a few units; squares that underflow are nothing beside eps, which is
at least 2⁻⁶⁸. g = 4 γₙ₊₁₆ of the result covers that and as much in this rule. Nothing is known of groups beyond 2⁵⁰,
whose squares may overflow.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import SMALLEST_VARIANCE, Rounding
from certibayes.bounds.rules.activation import LinearRelaxation, relax
from certibayes.bounds.rules.transposed import transposed
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.networks.operations.norms import grouped
from certibayes.regions import Box

LARGEST = 2.0**50
"""Numbers whose squares, and sums of these, are far from overflow in float32."""


def center_interval(operation: ops.Center, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound x_i less the mean of its group."""
    box = boxes[0]
    radius = grouped(box.radius, operation.groups)
    size = radius.shape[-1]
    moved = radius + radius.mean(-1, keepdim=True) - radius * (2.0 / size)
    if rounding.outward:
        magnitude = grouped(box.magnitude(), operation.groups)
        # Mean, difference and the sums of this rule are each off by γ of these magnitudes.
        error = (magnitude + magnitude.mean(-1, keepdim=True)) * rounding.widening(size + 8)
        moved = moved + error + rounding.underflow
    return Box(operation.evaluate(weights, box.center), moved.reshape(box.radius.shape))


def norm_interval(
    operation: ops.RootMeanSquareNorm, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding
) -> Box:
    """Bound a group over its root mean square."""
    box = boxes[0]
    low, high = rounding.ends(box) if rounding.outward else (box.lower, box.upper)
    error = _error(operation, low, rounding)
    lower, upper = _quotients(operation, low, high, error)
    wide = {role: operation.wide(weight.to(low.dtype), low) for role, weight in weights.items()}
    center, radius = torch.lerp(lower, upper, 0.5), (upper - lower) / 2
    largest = torch.maximum(lower.abs(), upper.abs())
    if "weight" in wide:
        magnitude = rounding.magnitude(wide["weight"])
        center, radius, largest = center * wide["weight"], radius * magnitude, largest * magnitude
    if "bias" in wide:
        center, largest = center + wide["bias"], largest + wide["bias"].abs()
    if not rounding.outward:
        return Box(center, radius)
    # A weight or bias adds roundings, and both ends become floats of the network's precision.
    radius = (radius + largest * error + rounding.underflow) * (1 + 8 * rounding.unit)
    known = _group_magnitude(operation, low, high) <= LARGEST
    if operation.eps < SMALLEST_VARIANCE:
        known = torch.zeros_like(known)
    dtype = box.center.dtype
    return Box(center.to(dtype), torch.where(known, radius, torch.inf).to(dtype))


def norm_backward(operation: ops.RootMeanSquareNorm, weights: Weights, step: Step) -> Backward:
    """Bound s x_i between two parallel lines, or two constants."""
    low, high = step.rounding.ends(step.inputs[0])
    error = _error(operation, low, step.rounding)
    dtype = step.inputs[0].center.dtype
    one, zero = torch.ones((), dtype=low.dtype, device=low.device), torch.zeros((), dtype=low.dtype, device=low.device)
    weight = operation.wide(weights["weight"].double(), low) if "weight" in weights else one
    bias = operation.wide(weights["bias"].double(), low) if "bias" in weights else zero
    shape = low.shape
    small, large = _squares(grouped(low, operation.groups), grouped(high, operation.groups))
    slowest = 1.0 / torch.sqrt(large.mean(-1, keepdim=True) * (1 + error) + operation.eps) * (1 - error)
    fastest = 1.0 / torch.sqrt(small.mean(-1, keepdim=True) * (1 - error) + operation.eps) * (1 + error)
    slowest, fastest = (s.expand_as(small).reshape(shape) for s in (slowest, fastest))
    slope = ((slowest + fastest) / 2 * weight).expand(shape).to(dtype)
    tilts = [s * weight - slope.double() for s in (slowest, fastest)]
    corners = torch.stack([tilt * end for tilt in tilts for end in (low, high)])
    floor, ceiling = corners.amin(0) + bias, corners.amax(0) + bias
    ends = torch.stack([end * weight + bias for end in _quotients(operation, low, high, error)])
    lower, upper = ends.amin(0), ends.amax(0)
    flat = (upper - lower) <= (ceiling - floor)
    slope = torch.where(flat, 0.0, slope)
    floor, ceiling = torch.where(flat, lower, floor), torch.where(flat, upper, ceiling)
    # The products of this rule in float64, and its offsets in the network's precision.
    reach = torch.maximum(low.abs(), high.abs()) * (fastest * weight.abs() + slope.double().abs()) + bias.abs()
    unit = max(step.rounding.unit, torch.finfo(dtype).eps / 2)
    floor = floor - reach * 2.0**-48 - 8 * unit * floor.abs()
    ceiling = ceiling + reach * 2.0**-48 + 8 * unit * ceiling.abs()

    def program_error() -> Tensor:
        magnitude = step.rounding.magnitude(weight)
        largest = torch.maximum(low.abs(), high.abs()) * fastest * magnitude + bias.abs()
        return (largest * error + step.rounding.underflow).to(dtype)

    relaxation = LinearRelaxation(slope, floor.to(dtype), slope, ceiling.to(dtype))
    return relax(relaxation, step)._replace(output_error=program_error)


def _error(operation: ops.RootMeanSquareNorm, x: Tensor, rounding: Rounding) -> float:
    return rounding.widening(math.prod(x.shape[1:]) // operation.groups + 8)


def _squares(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Bound x² for x in [low, high]."""
    first, second = low.square(), high.square()
    apart = (low > 0) | (high < 0)
    return torch.where(apart, torch.minimum(first, second), 0.0), torch.maximum(first, second)


def _quotients(operation: ops.RootMeanSquareNorm, low: Tensor, high: Tensor, error: float) -> tuple[Tensor, Tensor]:
    """Bound x over the root mean square of its group, with a relative error; of the shape of the ends."""
    shape, groups = low.shape, operation.groups
    low, high = grouped(low, groups), grouped(high, groups)
    small, large = _squares(low, high)
    size = low.shape[-1]
    # What the others of the group have at least, and at most.
    least = (small.sum(-1, keepdim=True) * (1 - error) - small).clamp(min=0)
    most = (large.sum(-1, keepdim=True) * (1 + error) - large).clamp(min=0)

    def quotient(x: Tensor, others: Tensor) -> Tensor:
        return x / torch.sqrt((x.square() + others) / size + operation.eps)

    lower = quotient(low, torch.where(low >= 0, most, least))
    upper = quotient(high, torch.where(high >= 0, least, most))
    return (lower - lower.abs() * error).reshape(shape), (upper + upper.abs() * error).reshape(shape)


def _group_magnitude(operation: ops.RootMeanSquareNorm, low: Tensor, high: Tensor) -> Tensor:
    """Return the largest magnitude in each number's group, of the shape of the ends."""
    largest = grouped(torch.maximum(low.abs(), high.abs()), operation.groups)
    return largest.amax(-1, keepdim=True).expand_as(largest).reshape(low.shape)


register(
    ops.Center,
    center_interval,
    "the mean of nn.LayerNorm and nn.GroupNorm",
    transposed,
    separable=True,
)
register(
    ops.RootMeanSquareNorm,
    norm_interval,
    "nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.RMSNorm and their functions (loose)",
    norm_backward,
)
