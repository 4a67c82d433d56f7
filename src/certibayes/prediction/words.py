"""Networks and domains in a few words, for what predictors and posteriors say of themselves."""

from __future__ import annotations

import math

from torch import Tensor

from certibayes.networks import Graph
from certibayes.regions import Domain

SHOWN = 8
"""Layers that are named; of a longer network, the first and the last few."""


def network_in_words(graph: Graph) -> str:
    """Return input shape, layers and number of outputs, such as ``784 -> Linear, ReLU, Linear -> 10``."""
    layers = [type(node.operation).__name__ for node in graph.nodes]
    if len(layers) > SHOWN:
        half = SHOWN // 2
        layers = [*layers[:half], f"{len(layers) - 2 * half} more", *layers[-half:]]
    inputs = "x".join(map(str, graph.input_shape)) or "1"
    return f"{inputs} -> {', '.join(layers)} -> {math.prod(graph.output_shape)}"


def domain_in_words(domain: Domain) -> str:
    """Return the range of inputs, such as ``[0, 1]``."""
    if domain is None:
        return "no limit known"
    low, high = domain
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return "a range for each feature"
    return f"[{low:g}, {high:g}]"


def in_lines(title: str, lines: dict[str, str]) -> str:
    """Return a title and, indented below it, one line for each entry."""
    return "\n".join([title, *(f"  {name}: {text}" for name, text in lines.items())])
