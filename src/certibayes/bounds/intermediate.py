"""Intermediate bounds by CROWN instead of intervals (Zhang et al., 2018).

Intervals forget how the units of a layer depend on each other, which makes them wider with every layer. Here the inputs
of each activation are bounded by a backward pass as an output is, one layer after the other, with the boxes that are
known by then. The result is the better of both, unit by unit. The cost grows with the square of the depth and with the
width of every layer, where interval bounds cost two products per layer.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from certibayes.bounds.linear import Boxes, LinearBounder
from certibayes.bounds.registry import rules_for
from certibayes.bounds.rounding import IDEAL, Rounding
from certibayes.networks import Graph, Params
from certibayes.networks.graph import INPUT
from certibayes.networks.operations import LeakyReLU, MaxPool2d, ReLU, Reshape, Sigmoid, Tanh
from certibayes.regions import Box

NONLINEAR = (ReLU, LeakyReLU, Tanh, Sigmoid, MaxPool2d)

AT_ONCE = 64
"""Units of a layer that are bounded at once."""


def crown_boxes(
    graph: Graph, params: Params, boxes: Boxes, rounding: Rounding = IDEAL, at_once: int = AT_ONCE
) -> Boxes:
    """Return boxes of every node, with CROWN bounds on the inputs of activations.

    Args:
        graph: the network.
        params: parameters and buffers of one sample.
        boxes: interval bounds, from ``layer_boxes``.
        rounding: the same as theirs.
        at_once: units bounded at once, which sets the memory that is needed.
    """
    feeding = {name for node in graph.nodes if isinstance(node.operation, NONLINEAR) for name in node.inputs}
    exact = _first_layers(graph)
    tight: Boxes = {INPUT: boxes[INPUT]}
    for index, node in enumerate(graph.nodes):
        inputs = tuple(tight[name] for name in node.inputs)
        box = rules_for(node.operation).interval(node.operation, node.weights(params), inputs, rounding)
        tight[node.name] = box
        if node.name in feeding and node.name not in exact and not isinstance(node.operation, NONLINEAR):
            part = dataclasses.replace(graph, nodes=graph.nodes[: index + 1])
            tight[node.name] = _narrowed(part, params, tight, rounding, at_once)
    return tight


def _first_layers(graph: Graph) -> set[str]:
    """Return the layers whose only input is the network's, whose intervals nothing can improve."""
    reshaped = {INPUT}
    for node in graph.nodes:
        if isinstance(node.operation, Reshape) and node.inputs[0] in reshaped:
            reshaped.add(node.name)
    return {node.name for node in graph.nodes if len(node.inputs) == 1 and node.inputs[0] in reshaped}


def _narrowed(graph: Graph, params: Params, boxes: Boxes, rounding: Rounding, at_once: int) -> Box:
    """Bound every output of a graph by a backward pass, and intersect with the box that is known."""
    box = boxes[graph.nodes[-1].name]
    units = box.center[0].numel()
    identity = torch.eye(units, dtype=box.center.dtype, device=box.center.device)
    bounder, lows, highs = LinearBounder(graph, params, boxes, rounding), [], []
    for some in identity.split(at_once):
        both = torch.cat([some, -some]).view(-1, *graph.output_shape)
        lower, negative = bounder.lower(both.expand(len(box.center), *both.shape)).split(len(some), 1)
        lows.append(lower)
        highs.append(-negative)
    low, high = (end.flatten(1) for end in rounding.ends(box))
    return box_between_ends(
        torch.maximum(torch.cat(lows, 1), low).view(box.center.shape),
        torch.minimum(torch.cat(highs, 1), high).view(box.center.shape),
        box.center.dtype,
        rounding,
    )


def box_between_ends(low: Tensor, high: Tensor, dtype: torch.dtype, rounding: Rounding) -> Box:
    """Return a box in ``dtype`` that holds the ends, given in float64."""
    center = ((low + high) / 2).to(dtype)
    reach = torch.maximum(high - center.double(), center.double() - low).clamp(min=0)
    if not rounding.outward:
        return Box(center, reach.to(dtype))
    # One unit for the subtraction and one for the rounding to the network's precision.
    return Box(center, (reach * (1 + 2.0**-50)).to(dtype) * (1 + 4 * rounding.unit) + rounding.underflow)
