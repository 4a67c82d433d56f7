"""The linear rule of operations that are linear already: their transpose, by automatic differentiation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds.registry import rules_for
from certibayes.bounds.sums import dot, dot_magnitudes, sum_error
from certibayes.networks.operations import Weights
from certibayes.regions import Box


def transposed(operation: Any, weights: Weights, step: Step) -> Backward:
    """Coefficients A on f(x) = L x + d are A L on x, and A d is added to the constant."""
    flat = step.coefficients.flatten(0, 1)
    zeros = [box.center.new_zeros(len(flat), *box.center.shape[1:]) for box in step.inputs]
    pull: Any = torch.func.vjp(lambda *x: operation.evaluate(weights, *x), *zeros)[1]
    offset = operation.evaluate(weights, *(zero[:1] for zero in zeros))
    into = tuple(c.unflatten(0, step.coefficients.shape[:2]) for c in pull(flat))

    def sum_of_offset() -> Tensor:
        # As long as the layer is large.
        return dot_magnitudes(step.coefficients, offset.abs()) * sum_error(offset, step.rounding)

    return Backward(into, dot(step.coefficients, offset), lambda: _error(operation, weights, step), sum_of_offset)


def _error(operation: Any, weights: Weights, step: Step) -> Tensor:
    """What rounding can do to the layer: how far its interval rule widens a point of the largest magnitude there is."""
    points = tuple(Box(step.magnitude(i), torch.zeros_like(box.radius)) for i, box in enumerate(step.inputs))
    error = rules_for(operation).interval(operation, weights, points, step.rounding).radius
    # Where an input is broadcast to a larger output, the backward pass sums over its copies.
    copies = step.output.center[0].numel() // max(1, min(box.center[0].numel() for box in step.inputs))
    if copies > 1:
        error = error + step.output.magnitude() * step.rounding.gamma(copies + 8)
    return error
