"""Linear and convolutional layers: two products, one for the centre and one for the radius.

    c' = W c + b,     r' = |W| r                              (Gowal et al., 2018)

with the widening of ``bounds.rounding`` folded into the radius.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from certibayes.bounds.box import Box
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import Rounding
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights


def linear_interval(operation: ops.Linear, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound y = x Wᵀ + b."""
    weight, bias = weights["weight"], weights.get("bias")
    terms = weight.shape[1]
    centre = functional.linear(boxes[0].centre, weight, bias)
    spread = rounding.spread(boxes[0], terms)
    radius = functional.linear(spread, rounding.magnitude(weight), _bias_error(weight, bias, terms, rounding))
    return Box(centre, radius)


def conv2d_interval(operation: ops.Conv2d, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound a convolution; every output is a dot product of (channels / groups) x kernel terms."""
    weight, bias = weights["weight"], weights.get("bias")
    terms = weight[0].numel()
    centre = operation.convolve(boxes[0].centre, weight, bias)
    spread = rounding.spread(boxes[0], terms)
    radius = operation.convolve(spread, rounding.magnitude(weight), _bias_error(weight, bias, terms, rounding))
    return Box(centre, radius)


def _bias_error(weight: Tensor, bias: Tensor | None, terms: int, rounding: Rounding) -> Tensor | None:
    """Return g |b| plus what underflow can cost, or None in ideal arithmetic."""
    if not rounding.outward:
        return None
    if bias is None:
        return weight.new_full((weight.shape[0],), rounding.underflow)
    return bias.abs() * rounding.widening(terms) + rounding.underflow


register(ops.Linear, linear_interval, "nn.Linear, F.linear")
register(ops.Conv2d, conv2d_interval, "nn.Conv2d, F.conv2d (zero padding, any stride, dilation, groups)")
