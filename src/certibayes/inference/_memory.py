"""How many examples a gradient may take at once."""

from __future__ import annotations

import math

from torch import Tensor

from certibayes.networks import Graph
from certibayes.support.memory import bytes_allowed

ON_CPU = 1_000
"""More do not run faster on a CPU, whose caches are small."""

COPIES = 32
"""Tensors of the shape of each activation that a robust gradient holds at once: three passes, and what their backward
passes need."""


def examples_at_once(graph: Graph, inputs: Tensor, chains: int) -> int:
    """Return how many of the inputs (N, ...) to take at a time.

    On a GPU every launch costs the same whatever its size, so as many as ``support.memory`` allows.
    """
    if not inputs.is_cuda:
        return ON_CPU
    numbers = math.prod(inputs.shape[1:]) + sum(math.prod(node.shape) for node in graph.nodes)
    each = chains * COPIES * numbers * inputs.element_size()
    return max(1, min(len(inputs), bytes_allowed(inputs.device) // each))
