"""Elementwise arithmetic: normalisation, batch norm with fixed statistics, scaling, shifting, residual sums.

Each of these is y = a x + d with constants a and d. Computed in floats, in whatever order, it errs by a few units of
|a| (|x| + |m|) + |d|, where m is what is subtracted before scaling. The widening g(16) of ``bounds.rounding`` allows
more than thirty units, several times what the longest of these formulas can lose.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from certibayes.bounds.cut import carrying
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import Rounding
from certibayes.bounds.rules.transposed import transposed
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.regions import Box

TERMS = 16


def _per_channel(tensor: Tensor, like: Tensor) -> Tensor:
    """Shape (C,) statistics so that they broadcast against (B, C, ...)."""
    return tensor.view((-1,) + (1,) * (like.dim() - 2))


def batch_norm_interval(operation: ops.BatchNorm, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound (x - m) / sqrt(v + eps) * a + b with fixed m and v."""
    box = boxes[0]
    scale = torch.rsqrt(weights["running_var"] + operation.eps)
    if "weight" in weights:
        scale = scale * weights["weight"]
    scale = _per_channel(rounding.magnitude(scale), box.centre)
    spread = box.radius
    if rounding.outward:
        mean = _per_channel(weights["running_mean"].abs(), box.centre)
        spread = rounding.spread(box, TERMS) + mean * rounding.widening(TERMS)
    radius = scale * spread
    if rounding.outward:
        if "bias" in weights:
            radius = radius + _per_channel(weights["bias"].abs(), box.centre) * rounding.widening(TERMS)
        radius = radius + rounding.underflow
    return Box(operation.evaluate(weights, box.centre), radius)


def normalize_interval(operation: ops.Normalize, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound (x - mean) / std."""
    box = boxes[0]
    spread = rounding.spread(box, TERMS)
    if rounding.outward:
        mean = _per_channel(weights["mean"].abs(), box.centre)
        spread = spread + mean * rounding.widening(TERMS) + rounding.underflow
    radius = spread / _per_channel(weights["std"].abs(), box.centre)
    return Box(operation.evaluate(weights, box.centre), radius)


def scale_interval(
    operation: ops.Multiply | ops.Divide, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding
) -> Box:
    """Bound x times, or divided by, a constant."""
    radius = operation.evaluate(weights, rounding.spread(boxes[0], TERMS)).abs()
    if rounding.outward:
        radius = radius + rounding.underflow
    return Box(operation.evaluate(weights, boxes[0].centre), radius)


def shift_interval(operation: ops.Shift, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound x plus or minus a constant; the sum may be broadcast to a larger shape."""
    centre = operation.evaluate(weights, boxes[0].centre)
    radius = rounding.spread(boxes[0], TERMS)
    if rounding.outward:
        # |offset| <= |x| + |x + offset|, which saves looking at where the offset came from.
        radius = radius + (boxes[0].centre.abs() + centre.abs()) * rounding.widening(TERMS) + rounding.underflow
    return Box(centre, radius.expand_as(centre))


def sum_interval(operation: Any, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound the sum or difference of two nodes: radii add up."""
    radius = rounding.spread(boxes[0], TERMS) + rounding.spread(boxes[1], TERMS)
    if rounding.outward:
        radius = radius + rounding.underflow
    return Box(operation.evaluate(weights, boxes[0].centre, boxes[1].centre), radius)


register(
    ops.BatchNorm, carrying(batch_norm_interval), "nn.BatchNorm1d, nn.BatchNorm2d, F.batch_norm (eval mode)", transposed
)
register(ops.Normalize, carrying(normalize_interval), "certibayes.networks.Normalize", transposed)
register(ops.Multiply, carrying(scale_interval), "* by a constant or parameter, unary minus", transposed)
register(ops.Divide, carrying(scale_interval), "/ by a constant or parameter", transposed)
register(ops.Shift, carrying(shift_interval), "+ and - with a constant or parameter", transposed)
register(ops.Add, sum_interval, "+ of two activations (residual connections)", transposed)
register(ops.Subtract, sum_interval, "- of two activations", transposed)
