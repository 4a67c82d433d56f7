"""Regularizers of bounds while the radius grows (Shi et al., 2021, "Fast certified robust training with short warmup").

Let r_0 be the mean half-width of the box that enters the first layer, and r_i that of the bounds on what the i-th of m
ReLU layers takes in. Bounds that widen from layer to layer are penalized by

    tightness = 1/m sum_i relu(τ - r_0 / r_i) / τ,        τ = 1/2.

A unit is active if its lower bound is positive and inactive if its upper bound is negative, and c is the center of its
bounds. Training with intervals likes inactive units, which let nothing through; an imbalance is penalized by

    balance = 1/m sum_i ( relu(τ - q(mean of c over active units, mean of -c over inactive ones))
                        + relu(τ - q(variance of c over active units, over inactive ones)) ) / τ,

with q(a, b) = min(a, b) / max(a, b); "mean" and "variance" here have the number of all units in the denominator. A
layer without any active or inactive unit has no balance, and counts as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from certibayes.bounds import Box, Rounding, interval_bounds
from certibayes.errors import InvalidInput
from certibayes.networks import Graph, Node, Params
from certibayes.networks.operations import AFFINE, ReLU

TOLERANCE = 0.5
"""τ: ratios at least this large cost nothing."""

TINY = 1e-12
"""In the place of widths and means below it, whose quotients mean nothing."""


def require_relu_layers(graph: Graph) -> None:
    """Raise unless the regularizers have something to act on."""
    if not _relu_nodes(graph):
        raise InvalidInput(
            "tightness and balance are about the bounds of ReLU layers, and the network has none between its layers. "
            "Leave them out: Curriculum(tightness=0, balance=0)."
        )


def bound_penalty(
    graph: Graph, params: Params, box: Box, rounding: Rounding, tightness: float, balance: float
) -> Tensor:
    """Return ``tightness`` and ``balance`` times their regularizers, summed, as a 0-d tensor.

    Args:
        graph: the network.
        params: parameters and buffers of one weight sample.
        box: inputs, (B, *input_shape).
        rounding: ideal, or smoothed.
        tightness: weight of the first.
        balance: weight of the second.
    """
    entering: dict[str, Box] = {}

    def observe(node: Node, boxes: tuple[Box, ...], output: Box) -> Box:
        entering[node.name] = boxes[0]
        return output

    interval_bounds(graph, params, box, rounding, observe)
    return _penalty([entering[node.name] for node in _bounded_nodes(graph)], tightness, balance)


def penalty_slopes(
    graph: Graph, entering: Mapping[str, Box], tightness: float, balance: float, factor: Tensor
) -> dict[str, Box]:
    """Return the derivatives of ``factor`` times ``bound_penalty`` with respect to boxes, by the node that made them.

    Args:
        graph: the network.
        entering: the box that enters each node, by name; of several, the first.
        tightness: see ``bound_penalty``.
        balance: likewise.
        factor: 0-d.
    """
    nodes = _bounded_nodes(graph)

    def penalty(boxes: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        return factor * _penalty([Box(*box) for box in boxes], tightness, balance)

    boxes = [(entering[node.name].center, entering[node.name].radius) for node in nodes]
    found: dict[str, Box] = {}
    for node, (center, radius) in zip(nodes, torch.func.grad(penalty)(boxes), strict=True):
        name = node.inputs[0]
        if name in found:
            # Several ReLUs may read the same box.
            center, radius = found[name].center + center, found[name].radius + radius
        found[name] = Box(center, radius)
    return found


def _penalty(boxes: Sequence[Box], tightness: float, balance: float) -> Tensor:
    """Return the penalty on the box that enters the first layer with weights and those that enter the ReLUs."""
    first, *layers = boxes
    terms = []
    for bounds in layers:
        if tightness:
            terms.append(tightness * _tightness(first, bounds))
        if balance:
            terms.append(balance * _balance(bounds))
    return torch.stack(terms).sum() / len(layers)


def _bounded_nodes(graph: Graph) -> list[Node]:
    """Return the first layer with weights, and the ReLUs after it.

    Not the network's own input: behind a normalization, which only changes the unit.
    """
    return [next(node for node in graph.nodes if isinstance(node.operation, AFFINE)), *_relu_nodes(graph)]


def _relu_nodes(graph: Graph) -> list[Node]:
    """ReLUs that follow some layer with weights."""
    layers = [i for i, node in enumerate(graph.nodes) if isinstance(node.operation, AFFINE)]
    return [node for i, node in enumerate(graph.nodes) if isinstance(node.operation, ReLU) and layers and i > layers[0]]


def _tightness(first: Box, bounds: Box) -> Tensor:
    ratio = first.radius.mean() / bounds.radius.mean().clamp(min=TINY)
    return torch.relu(TOLERANCE - ratio) / TOLERANCE


def _balance(bounds: Box) -> Tensor:
    center = bounds.center
    active, inactive = center > bounds.radius, center < -bounds.radius
    squares = (center - center.mean()).square()
    shares = [
        ((center * active).mean(), (-center * inactive).mean()),
        ((squares * active).mean(), (squares * inactive).mean()),
    ]
    total = torch.stack([torch.relu(TOLERANCE - _quotient(one, other)) for one, other in shares]).sum() / TOLERANCE
    return torch.where(active.any() | inactive.any(), total, torch.zeros_like(total))


def _quotient(one: Tensor, other: Tensor) -> Tensor:
    return torch.minimum(one, other) / torch.maximum(one, other).clamp(min=TINY)
