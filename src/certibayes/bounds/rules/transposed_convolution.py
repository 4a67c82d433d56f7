"""Transposed convolutions: two passes, one for the center and one for the radius, as in ``bounds.rules.affine``.

Every output adds up at most (channels / groups) x kernel products, and every input enters (outputs / groups) x kernel
of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import Rounding
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.regions import Box


def conv_transpose_interval(
    operation: ops.ConvTranspose2d, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding
) -> Box:
    """Bound a transposed convolution: the radius goes through |W|, with the widening of ``bounds.rounding``."""
    weight, bias = weights["weight"], weights.get("bias")
    terms = operation.terms(weight)
    center = operation.convolve(boxes[0].center, weight, bias)
    widened = rounding.widened_radius(boxes[0], terms)
    error = None
    if rounding.outward:
        error = weight.new_zeros(weight.shape[1] * operation.groups) if bias is None else bias.abs()
        error = error * rounding.widening(terms) + rounding.underflow
    return Box(center, operation.convolve(widened, rounding.magnitude(weight), error))


def conv_transpose_backward(operation: ops.ConvTranspose2d, weights: Weights, step: Step) -> Backward:
    """Coefficients become their convolution; the bias is summed over all places in float64."""
    weight, bias = weights["weight"], weights.get("bias")
    flat = step.coefficients.flatten(0, 1)
    zeros = flat.new_zeros(len(flat), *step.inputs[0].center.shape[1:])
    pull: Any = torch.func.vjp(lambda x: operation.convolve(x, weight, None), zeros)[1]
    into = pull(flat)[0].unflatten(0, step.coefficients.shape[:2])

    def error() -> Tensor:
        magnitude = operation.convolve(
            step.magnitude(), step.rounding.magnitude(weight), None if bias is None else bias.abs()
        )
        uses = weight[0].numel()
        relative = 1.25 * (step.rounding.gamma(operation.terms(weight) + 8) + step.rounding.gamma(uses + 8))
        # The bias is summed over all outputs in float64, which matters where the program runs in float64 itself.
        relative += (step.coefficients[0, 0].numel() + 8) * 2.0**-52
        return magnitude * relative + 2 * step.rounding.underflow

    constant = step.coefficients.new_zeros(step.coefficients.shape[:2])
    if bias is not None:
        constant = step.coefficients.flatten(3).sum(-1, dtype=torch.float64) @ bias.double()
    return Backward((into,), constant, error)


register(
    ops.ConvTranspose2d,
    conv_transpose_interval,
    "nn.ConvTranspose2d, F.conv_transpose2d",
    conv_transpose_backward,
    separable=True,
)
