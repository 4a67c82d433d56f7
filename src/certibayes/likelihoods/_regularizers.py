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

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from certibayes.bounds import Box, Rounding, interval_bounds
from certibayes.errors import InvalidInput
from certibayes.networks import Graph, Node, Params
from certibayes.networks.operations import AFFINE, ReLU
from certibayes.support.fused import fused

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
    first, *layers = (entering[node.name] for node in _bounded_nodes(graph))
    return _penalty(first.radius.mean(), torch.stack([_means(layer) for layer in layers]), tightness, balance)


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
    first, *layers = (entering[node.name] for node in nodes)

    def penalty(width: Tensor, means: Tensor) -> Tensor:
        return factor * _penalty(width, means, tightness, balance)

    given = first.radius.mean(dtype=factor.dtype), torch.stack([_means(layer, factor.dtype) for layer in layers])
    at_width, at_means = torch.func.grad(penalty, argnums=(0, 1))(*given)
    slopes = [Box(torch.zeros_like(at_width), at_width / first.radius.numel())]
    for layer, slope in zip(layers, at_means, strict=True):
        width, center, *others = slope / layer.center.numel()
        slopes.append(Box(_slope(layer.center, layer.radius, center, *others[:4])[0], width))
    found: dict[str, Box] = {}
    for node, (at_center, at_radius, *_) in zip(nodes, slopes, strict=True):
        name = node.inputs[0]
        if name in found:
            # Several ReLUs may read the same box.
            at_center, at_radius = found[name].center + at_center, found[name].radius + at_radius
        found[name] = Box(at_center, at_radius)
    return found


@fused
def _slope(
    c: Any, r: Any, mean: Any, active: Any, inactive: Any, active_squares: Any, inactive_squares: Any
) -> tuple[Any, ...]:
    """Return the derivative with respect to each center c, given those with respect to the ``_means``."""
    return (mean + (c > r) * (active + 2.0 * active_squares * c) + (-c > r) * (2.0 * inactive_squares * c - inactive),)


def _means(bounds: Box, dtype: torch.dtype | None = None) -> Tensor:
    """Return all that the regularizers depend on, (8,): means over the units of a layer and the batch.

    They are those of r, of c, of c over active units and -c over inactive ones, of their squares, and the shares of
    both kinds of units.
    """
    center, radius = bounds.center, bounds.radius
    parts = center * (center > radius), -center * (-center > radius)
    values = [radius, center, *parts, *(part.square() for part in parts), *((part > 0).to(center) for part in parts)]
    return torch.stack([value.mean(dtype=dtype) for value in values])


def _penalty(width: Tensor, means: Tensor, tightness: float, balance: float) -> Tensor:
    """Return the penalty for the mean half-width of the inputs, 0-d, and the ``_means`` of m layers, (m, 8)."""
    total = torch.zeros_like(width)
    if tightness:
        ratios = width / means[:, 0].clamp(min=TINY)
        total = total + tightness * torch.relu(TOLERANCE - ratios).mean() / TOLERANCE
    if balance:
        total = total + balance * _imbalance(*means.unbind(1)[1:]).mean()
    return total


def _imbalance(
    mean: Tensor,
    active: Tensor,
    inactive: Tensor,
    active_squares: Tensor,
    inactive_squares: Tensor,
    actives: Tensor,
    inactives: Tensor,
) -> Tensor:
    """Return the sum in the definition of the balance, divided by τ, for each of m layers, (m,)."""
    # Of (c - mean)² over units of one kind.
    variances = (
        (active_squares - 2.0 * mean * active + mean.square() * actives).clamp(min=0.0),
        (inactive_squares + 2.0 * mean * inactive + mean.square() * inactives).clamp(min=0.0),
    )
    quotients = (_quotient(active, inactive), _quotient(*variances))
    total = sum(torch.relu(TOLERANCE - quotient) for quotient in quotients) / TOLERANCE
    return torch.where(actives + inactives > 0, total, torch.zeros_like(mean))


def _bounded_nodes(graph: Graph) -> list[Node]:
    """Return the first layer with weights, and the ReLUs after it.

    Not the network's own input: behind a normalization, which only changes the unit.
    """
    return [next(node for node in graph.nodes if isinstance(node.operation, AFFINE)), *_relu_nodes(graph)]


def _relu_nodes(graph: Graph) -> list[Node]:
    """ReLUs that follow some layer with weights."""
    layers = [i for i, node in enumerate(graph.nodes) if isinstance(node.operation, AFFINE)]
    return [node for i, node in enumerate(graph.nodes) if isinstance(node.operation, ReLU) and layers and i > layers[0]]


def _quotient(one: Tensor, other: Tensor) -> Tensor:
    return torch.minimum(one, other) / torch.maximum(one, other).clamp(min=TINY)
