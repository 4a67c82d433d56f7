"""Interval-aware initialization: weights so small that interval bounds neither explode nor shrink at the start.

A layer maps half-widths r to |W| r. With n inputs and weights N(0, s²) the mean of |w| is s sqrt(2/π), and what ReLU
lets through of a box around 0 is half of it, so that

    s = sqrt(2 π) / n

keeps half-widths as they are (Shi et al., 2021, "Fast certified robust training with short warmup"). Initializations
for clean training are of the order 1/sqrt(n), with which boxes grow by a factor sqrt(n) in every layer.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from certibayes.networks.graph import Graph, Node
from certibayes.networks.operations import Add, BatchNorm, Conv2d, LeakyReLU, Linear, ReLU, Reshape
from certibayes.networks.trace import trace

_PASSING = (ReLU, LeakyReLU, BatchNorm, Reshape)
"""Operations through which a sum reaches the next layer."""


Net = TypeVar("Net", bound=nn.Module)


def init_interval_aware(net: Net, generator: torch.Generator | None = None, example: Tensor | None = None) -> Net:
    """Draw the weights of all linear and convolutional layers but the last anew, in place.

    Weights become N(0, 2 π / fan_in²); those of a layer that takes in a residual sum half of that in standard
    deviation, since the sum is twice as wide. Biases and the last layer stay as they are.

    Args:
        net: a module that ``trace`` can read.
        generator: of the random numbers, on the CPU; torch's global one by default.
        example: a batch of inputs, where the module does not say their shape.

    Returns:
        The module itself.
    """
    graph = trace(net, example).graph
    layers = [node for node in graph.nodes if isinstance(node.operation, (Linear, Conv2d))]
    parameters = dict(net.named_parameters())
    for node in layers[:-1]:
        weight = parameters.get(node.roles["weight"])
        # A constant of the module is no weight to be drawn.
        if weight is None:
            continue
        std = math.sqrt(2.0 * math.pi) / weight[0].numel() / (2.0 if _takes_sum(graph, node) else 1.0)
        with torch.no_grad():
            drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.copy_(std * drawn)
    return net


def _takes_sum(graph: Graph, node: Node) -> bool:
    """Tell whether a layer's input is a sum of two branches, perhaps through an activation or a normalization."""
    producers = {each.name: each for each in graph.nodes}
    source = producers.get(node.inputs[0])
    while source is not None and isinstance(source.operation, _PASSING):
        source = producers.get(source.inputs[0])
    return source is not None and isinstance(source.operation, Add)
