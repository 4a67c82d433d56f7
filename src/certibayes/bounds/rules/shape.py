"""Reshaping moves numbers and changes none."""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds._ball_box import reshaped
from certibayes.bounds._pullback import Pullback, Wanted
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import Rounding
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.regions import Box
from certibayes.support.fused import is_fused


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


def reshape_training(
    operation: ops.Reshape, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding, wanted: Wanted
) -> tuple[Box, Pullback]:
    """Give derivatives the shape of the input, and its order in memory."""
    center, radius = boxes[0].center.shape, boxes[0].radius.shape
    images = boxes[0].center
    last = images.dim() == 4 and is_fused(images) and images.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if last else torch.contiguous_format

    def pullback(derivative: Box) -> tuple[tuple[Box, ...], Weights]:
        into = derivative.center.reshape(center).contiguous(memory_format=order)
        return (Box(into, derivative.radius.reshape(radius).contiguous(memory_format=order)),), {}

    return reshape_interval(operation, weights, boxes, rounding), pullback


register(
    ops.Reshape,
    reshape_interval,
    "nn.Flatten, nn.Unflatten, flatten, view, reshape, squeeze, unsqueeze",
    reshape_backward,
    reuses=True,
    separable=True,
    training=reshape_training,
    keeps_range=True,
)
