"""Optimized relaxations: the slopes, cuts and multipliers that bound best.

Any ``Relaxation`` gives a sound bound, so it may be found in any arithmetic by gradient ascent (alpha-CROWN; Xu et al.,
2021; beta-CROWN; Wang et al., 2021); the bound that is returned is computed once more with rounding, and is never worse
than those at slopes 0 and at adaptive ones. The ascent begins at the better of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from certibayes.bounds.ascent import Values, Variables, climb
from certibayes.bounds.cuts import Cuts, chord_cuts, cut_layers
from certibayes.bounds.linear import LinearBounder, output_bounds
from certibayes.bounds.relaxation import Relaxation
from certibayes.bounds.rounding import IDEAL
from certibayes.bounds.slopes import WORDS, better_start
from certibayes.networks.operations import LeakyReLU, ReLU

STEPS = 10
"""Of ascent for slopes alone."""

HULL_STEPS = 40
"""Of joint ascent for slopes and cuts."""

SLOPE_RATE, CUT_RATE, MULTIPLIER_RATE = 0.4, 0.2, 0.2

MOST_CUTS = 128
"""Units of a layer that have cuts, for each quantity; others keep their chords."""


def start_relaxation(
    bounder: LinearBounder, specification: Tensor, hull: bool, signs: Mapping[str, Tensor]
) -> Relaxation:
    """Return slopes 0, cuts that are chords if ``hull`` is wanted, and multipliers 0 of the ``signs`` that are fixed.

    Args:
        bounder: of the network.
        specification: coefficients on the outputs, (B, S, *output_shape).
        hull: whether to have cuts at all.
        signs: of the inputs of ReLU nodes, by node: 1 or -1 where the sign is fixed, else 0; (B, S, *shape).
    """
    graph = bounder.graph
    kinked = [node for node in graph.nodes if isinstance(node.operation, (ReLU, LeakyReLU))]
    slopes = {node.name: specification.new_zeros(*specification.shape[:2], *node.shape) for node in kinked}
    cuts: dict[str, Cuts] = {}
    layers = cut_layers(graph) if hull else {}
    if layers:
        _, on, _ = replace(bounder, rounding=IDEAL).lower_with_coefficients(specification)
        for name, layer in layers.items():
            inputs = layer.weights(bounder.params)["weight"].shape[1]
            cuts[name] = chord_cuts(on[name], bounder.boxes[layer.name], inputs, MOST_CUTS)
    return Relaxation(slopes, cuts, {name: torch.zeros_like(sign) for name, sign in signs.items()}, signs)


def ascend(
    bounder: LinearBounder, specification: Tensor, start: Relaxation, steps: int, rate: float = 1.0
) -> Relaxation:
    """Raise the bounds by gradient ascent in ideal arithmetic, each quantity with a relaxation of its own.

    Args:
        bounder: of the network, in any rounding.
        specification: coefficients on the outputs, (B, S, *output_shape).
        start: where to begin; slopes that are given by a word stay as they are.
        steps: of ascent.
        rate: how fast variables move, as a fraction of the usual; less where the start is nearly right.
    """
    ideal = replace(bounder, rounding=IDEAL, in_place=False)
    by_node = not isinstance(start.slopes, str)

    def relaxation(slopes: Values, coefficients: Values, multipliers: Values) -> Relaxation:
        cuts = {name: start.cuts[name]._replace(coefficients=values) for name, values in coefficients.items()}
        return Relaxation(slopes if by_node else start.slopes, cuts, multipliers, start.signs)

    def total(groups: list[Values]) -> Tensor:
        return ideal.at_input(specification, relaxation(*groups)).sum()

    slopes = {} if isinstance(start.slopes, str) else dict(start.slopes)
    coefficients = {name: cuts.coefficients for name, cuts in start.cuts.items()}
    variables = [
        Variables(slopes, rate * SLOPE_RATE),
        Variables(coefficients, rate * CUT_RATE),
        Variables(dict(start.multipliers), rate * MULTIPLIER_RATE, top=None),
    ]
    return relaxation(*climb(total, variables, steps))


def optimized_lower(
    bounder: LinearBounder, specification: Tensor, steps: int | None = None, hull: bool = False
) -> Tensor:
    """Bound linear functions of the outputs from below, with the best relaxation that ``steps`` of ascent find.

    Args:
        bounder: of the network.
        specification: coefficients on the outputs, (B, S, *output_shape).
        steps: of gradient ascent; ``STEPS``, or ``HULL_STEPS`` with cuts.
        hull: whether to have cuts above ReLU units; this cannot be mapped over networks.

    Returns:
        Lower bounds (B, S) in float64.
    """
    zero, adaptive = (bounder.lower(specification, Relaxation(slopes)) for slopes in WORDS)
    plain = torch.maximum(zero, adaptive)
    steps = (HULL_STEPS if hull else STEPS) if steps is None else steps
    start = start_relaxation(bounder, specification, hull, {})
    if not start.slopes or steps == 0:
        return plain
    start = replace(start, slopes=better_start(bounder, zero, adaptive))
    best = ascend(bounder, specification, start, steps)
    return torch.maximum(plain, bounder.lower(specification, best))


def optimized_bounds(bounder: LinearBounder, hull: bool = False) -> tuple[Tensor, Tensor]:
    """Bound every output from both sides, (B, C) each, in float64; never worse than ``linear_bounds``.

    Args:
        bounder: of the network.
        hull: whether to have cuts above ReLU units as well; this cannot be mapped over networks.
    """

    def lower_of(both: Tensor) -> Tensor:
        lower = optimized_lower(bounder, both)
        if not hull:
            return lower
        # An ascent over cuts may end below one over slopes alone, which costs little beside it.
        return torch.maximum(lower, optimized_lower(bounder, both, hull=True))

    return output_bounds(bounder.graph, bounder.boxes, lower_of, bounder.rounding)
