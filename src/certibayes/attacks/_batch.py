"""How many inputs are attacked at once, where the caller does not say; the rule is that of ``support.memory``."""

from __future__ import annotations

import math
from typing import Any

import torch

from certibayes.support.memory import POINTS_ON_CPU, points_at_once

COPIES = 4
"""Tensors of the shape of each activation that a gradient holds at once: forward, backward, and their products."""

LOGIT_COPIES = 12
"""Tensors of float64 for every network, input and class: softmax, mean, and their derivatives."""


def batch_size_for(model: Any, device: torch.device) -> int:
    """Return how many inputs to attack at once.

    Of a predictor it is known how large its activations are. Of other modules it is not, and they are given as many
    inputs on every device.
    """
    graph, networks = getattr(model, "graph", None), getattr(model, "size", None)
    if graph is None or not isinstance(networks, int):
        return POINTS_ON_CPU
    numbers = COPIES * sum(math.prod(shape) for shape in (graph.input_shape, *(node.shape for node in graph.nodes)))
    # A gradient holds all networks at once, on a CPU as well.
    return points_at_once(device, networks * (8 * numbers + 8 * LOGIT_COPIES * graph.classes))
