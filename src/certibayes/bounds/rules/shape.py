"""Reshaping moves numbers and changes none."""

from __future__ import annotations

from torch import Tensor

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds._ball_box import reshaped
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import Rounding
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.regions import Box


def reshape_interval(operation: ops.Reshape, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Reshape center and radius alike, and all that the box carries with them."""
    box = boxes[0]

    def reshape(tensor: Tensor) -> Tensor:
        return operation.evaluate(weights, tensor)

    largest = None if box.largest is None else reshape(box.largest)
    return Box(
        reshape(box.center), reshape(box.radius), box.ball and reshaped(box.ball, reshape), largest, box.allowance
    )


def reshape_backward(operation: ops.Reshape, weights: Weights, step: Step) -> Backward:
    """Give coefficients the shape of the input."""
    batch = step.coefficients.shape[:2]
    into = step.coefficients.reshape(*batch, *step.inputs[0].center.shape[1:])
    return Backward((into,), step.coefficients.new_zeros(batch), owned=step.owned)


register(
    ops.Reshape,
    reshape_interval,
    "nn.Flatten, nn.Unflatten, flatten, view, reshape, squeeze, unsqueeze",
    reshape_backward,
    reuses=True,
    separable=True,
    keeps_range=True,
)
