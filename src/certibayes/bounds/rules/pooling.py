"""Pooling: the maximum is monotone and exact; a mean is a linear layer with equal weights."""

from __future__ import annotations

import math

from certibayes.bounds.box import Box
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import Rounding
from certibayes.bounds.rules.activation import monotone
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights


def avg_pool_interval(
    operation: ops.AvgPool2d | ops.AdaptiveAvgPool2d,
    weights: Weights,
    boxes: tuple[Box, ...],
    rounding: Rounding,
) -> Box:
    """Bound a mean over windows: the mean of the centres and the mean of the (widened) radii."""
    # A window of an adaptive pooling has no more pixels than the image.
    window = operation.kernel if isinstance(operation, ops.AvgPool2d) else boxes[0].centre.shape[-2:]
    spread = rounding.spread(boxes[0], math.prod(window) + 1)
    radius = operation.evaluate(weights, spread)
    if isinstance(operation, ops.AvgPool2d) and (operation.divisor or 1) < 0:
        radius = radius.abs()
    centre = operation.evaluate(weights, boxes[0].centre)
    return Box(centre, radius + rounding.underflow if rounding.outward else radius)


register(ops.MaxPool2d, monotone(ulps=1, commutes_with_rounding=True), "nn.MaxPool2d, F.max_pool2d")
register(ops.AvgPool2d, avg_pool_interval, "nn.AvgPool2d, F.avg_pool2d")
register(ops.AdaptiveAvgPool2d, avg_pool_interval, "nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d")
