"""Pooling: the maximum is monotone and exact; a mean is a linear layer with equal weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import Rounding
from certibayes.bounds.rules.activation import monotone
from certibayes.bounds.rules.transposed import transposed
from certibayes.bounds.sums import COEFFICIENT_UNITS, dot, dot_magnitudes, sum_error
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.regions import Box


def avg_pool_interval(
    operation: ops.AvgPool2d | ops.AdaptiveAvgPool2d,
    weights: Weights,
    boxes: tuple[Box, ...],
    rounding: Rounding,
) -> Box:
    """Bound a mean over windows: the mean of the centers and the mean of the (widened) radii."""
    # A window of an adaptive pooling has no more pixels than the image.
    window = operation.kernel if isinstance(operation, ops.AvgPool2d) else boxes[0].center.shape[-2:]
    radius = operation.evaluate(weights, rounding.widened_radius(boxes[0], math.prod(window) + 1))
    if isinstance(operation, ops.AvgPool2d) and (operation.divisor or 1) < 0:
        radius = radius.abs()
    center = operation.evaluate(weights, boxes[0].center)
    return Box(center, radius + rounding.underflow if rounding.outward else radius)


def reduction_interval(
    operation: ops.Sum | ops.Mean, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding
) -> Box:
    """Bound a sum or a mean over whole dimensions: that of the centers and that of the (widened) radii."""
    terms = math.prod(boxes[0].center.shape[dim] for dim in operation.dims)
    radius = operation.evaluate(weights, rounding.widened_radius(boxes[0], terms + 1))
    center = operation.evaluate(weights, boxes[0].center)
    return Box(center, radius + rounding.underflow if rounding.outward else radius)


def max_pool_backward(operation: ops.MaxPool2d, weights: Weights, step: Step) -> Backward:
    """Bound a maximum from below by the input whose lower end is highest, from above by its own upper end.

    Where that input's lower end is above every other upper end of its window, it *is* the maximum. The maximum is exact
    in floats.
    """
    low, high = step.ends()
    kernel, dilation, stride = operation.kernel, operation.dilation, operation.stride
    shape = step.output.center.shape[-2:]
    # The part of the padded image that windows reach; beyond the image there is nothing to choose.
    reach = [(shape[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1 for i in range(2)]
    before = operation.padding
    after = [max(0, reach[i] - before[i] - low.shape[-2 + i]) for i in range(2)]
    channels = low.shape[1]

    def windows(image: Tensor) -> Tensor:
        padded = functional.pad(image, (before[1], after[1], before[0], after[0]), value=-torch.inf)
        padded = padded[..., : reach[0], : reach[1]]
        parts = functional.unfold(padded, kernel, dilation, stride=stride)
        return parts.unflatten(1, (channels, -1))

    lows, highs = windows(low), windows(high)
    highest = lows.amax(2, keepdim=True)
    # One of the highest, for each window.
    chosen = torch.arange(lows.shape[2], device=low.device).view(-1, 1) == lows.argmax(2, keepdim=True)
    alone = highest >= highs.masked_fill(chosen, -torch.inf).amax(2, keepdim=True)
    positive, negative = step.coefficients.clamp(min=0), step.coefficients.clamp(max=0)
    is_alone = alone.view(len(low), 1, channels, *shape)
    given, rest = positive + negative * is_alone, negative * ~is_alone
    if kernel == stride and dilation == (1, 1):
        # Windows side by side: every pixel belongs to one, and takes its coefficient or nothing.
        pixels = functional.fold(chosen.to(low.dtype).flatten(1, 2), (reach[0], reach[1]), kernel, stride=stride)
        repeated = given.repeat_interleave(kernel[0], -2).repeat_interleave(kernel[1], -1)
        folded = repeated * pixels[:, None]
    else:
        by_place = given.flatten(3)[:, :, :, None] * chosen[:, None]
        flat = by_place.flatten(0, 1).flatten(1, 2)
        folded = functional.fold(flat, (reach[0], reach[1]), kernel, dilation, stride=stride)
        folded = folded.unflatten(0, step.coefficients.shape[:2])
    into = functional.pad(folded, _to_image(low.shape[-2:], reach, before))
    error = sum_error(step.output.center, step.rounding) + 4 * step.rounding.unit
    top = step.output.center + step.output.radius + step.output.magnitude() * error

    def cancelled() -> Tensor:
        # An input that several windows choose gets the sum of their coefficients, which may cancel.
        largest = torch.where(chosen, windows(step.magnitude()), 0.0).sum(2)
        units = 2 * step.rounding.gamma(math.prod(kernel) + 8) + 2 * COEFFICIENT_UNITS * step.rounding.unit
        return dot_magnitudes(step.coefficients.flatten(3), largest * units) * (1 + sum_error(largest, step.rounding))

    apart = all(stride[i] > dilation[i] * (kernel[i] - 1) for i in range(2))
    return Backward((into,), dot(rest, top), bound_error=None if apart else cancelled)


def _to_image(image: torch.Size, reach: list[int], before: tuple[int, int]) -> tuple[int, int, int, int]:
    """Padding, negative to crop, that brings an image of ``reach`` with ``before`` back to the size of ``image``."""
    (top, left), (height, width) = before, image
    return -left, width - reach[1] + left, -top, height - reach[0] + top


register(
    ops.MaxPool2d,
    monotone(ulps=1, commutes_with_rounding=True),
    "nn.MaxPool2d, nn.MaxPool1d, F.max_pool2d, nn.AdaptiveMaxPool2d (even windows), x.amax((2, 3)), x.max(1).values, "
    "torch.max(a, b), and minima",
    max_pool_backward,
)
register(ops.AvgPool2d, avg_pool_interval, "nn.AvgPool2d, nn.AvgPool1d, F.avg_pool2d", transposed)
register(
    ops.AdaptiveAvgPool2d,
    avg_pool_interval,
    "nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool1d, F.adaptive_avg_pool2d",
    transposed,
)
register(ops.Sum, reduction_interval, "x.sum(dim), torch.sum", transposed, separable=True)
register(ops.Mean, reduction_interval, "x.mean((2, 3)), torch.mean", transposed, separable=True)
