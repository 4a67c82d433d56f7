"""Whether CROWN's intermediate bounds pay for a predictor, or intervals do as well.

Intervals forget how the units of a layer depend on each other. Networks that were trained with intervals hardly notice;
in others they grow from layer to layer until most activations may have either sign, and then no linear bound proves
anything. That shows in one interval pass: the first activations, whose intervals are exact, are mostly stable, and
those of some layer after them are mostly not. One network tells about all, since samples are alike.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from certibayes.bounds import IDEAL, layer_boxes
from certibayes.bounds.intermediate import KINKED, first_layers
from certibayes.bounds.linear import Boxes
from certibayes.bounds.registry import rules_for
from certibayes.bounds.windows import receptive_field
from certibayes.networks import Graph, Params, direct_sums
from certibayes.prediction import Predictor
from certibayes.regions import InputRegion
from certibayes.support.stacks import pick

PROBED = 16
"""Points that are looked at."""

MOSTLY = 0.5
"""Fraction of unstable activations in a layer above which its intervals have exploded."""

WORK = 2**28
"""Coefficients of a network and point beyond which it takes too long to be done unasked: some seconds on a CPU."""


@torch.no_grad()
def worth_tightening(predictor: Predictor, region: InputRegion) -> bool:
    """Tell whether CROWN's intermediates are worth their time on a predictor's networks, around some points."""
    graph, params = predictor.graph, pick(predictor.samples, 0)
    if len(region) == 0 or any(rules_for(node.operation).linear is None for node in graph.nodes):
        return False
    kinked = [node for node in graph.nodes if isinstance(node.operation, KINKED)]
    exact = first_layers(graph)
    if all(node.inputs[0] in exact for node in kinked):
        return False
    with direct_sums():
        box = region.take(slice(0, PROBED)).to(predictor.dtype).ideal_box()
        boxes = layer_boxes(graph, params, box, IDEAL)
    unstable = {node.inputs[0]: _unstable(boxes, node.inputs[0]) for node in kinked}
    fractions = {name: count / boxes[name].center[0].numel() for name, count in unstable.items()}
    exploded = max(fraction for name, fraction in fractions.items() if name not in exact) > MOSTLY
    at_first = max((fraction for name, fraction in fractions.items() if name in exact), default=0.0)
    if not exploded or at_first > MOSTLY:
        return False
    return sum(unstable[name] * _values(graph, params, boxes, name) for name in unstable if name not in exact) < WORK


def _unstable(boxes: Boxes, name: str) -> float:
    """Return how many units of a layer may have either sign, on average over points."""
    box = boxes[name]
    return float((box.center.abs() < box.radius).flatten(1).sum(1).double().mean())


def _values(graph: Graph, params: Params, boxes: Boxes, name: str) -> int:
    """Return how many coefficients a backward pass from one unit of a layer goes through."""
    index = [node.name for node in graph.nodes].index(name)
    part = replace(graph, nodes=graph.nodes[: index + 1])
    field = receptive_field(part, params, boxes)
    nodes, inputs = (part.nodes, part.input_shape) if field is None else (field.graph.nodes, field.graph.input_shape)
    return sum(torch.Size(shape).numel() for shape in (inputs, *(node.shape for node in nodes)))
