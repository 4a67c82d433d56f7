"""How many points are bounded at once, and how much memory linear bounds take, where the caller does not say.

The rule is that of ``support.memory``. Bounds of a point do not depend on the other points of its batch, but for the
last bits: a product of other sizes may add its terms in another order. Every order is covered by outward rounding.
"""

from __future__ import annotations

import math

from certibayes.certification.network_bounds import MEMORY
from certibayes.prediction import Predictor
from certibayes.support.checks import require_count
from certibayes.support.memory import bytes_allowed, points_at_once

ACTIVATION_COPIES = 8
"""Tensors of the shape of the largest layer that interval propagation holds at once."""

LOGIT_COPIES = 24
"""Tensors of float64 for every network, point and class: bounds on logits, margins and values, and what rules make of
them."""


def batch_size_for(predictor: Predictor, batch_size: int | None) -> int:
    """Return how many points to bound at once: what was asked for, or what the device has room for.

    Raises:
        InvalidInput: it is no count.
    """
    if batch_size is not None:
        require_count(batch_size, "batch_size")
        return batch_size
    graph, on_gpu = predictor.graph, predictor.device.type == "cuda"
    number = predictor.dtype.itemsize
    layers = ACTIVATION_COPIES * max(math.prod(node.shape) for node in graph.nodes)
    activations = number * (layers + ACTIVATION_COPIES * math.prod(graph.input_shape))
    logits = 8 * LOGIT_COPIES * predictor.classes * predictor.size
    # A GPU holds the activations of all networks at once; a CPU goes through them one by one.
    return points_at_once(predictor.device, logits + activations * (predictor.size if on_gpu else 1))


def memory_for(predictor: Predictor, memory: int | None) -> int:
    """Return how many bytes linear bounds may take: what was asked for, or what the device has room for.

    Raises:
        InvalidInput: it is no count.
    """
    if memory is None:
        return bytes_allowed(predictor.device, on_cpu=MEMORY)
    require_count(memory, "memory")
    return memory
