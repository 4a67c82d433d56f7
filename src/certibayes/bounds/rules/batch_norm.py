"""Batch norm in training: points and boxes, with derivatives through the statistics of the batch.

    y = (x - m) s + b,     r' = |s| r,     s = a / sqrt(v + eps)

for points and centers x alike, with mean m and variance v of the n values that a channel has in the points, or with
constants. With derivatives d and f of the output's center and radius, and sums over all examples and pixels,

    dL/db = Σ d,     dL/ds = Σ d (x - m) + sign(s) Σ f r,     dL/dm = - s Σ d,     dL/dv = - dL/ds s / (2 (v + eps)),

and the derivative with respect to a point is d s + (dL/dm + 2 (x - m) dL/dv) / n.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from certibayes.bounds._pullback import Pullback, Wanted, points_and_centers
from certibayes.bounds.rounding import Rounding
from certibayes.networks import operations as ops
from certibayes.networks.moments import moments, per_channel
from certibayes.networks.operations import Weights
from certibayes.regions import Box
from certibayes.support.fused import fused, is_fused


def batch_norm_training(
    operation: ops.BatchNorm, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding, wanted: Wanted
) -> tuple[Box, Pullback]:
    """Normalize by constants among the weights, or where there are none, by the statistics of the points."""
    box = boxes[0]
    points, _ = points_and_centers(box)
    by_batch = "running_mean" not in weights
    mean, variance = moments(points) if by_batch else (weights["running_mean"], weights["running_var"])
    inverse = torch.rsqrt(variance + operation.eps)
    scale = inverse * weights["weight"] if "weight" in weights else inverse
    shift = -mean * scale
    shift = shift + weights["bias"] if "bias" in weights else shift
    magnitude = rounding.magnitude(scale)
    (center,) = _affine(box.center, _wide(scale, box), _wide(shift, box))
    (radius,) = _times(box.radius, _wide(magnitude, box))

    def pullback(derivative: Box) -> tuple[tuple[Box, ...], Weights]:
        d, f = derivative.center, derivative.radius
        total, by_scale = _sums(d, box.center, mean)
        if len(f):
            by_scale = by_scale + rounding.slope(scale) * _sums(f, box.radius, torch.zeros_like(mean))[1]
        slopes = {"weight": by_scale * inverse, "bias": total}
        slopes = {role: slope for role, slope in slopes.items() if role in wanted.weights}
        if not wanted.inputs:
            return (), slopes
        (radius,) = _times(f, _wide(magnitude, box))
        if not by_batch:
            return (Box(_times(d, _wide(scale, box))[0], radius),), slopes
        number = points.numel() // points.shape[1]
        by_variance = by_scale * scale * inverse.square() * (-1.0 / number)
        constant = scale * total * (-1.0 / number) - by_variance * mean
        into, first = torch.empty_like(box.center), len(points)
        sums = _wide(scale, box), points, _wide(by_variance, box), _wide(constant, box)
        _affine_sum(d[:first], *sums, out=(into[:first],))
        if len(f):
            _times(d[first:], _wide(scale, box), out=(into[first:],))
        return (Box(into, radius),), slopes

    return Box(center, radius), pullback


def _wide(values: Tensor, box: Box) -> Tensor:
    return per_channel(values, box.center)


def _sums(d: Tensor, x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ d and Σ d (x - m) over all but the channels, (C,) each."""
    if is_fused(d, x):
        # One pass over both; a sum over images with channels last takes a GPU several times as long.
        total, product, *_ = torch.batch_norm_backward_reduce(
            d, x, mean, torch.ones_like(mean), None, True, False, False
        )
        return total, product
    dims = [dim for dim in range(x.dim()) if dim != 1]
    return d.sum(dims), ((x - per_channel(mean, x)) * d).sum(dims)


@fused
def _affine(x: Any, scale: Any, shift: Any) -> tuple[Any, ...]:
    return (torch.addcmul(shift, x, scale),)


@fused
def _times(x: Any, factor: Any) -> tuple[Any, ...]:
    return (x * factor,)


@fused
def _affine_sum(d: Any, scale: Any, x: Any, slope: Any, constant: Any) -> tuple[Any, ...]:
    return (torch.addcmul(torch.addcmul(constant, x, slope), d, scale),)
