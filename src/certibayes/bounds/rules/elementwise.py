"""Elementwise arithmetic: normalization, batch norm with fixed statistics, scaling, shifting, residual sums.

Each of these is y = a x + d with constants a and d. Computed in floats, in whatever order, it errs by a few units of
|a| (|x| + |m|) + |d|, where m is what is subtracted before scaling. The widening g(16) of ``bounds.rounding`` allows
more than thirty units, several times what the longest of these formulas can lose. What is scaled may have lost
something by underflow, the factor a as well, and so may the result: an allowance is made for each of the three.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from certibayes.bounds._ball_box import carrying
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import LARGEST_BOUND, SMALLEST_VARIANCE, Rounding
from certibayes.bounds.rules.batch_norm import batch_norm_training
from certibayes.bounds.rules.transposed import transposed
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.regions import Box

TERMS = 16


def _per_channel(tensor: Tensor, like: Tensor) -> Tensor:
    """Shape (C,) statistics so that they broadcast against (B, C, ...)."""
    return tensor.view((-1,) + (1,) * (like.dim() - 2))


def batch_norm_interval(operation: ops.BatchNorm, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound (x - m) / sqrt(v + eps) * a + b with given m and v; those of a batch, with gradient, only in training."""
    box = boxes[0]
    center = operation.evaluate(weights, box.center)
    if not rounding.outward:
        return Box(center, _per_channel(rounding.magnitude(operation.scale(weights)), box.center) * box.radius)
    inverse = torch.rsqrt(weights["running_var"] + operation.eps)
    # A program may scale by inverse and weight one after the other, or by their product, which may underflow.
    scale = inverse * rounding.magnitude(weights["weight"]) if "weight" in weights else inverse
    scale, mean = rounding.magnitude(scale), _per_channel(weights["running_mean"].abs(), box.center)
    widened = rounding.widened_radius(box, TERMS) + mean * rounding.widening(TERMS) + rounding.underflow
    radius = _per_channel(scale, box.center) * widened + rounding.underflow
    if "bias" in weights:
        radius = radius + _per_channel(weights["bias"].abs(), box.center) * rounding.widening(TERMS)
    # Nothing is known where the inverse or a value before the weight may overflow.
    variance = weights["running_var"]
    known = (variance >= 0) & (variance + operation.eps >= SMALLEST_VARIANCE)
    before = (box.center.abs() + box.radius + mean) * _per_channel(inverse, box.center)
    known = _per_channel(known, box.center) & (before <= LARGEST_BOUND)
    return Box(center, torch.where(known, radius, torch.inf))


def normalize_interval(operation: ops.Normalize, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound (x - mean) / std."""
    box, std = boxes[0], _per_channel(weights["std"], boxes[0].center)
    center, widened = operation.evaluate(weights, box.center), rounding.widened_radius(box, TERMS)
    if not rounding.outward:
        return Box(center, widened / std.abs())
    mean = _per_channel(weights["mean"].abs(), box.center)
    widened = widened + mean * rounding.widening(TERMS) + rounding.underflow
    return Box(center, _divided(widened / std.abs(), std, rounding))


def scale_interval(
    operation: ops.Multiply | ops.Divide, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding
) -> Box:
    """Bound x times, or divided by, a constant."""
    center, widened = operation.evaluate(weights, boxes[0].center), rounding.widened_radius(boxes[0], TERMS)
    if not rounding.outward:
        return Box(center, operation.evaluate(weights, widened).abs())
    widened = widened + rounding.underflow
    # A factor that is subnormal, or an inverse on a GPU, may have lost all its digits.
    radius = operation.evaluate(weights, widened).abs() + widened * rounding.weight_underflow
    if isinstance(operation, ops.Divide):
        divisor = weights["divisor"] if operation.constant is None else widened.new_tensor(operation.constant)
        return Box(center, _divided(radius, divisor, rounding))
    return Box(center, radius + rounding.underflow)


def _divided(radius: Tensor, divisor: Tensor, rounding: Rounding) -> Tensor:
    """Widen a quotient by its own underflow; nothing is known where a program may take the divisor for 0."""
    known = divisor.abs() >= torch.finfo(divisor.dtype).smallest_normal
    return torch.where(known, radius + rounding.underflow, torch.inf)


def shift_interval(operation: ops.Shift, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound x plus or minus a constant; the sum may be broadcast to a larger shape."""
    center = operation.evaluate(weights, boxes[0].center)
    radius = rounding.widened_radius(boxes[0], TERMS)
    if rounding.outward:
        # |offset| <= |x| + |x + offset|, which saves looking at where the offset came from.
        radius = radius + (boxes[0].center.abs() + center.abs()) * rounding.widening(TERMS) + rounding.underflow
    return Box(center, radius.expand_as(center))


def sum_interval(operation: Any, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound the sum or difference of two nodes: radii add up."""
    radius = rounding.widened_radius(boxes[0], TERMS) + rounding.widened_radius(boxes[1], TERMS)
    if rounding.outward:
        radius = radius + rounding.underflow
    return Box(operation.evaluate(weights, boxes[0].center, boxes[1].center), radius)


register(
    ops.BatchNorm,
    carrying(batch_norm_interval),
    "nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm, F.batch_norm (eval mode)",
    transposed,
    separable=True,
    training=batch_norm_training,
)
register(ops.Normalize, carrying(normalize_interval), "certibayes.networks.Normalize", transposed)
register(ops.Multiply, carrying(scale_interval), "* by a constant or parameter, unary minus", transposed)
register(ops.Divide, carrying(scale_interval), "/ by a constant or parameter", transposed)
register(ops.Shift, carrying(shift_interval), "+ and - with a constant or parameter", transposed)
register(ops.Add, sum_interval, "+ of two activations (residual connections)", transposed)
register(ops.Subtract, sum_interval, "- of two activations", transposed)
