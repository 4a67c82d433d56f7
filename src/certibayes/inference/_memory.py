"""How many examples a gradient may take at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from certibayes.networks import Graph

ON_CPU = 1_000
"""More do not run faster on a CPU, whose caches are small."""

COPIES = 32
"""Tensors of the shape of each activation that a robust gradient holds at once: three passes, and what their backward
passes need."""


def examples_at_once(graph: Graph, inputs: Tensor, chains: int) -> int:
    """Return how many of the inputs (N, ...) to take at a time.

    On a GPU every launch costs the same whatever its size, so as many as fit into a quarter of its memory. All of its
    memory counts, not what is free, so that the same machine always gives the same sums.
    """
    if not inputs.is_cuda:
        return ON_CPU
    total = torch.cuda.get_device_properties(inputs.device).total_memory
    numbers = math.prod(inputs.shape[1:]) + sum(math.prod(node.shape) for node in graph.nodes)
    return max(1, min(len(inputs), total // 4 // (chains * COPIES * numbers * inputs.element_size())))
