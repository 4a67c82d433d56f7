"""Boxes of all layers: intervals, or what CROWN makes of them, and what they say about overflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Box, Rounding, by_name, layer_boxes, within_range
from certibayes.bounds.intermediate import STEPS, crown_boxes, crown_boxes_of_all, narrowed_layers
from certibayes.bounds.linear import Boxes
from certibayes.bounds.registry import rules_for
from certibayes.bounds.rounding import radius_within_range
from certibayes.bounds.stack import Stack
from certibayes.certification._narrowed import Share, kept
from certibayes.networks import Graph, Node, Params
from certibayes.prediction import Predictor


class Ranges(NamedTuple):
    """What the boxes of all layers seen so far say about a batch of points.

    Attributes:
        known: where all of them are far from overflow, (B,); NaN is not. Overflow can hide behind a bounded activation.
        inverted: whether any radius is negative, ().
    """

    known: Tensor
    inverted: Tensor

    @staticmethod
    def start(box: Box) -> Ranges:
        """Return what the box of the inputs says."""
        return Ranges(*within_range(box))

    def seen(self, node: Node, inputs: tuple[Box, ...], output: Box, rounding: Rounding) -> Ranges:
        """Record the box of a layer, made of those of its inputs."""
        rules = rules_for(node.operation)
        if rules.keeps_range:
            return self
        if rules.radius_tells and inputs[0].ball is None and radius_within_range(output, rounding):
            return self
        inside, inverted = within_range(output)
        return Ranges(self.known & inside, self.inverted | inverted)


def intermediate_boxes(
    predictor: Predictor,
    params: Params,
    box: Box,
    rounding: str,
    intermediates: str,
    share: Share | None = None,
    network: int | None = None,
) -> tuple[Boxes, Ranges]:
    """Return the boxes of every layer of one network, and what they say about overflow.

    Args:
        predictor: N networks.
        params: of one of them.
        box: inputs, (B, ...).
        rounding: see ``margin_bounds``.
        intermediates: likewise.
        share: what is kept of the layers of these points.
        network: which network it is, where anything is shared.
    """
    mode, narrowed = by_name(rounding, predictor.dtype), None
    if intermediates != "ibp":
        numbers = () if network is None else (network,)
        narrowed = narrowed_boxes(predictor.graph, Stack(params), box, mode, intermediates, share, numbers)
    return boxes_of_layers(predictor.graph, params, box, mode, Ranges.start(box), narrowed)


def boxes_of_layers(
    graph: Graph, params: Params, box: Box, rounding: Rounding, start: Ranges, narrowed: Boxes | None
) -> tuple[Boxes, Ranges]:
    """Return the boxes of every layer of one network, and what they say about overflow.

    Args:
        graph: the network.
        params: parameters and buffers of one sample.
        box: inputs, (B, ...).
        rounding: of the program that runs, or ideal.
        start: what the box of the inputs says.
        narrowed: boxes that CROWN has narrowed, from which the others follow; None for intervals.
    """
    boxes, ranges = layer_boxes(graph, params, box, rounding), start
    for node in graph.nodes:
        ranges = ranges.seen(node, tuple(boxes[name] for name in node.inputs), boxes[node.name], rounding)
    return boxes if narrowed is None else crown_boxes(graph, params, boxes, rounding, known=narrowed), ranges


def narrowed_boxes(
    graph: Graph,
    stack: Stack,
    box: Box,
    rounding: Rounding,
    intermediates: str,
    share: Share | None = None,
    networks: Sequence[int] = (),
) -> Boxes:
    """Return the layers that CROWN narrows, (N B, ...), as they are kept, or else find and keep them.

    Args:
        graph: the network.
        stack: N samples of its parameters.
        box: inputs, (B, ...).
        rounding: of the program that runs, or ideal.
        intermediates: ``"crown"`` or ``"alpha-crown"``.
        share: what is kept of the layers of these points.
        networks: the numbers of the N networks, where anything is shared.
    """
    shares = [] if share is None else [share.of_network(network) for network in networks]
    known = kept(shares, intermediates)
    if known is not None:
        return known
    steps = 0
    if intermediates == "alpha-crown":
        known, steps = kept(shares, "crown"), STEPS
    boxes = crown_boxes_of_all(graph, stack, box, rounding, known=known, steps=steps)
    found = {name: boxes[name] for name in narrowed_layers(graph)}
    every = torch.arange(len(box.center), device=box.center.device)
    for index, one in enumerate(shares):
        own = found if stack.count == 1 else {name: box.take(every + index * len(every)) for name, box in found.items()}
        one.keep(graph, intermediates, own)
    return found
