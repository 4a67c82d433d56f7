"""Convolutions of sequences and products x W: what is known of images and of linear layers, in other shapes.

A sequence (B, C, L) is an image of one row, (B, C, 1, L), and x W is a linear layer of the transposed weights.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds._ball_box import reshaped
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import Rounding
from certibayes.bounds.rules.affine import conv2d_backward, conv2d_interval, linear_backward, linear_interval
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights
from certibayes.regions import Box

ROW = -2
"""The dimension of the one row."""


def conv1d_interval(operation: ops.Conv1d, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound a convolution of images of one row."""
    output = conv2d_interval(operation.on_images, _with_row(weights), (_image(boxes[0]),), rounding)
    return Box(output.center.squeeze(ROW), output.radius.squeeze(ROW))


def conv1d_backward(operation: ops.Conv1d, weights: Weights, step: Step) -> Backward:
    """Do the same with coefficients, and take the row out again."""
    lifted = replace(
        step,
        coefficients=step.coefficients.unsqueeze(ROW),
        inputs=(_image(step.inputs[0]),),
        output=_image(step.output),
        owned=False,
    )
    back = conv2d_backward(operation.on_images, _with_row(weights), lifted)
    error = back.output_error
    assert error is not None
    return back._replace(
        coefficients=(back.coefficients[0].squeeze(ROW),), output_error=lambda: error().squeeze(ROW), owned=False
    )


def _image(box: Box) -> Box:
    def lift(tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(ROW)

    largest = None if box.largest is None else lift(box.largest)
    return Box(lift(box.center), lift(box.radius), box.ball and reshaped(box.ball, lift), largest, box.allowance)


def _with_row(weights: Weights) -> Weights:
    return {**weights, "weight": weights["weight"].unsqueeze(ROW)}


def matmul_interval(operation: ops.MatMul, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Bound y = x W."""
    return linear_interval(ops.Linear(), {"weight": weights["weight"].mT}, boxes, rounding)


def matmul_backward(operation: ops.MatMul, weights: Weights, step: Step) -> Backward:
    """Coefficients A on x W are A Wᵀ on x."""
    back = linear_backward(ops.Linear(), {"weight": weights["weight"].mT}, replace(step, owned=False))
    return back._replace(owned=False)


register(
    ops.Conv1d,
    conv1d_interval,
    "nn.Conv1d, F.conv1d (zero padding, any stride, dilation, groups)",
    conv1d_backward,
    separable=True,
)
register(ops.MatMul, matmul_interval, "x @ W, torch.matmul with a parameter or buffer", matmul_backward, separable=True)
