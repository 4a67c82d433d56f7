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
    first, layers = _boxes(graph, params, box, rounding)
    terms = []
    for bounds in layers:
        if tightness:
            terms.append(tightness * _tightness(first, bounds))
        if balance:
            terms.append(balance * _balance(bounds))
    return torch.stack(terms).sum() / len(layers)


def _relu_nodes(graph: Graph) -> list[Node]:
    """ReLUs that follow some layer with weights."""
    layers = [i for i, node in enumerate(graph.nodes) if isinstance(node.operation, AFFINE)]
    return [node for i, node in enumerate(graph.nodes) if isinstance(node.operation, ReLU) and layers and i > layers[0]]


def _boxes(graph: Graph, params: Params, box: Box, rounding: Rounding) -> tuple[Box, list[Box]]:
    """Return the box that enters the first layer with weights, and the boxes that enter the ReLUs after it."""
    entering: list[Box] = []
    relus = {node.name for node in _relu_nodes(graph)}
    before: list[Box] = []

    def observe(node: Node, boxes: tuple[Box, ...], output: Box) -> Box:
        if not entering and isinstance(node.operation, AFFINE):
            # Not the network's own input: behind a normalization, which only changes the unit.
            entering.append(boxes[0])
        if node.name in relus:
            before.append(boxes[0])
        return output

    interval_bounds(graph, params, box, rounding, observe)
    return entering[0], before


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
