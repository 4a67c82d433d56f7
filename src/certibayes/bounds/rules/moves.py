"""Operations that move numbers: permuting, slicing, concatenating, padding, repeating.

They compute nothing, so a box goes through them as its center does, and no rounding is to be covered. The transpose
moves coefficients back. Where a number has several copies their coefficients are added up, which rounds and may cancel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds._ball_box import reshaped
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import Rounding
from certibayes.bounds.sums import dot, dot_magnitudes, sum_error
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.regions import Box


def moved_interval(
    operation: ops.Permute | ops.Slice, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding
) -> Box:
    """Move center and radius alike, and all that the box carries with them: some of a ball's numbers are in a ball."""
    box = boxes[0]

    def move(tensor: Tensor) -> Tensor:
        return operation.evaluate(weights, tensor)

    largest = None if box.largest is None else move(box.largest)
    return Box(move(box.center), move(box.radius), box.ball and reshaped(box.ball, move), largest, box.allowance)


def permute_backward(operation: ops.Permute, weights: Weights, step: Step) -> Backward:
    """Put the dimensions of coefficients back."""
    into = operation.inverse.evaluate(weights, step.coefficients.flatten(0, 1))
    return _exactly(step, into.unflatten(0, step.coefficients.shape[:2]))


def slice_backward(operation: ops.Slice, weights: Weights, step: Step) -> Backward:
    """Give 0 to what was left out."""
    into = _pulled(operation, weights, step)
    return _exactly(step, into)


def concatenate_interval(
    operation: ops.Concatenate, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding
) -> Box:
    """Put centers side by side, and radii."""
    center, radius = (torch.cat(parts, operation.dim) for parts in zip(*(box[:2] for box in boxes), strict=True))
    return Box(center, radius)


def concatenate_backward(operation: ops.Concatenate, weights: Weights, step: Step) -> Backward:
    """Give each node its own coefficients."""
    sizes = [box.center.shape[operation.dim] for box in step.inputs]
    return _exactly(step, *step.coefficients.split(sizes, operation.dim + 1))


def pad_interval(operation: ops.Pad, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Pad the center; a constant is off by the rounding to the program's precision."""
    error = abs(operation.value) * 2 * rounding.unit + rounding.underflow if operation.value else 0.0
    around = replace(operation, value=error)
    return Box(operation.evaluate(weights, boxes[0].center), around.evaluate(weights, boxes[0].radius))


def pad_backward(operation: ops.Pad, weights: Weights, step: Step) -> Backward:
    """Crop the coefficients, or add those of the copies to those of the original; constants go into the offset."""
    into = _pulled(operation, weights, step)
    if operation.mode != "constant":
        # In each dimension an original has up to two copies, one on either side; "replicate" makes as many of the
        # outermost as the padding is wide.
        reach = 3 if operation.mode != "replicate" else 1 + max(operation.widths, default=0)
        return _added_up(step, into, reach ** (len(operation.widths) // 2))
    if operation.value == 0.0:
        return _exactly(step, into)
    constants = operation.evaluate(weights, torch.zeros_like(step.inputs[0].center[:1]))

    def error() -> Tensor:
        return dot_magnitudes(step.coefficients, constants.abs()) * sum_error(constants, step.rounding)

    constant = dot(step.coefficients, constants)
    return Backward((into,), constant, lambda: torch.zeros_like(step.output.center), error)


def upsample_interval(operation: ops.Upsample, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Repeat center and radius."""
    return Box(operation.evaluate(weights, boxes[0].center), operation.evaluate(weights, boxes[0].radius))


def upsample_backward(operation: ops.Upsample, weights: Weights, step: Step) -> Backward:
    """Add up the coefficients of the copies."""
    copies = step.output.center[0].numel() // max(1, step.inputs[0].center[0].numel())
    return _added_up(step, _pulled(operation, weights, step), copies)


def _pulled(operation: Any, weights: Weights, step: Step) -> Tensor:
    """Apply the transpose of the linear part to coefficients."""
    flat = step.coefficients.flatten(0, 1)
    zeros = flat.new_zeros(len(flat), *step.inputs[0].center.shape[1:])
    pull: Any = torch.func.vjp(lambda x: operation.evaluate(weights, x), zeros)[1]
    into: Tensor = pull(flat)[0]
    return into.unflatten(0, step.coefficients.shape[:2])


def _exactly(step: Step, *into: Tensor) -> Backward:
    """Return coefficients that were moved; whatever they were off by, they still are."""
    return Backward(into, step.coefficients.new_zeros(step.coefficients.shape[:2]))


def _added_up(step: Step, into: Tensor, copies: int) -> Backward:
    """Return sums of up to ``copies`` coefficients, with the error of these sums."""
    constant = step.coefficients.new_zeros(step.coefficients.shape[:2])
    return Backward((into,), constant, lambda: step.output.magnitude() * step.rounding.gamma(copies + 8))


register(
    ops.Permute,
    moved_interval,
    "permute, transpose, swapaxes, movedim, x.mT (not of the batch), nn.PixelShuffle, nn.ChannelShuffle",
    permute_backward,
    separable=True,
    keeps_range=True,
)
register(
    ops.Slice,
    moved_interval,
    "x[:, 1:, ::2], x[..., 0], x[:, [2, 0]], index_select, flip, roll, narrow, chunk, split, unbind (not of the batch)",
    slice_backward,
    separable=True,
    keeps_range=True,
)
register(
    ops.Concatenate,
    concatenate_interval,
    "torch.cat, torch.stack, x.repeat(1, 2)",
    concatenate_backward,
    separable=True,
    keeps_range=True,
)
register(
    ops.Pad,
    pad_interval,
    "F.pad, nn.ZeroPad2d, nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d and so on",
    pad_backward,
    separable=True,
)
register(
    ops.Upsample,
    upsample_interval,
    "nn.Upsample, nn.UpsamplingNearest2d, F.interpolate (nearest, by whole factors), repeat_interleave, expand",
    upsample_backward,
    separable=True,
    keeps_range=True,
)
