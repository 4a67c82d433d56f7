"""Optimised relaxations: the slopes, planes and multipliers that bound best.

Any lower slopes of unstable activations in [0, 1] give a sound bound (alpha-CROWN; Xu et al., 2021), and so do any
shares of planes above ReLU units (``bounds.planes``) and any multipliers >= 0 of signs that are fixed (beta-CROWN; Wang
et al., 2021). So they may be found in any arithmetic by gradient ascent; the bound that is returned is computed once
more with rounding, and is never worse than the one at slopes 0, where the search begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds.ascent import Freedom, Values, climb
from certibayes.bounds.linear import Boxes, linear_lower, output_bounds
from certibayes.bounds.planes import Planes, chord_planes, planed_layers
from certibayes.bounds.rounding import IDEAL, Rounding
from certibayes.networks import Graph, Params
from certibayes.networks.operations import LeakyReLU, ReLU

STEPS = 10
"""Of ascent for slopes alone."""

HULL_STEPS = 40
"""Of ascent for slopes and planes together."""

SLOPE_RATE, SHARE_RATE, MULTIPLIER_RATE = 0.4, 0.2, 0.2

MOST_PLANES = 128
"""Units of a layer that have planes, for each quantity; others keep their chords."""


class Relaxation(NamedTuple):
    """What linear bounds are free to choose, by node.

    Attributes:
        slopes: lower slopes of unstable activations, in [0, 1], (B, S, *shape).
        planes: above ReLU units.
        multipliers: of signs that are fixed, >= 0, (B, S, *shape).
    """

    slopes: Values
    planes: dict[str, Planes]
    multipliers: Values


def begin(
    graph: Graph, params: Params, boxes: Boxes, specification: Tensor, hull: bool, signs: Mapping[str, Tensor]
) -> Relaxation:
    """Return slopes 0, planes that are chords if ``hull`` is wanted, and multipliers 0 of the ``signs`` that are fixed.

    Args:
        graph: the network.
        params: parameters and buffers of one sample.
        boxes: from ``layer_boxes``.
        specification: coefficients on the outputs, (B, S, *output_shape).
        hull: whether to have planes at all.
        signs: by ReLU node: 1 or -1 where the sign of what it takes in is known, else 0; (B, S, *shape).
    """
    kinked = [node for node in graph.nodes if isinstance(node.operation, (ReLU, LeakyReLU))]
    slopes = {node.name: specification.new_zeros(*specification.shape[:2], *node.shape) for node in kinked}
    planes: dict[str, Planes] = {}
    layers = planed_layers(graph) if hull else {}
    if layers:
        on: Values = {}
        linear_lower(graph, params, boxes, specification, observe=on.__setitem__)
        for name, layer in layers.items():
            width = layer.weights(params)["weight"].shape[1]
            planes[name] = chord_planes(on[name], boxes[layer.name], width, MOST_PLANES)
    return Relaxation(slopes, planes, {name: torch.zeros_like(sign) for name, sign in signs.items()})


def ascend(
    graph: Graph,
    params: Params,
    boxes: Boxes,
    specification: Tensor,
    start: Relaxation,
    signs: Mapping[str, Tensor],
    steps: int,
) -> Relaxation:
    """Raise the bounds by ``steps`` of gradient ascent, each quantity with freedoms of its own."""

    def relaxation(slopes: Values, shares: Values, multipliers: Values) -> Relaxation:
        planes = {name: start.planes[name]._replace(shares=share) for name, share in shares.items()}
        return Relaxation(slopes, planes, multipliers)

    def total(groups: list[Values]) -> Tensor:
        # Not the better of this bound and the folded one, which has no slope to climb.
        return bound_with(relaxation(*groups), graph, params, boxes, specification, IDEAL, signs, True).sum()

    shares = {name: planes.shares for name, planes in start.planes.items()}
    freedoms = [
        Freedom(start.slopes, SLOPE_RATE),
        Freedom(shares, SHARE_RATE),
        Freedom(start.multipliers, MULTIPLIER_RATE, top=None),
    ]
    return relaxation(*climb(total, freedoms, steps))


def bound_with(
    chosen: Relaxation,
    graph: Graph,
    params: Params,
    boxes: Boxes,
    specification: Tensor,
    rounding: Rounding,
    signs: Mapping[str, Tensor],
    at_input_only: bool = False,
    observe: Callable[[str, Tensor], None] | None = None,
) -> Tensor:
    """Return the linear bound (B, S) of a relaxation; see ``linear_lower``."""
    signed = {name: chosen.multipliers[name] * sign for name, sign in signs.items()}
    return linear_lower(
        graph, params, boxes, specification, rounding, chosen.slopes, at_input_only=at_input_only,
        multipliers=signed, planes=chosen.planes, observe=observe,
    )  # fmt: skip


def optimised_lower(
    graph: Graph,
    params: Params,
    boxes: Boxes,
    specification: Tensor,
    rounding: Rounding = IDEAL,
    steps: int | None = None,
    hull: bool = False,
) -> Tensor:
    """Bound linear functions of the outputs from below, with the best relaxation that ``steps`` of ascent find.

    Args:
        graph: the network.
        params: parameters and buffers of one sample.
        boxes: from ``layer_boxes``, with the same rounding.
        specification: coefficients on the outputs, (B, S, *output_shape).
        rounding: of the program that runs, or ``IDEAL``.
        steps: of gradient ascent; ``STEPS``, or ``HULL_STEPS`` with planes.
        hull: whether to have planes above ReLU units; this cannot be mapped over networks.

    Returns:
        Lower bounds (B, S) in float64.
    """
    plain = linear_lower(graph, params, boxes, specification, rounding)
    steps = (HULL_STEPS if hull else STEPS) if steps is None else steps
    start = begin(graph, params, boxes, specification, hull, {})
    if not start.slopes or steps == 0:
        return plain
    best = ascend(graph, params, boxes, specification, start, {}, steps)
    return torch.maximum(plain, bound_with(best, graph, params, boxes, specification, rounding, {}))


def optimised_bounds(
    graph: Graph, params: Params, boxes: Boxes, rounding: Rounding = IDEAL, hull: bool = False
) -> tuple[Tensor, Tensor]:
    """Bound every output from both sides, (B, C) each, in float64; never worse than ``linear_bounds``.

    Args:
        graph: the network.
        params: parameters and buffers of one sample.
        boxes: from ``layer_boxes``, with the same rounding.
        rounding: of the program that runs, or ``IDEAL``.
        hull: whether to have planes above ReLU units as well; this cannot be mapped over networks.
    """

    def lower_of(both: Tensor) -> Tensor:
        lower = optimised_lower(graph, params, boxes, both, rounding)
        if not hull:
            return lower
        # An ascent over planes may end below one over slopes alone, which costs little beside it.
        return torch.maximum(lower, optimised_lower(graph, params, boxes, both, rounding, hull=True))

    return output_bounds(graph, boxes, lower_of, rounding)
