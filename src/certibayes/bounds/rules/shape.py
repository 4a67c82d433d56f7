"""Reshaping moves numbers and changes none."""

from __future__ import annotations

from certibayes.bounds.box import Box
from certibayes.bounds.registry import register
from certibayes.bounds.rounding import Rounding
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights


def reshape_interval(operation: ops.Reshape, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
    """Reshape centre and radius alike."""
    box = boxes[0]
    return Box(operation.evaluate(weights, box.centre), operation.evaluate(weights, box.radius))


register(ops.Reshape, reshape_interval, "nn.Flatten, nn.Unflatten, flatten, view, reshape, squeeze, unsqueeze")
