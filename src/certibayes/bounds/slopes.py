"""Lower slopes without an ascent: zero and adaptive, whichever bounds more.

A ReLU on [l, u] with l < 0 < u lies above every line through 0 with a slope in [0, 1]. Slope 0 loses nothing where the
unit is off, slope 1 nothing where it is on; CROWN takes 1 where u > -l (Zhang et al., 2018). On networks that were
trained with interval bounds slope 0 mostly proves more, on all others the adaptive choice does, and neither always:
the larger of both bounds is taken, quantity by quantity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.bounds.linear import Boxes, LinearBounder
from certibayes.bounds.relaxation import Relaxation
from certibayes.networks import Graph
from certibayes.networks.operations import LeakyReLU, ReLU

WORDS = ("zero", "adaptive")
"""Slopes that need no ascent, as ``Relaxation`` takes them."""


def better_lower(bounder: LinearBounder, specification: Tensor, slopes: tuple[str, ...] = WORDS) -> Tensor:
    """Bound linear functions of the outputs from below, by the best of some slopes, (B, S), in float64."""
    lower = bounder.lower(specification, Relaxation(slopes[0]))
    for other in slopes[1:]:
        lower = torch.maximum(lower, bounder.lower(specification, Relaxation(other)))
    return lower


def adaptive_slopes(graph: Graph, boxes: Boxes) -> dict[str, Tensor]:
    """Return the adaptive slopes of every kinked activation, 0 or 1, (B, *shape), by node."""
    kinked = [node for node in graph.nodes if isinstance(node.operation, (ReLU, LeakyReLU))]
    # u > -l just where the center is positive.
    return {node.name: (boxes[node.inputs[0]].center > 0).to(boxes[node.inputs[0]].center) for node in kinked}
