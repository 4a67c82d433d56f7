"""Optimised slopes (alpha-CROWN; Xu et al., 2021): the lower slopes of unstable activations that bound best.

Any slopes in [0, 1] give a sound bound, so they may be found in any arithmetic by gradient ascent; the bound that is
returned is computed once more with rounding, and is never worse than the one at slopes 0, where the search begins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.bounds.linear import Boxes, linear_lower
from certibayes.bounds.rounding import IDEAL, Rounding
from certibayes.networks import Graph, Params
from certibayes.networks.operations import LeakyReLU, ReLU

STEPS = 10
RATE = 0.4
"""Of Adam; slopes live in [0, 1]."""


def optimised_lower(
    graph: Graph,
    params: Params,
    boxes: Boxes,
    specification: Tensor,
    rounding: Rounding = IDEAL,
    steps: int = STEPS,
) -> Tensor:
    """Bound linear functions of the outputs from below, with the best slopes that ``steps`` of ascent find.

    Args:
        graph: the network.
        params: parameters and buffers of one sample.
        boxes: from ``layer_boxes``, with the same rounding.
        specification: coefficients on the outputs, (B, S, *output_shape); every quantity has slopes of its own.
        rounding: of the program that runs, or ``IDEAL``.
        steps: of gradient ascent.

    Returns:
        Lower bounds (B, S) in float64.
    """
    plain = linear_lower(graph, params, boxes, specification, rounding)
    shape = specification.shape[:2]
    slopes = {
        node.name: specification.new_zeros(*shape, *node.shape)
        for node in graph.nodes
        if isinstance(node.operation, (ReLU, LeakyReLU))
    }
    if not slopes or steps == 0:
        return plain
    first = {name: torch.zeros_like(s) for name, s in slopes.items()}
    second = {name: torch.zeros_like(s) for name, s in slopes.items()}

    def total(slopes: dict[str, Tensor]) -> Tensor:
        return linear_lower(graph, params, boxes, specification, IDEAL, slopes, at_input_only=True).sum()

    for step in range(1, steps + 1):
        gradient = torch.func.grad(total)(slopes)
        rate = RATE * (1 - (step - 1) / steps)
        for name, g in gradient.items():
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.99 * second[name] + 0.01 * g * g
            move = first[name] / (1 - 0.9**step) / ((second[name] / (1 - 0.99**step)).sqrt() + 1e-12)
            slopes[name] = (slopes[name] + rate * move).clamp(0.0, 1.0)
    return torch.maximum(plain, linear_lower(graph, params, boxes, specification, rounding, slopes))
