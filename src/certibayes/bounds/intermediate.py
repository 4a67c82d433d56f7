"""Intermediate bounds by CROWN instead of intervals (Zhang et al., 2018).

Intervals forget how the units of a layer depend on each other, which makes them wider with every layer. Here the inputs
of each activation are bounded by a backward pass as an output is, one layer after the other, with the boxes that are
known by then. The result is the better of both, unit by unit.

Only units that may have either sign are worth it: on the others ReLU is linear. So intervals come first, then adaptive
slopes for the units that these leave unstable, then slopes 0 for those that are unstable still, and then, if that is
asked for, slopes that are optimized for every unit (alpha-CROWN; Xu et al., 2021). Units of a convolution are bounded
over their receptive fields (``bounds.windows``), those of other layers over the whole network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds.linear import Boxes, LinearBounder
from certibayes.bounds.optimize import ascend
from certibayes.bounds.registry import rules_for
from certibayes.bounds.relaxation import Relaxation
from certibayes.bounds.rounding import IDEAL, Rounding
from certibayes.bounds.slopes import adaptive_slopes
from certibayes.bounds.stack import Stack
from certibayes.bounds.windows import ReceptiveField, receptive_field
from certibayes.networks import Graph, Node, Params
from certibayes.networks.graph import INPUT
from certibayes.networks.operations import (
    ELU,
    GELU,
    BatchNorm,
    Clamp,
    Hardswish,
    LeakyReLU,
    MaxPool2d,
    Normalize,
    PReLU,
    ReLU,
    Reshape,
    RootMeanSquareNorm,
    Sigmoid,
    SiLU,
    Softplus,
    Tanh,
)
from certibayes.regions import Box
from certibayes.support.memory import bytes_allowed

KINKED = (ReLU, LeakyReLU, PReLU)
"""Linear on either side of 0, so that only units that may have either sign are worth narrowing."""

NONLINEAR = (*KINKED, Tanh, Sigmoid, MaxPool2d, Clamp, ELU, Softplus, GELU, SiLU, Hardswish, RootMeanSquareNorm)
"""Operations whose relaxations are the better, the narrower their inputs are known."""

VALUE_BY_VALUE = (Reshape, Normalize, BatchNorm)
"""Linear operations that make every output of one input, and no two of the same."""

SLOPES = ("adaptive", "zero")
"""Tried one after the other, on what is unstable still; the first is the better on networks that need this at all."""

STEPS = 5
"""Of ascent on the slopes of a unit; more of them gain next to nothing."""

COPIES = 8
"""Numbers that an ascent holds for each that a backward pass holds."""

BYTES = 128
"""What a backward pass takes for each coefficient on the largest layer."""


def crown_boxes(
    graph: Graph,
    params: Params,
    boxes: Boxes,
    rounding: Rounding = IDEAL,
    at_once: int | None = None,
    known: Boxes | None = None,
    steps: int = 0,
) -> Boxes:
    """Return boxes of every node of one network, with CROWN bounds on the inputs of activations.

    Args:
        graph: the network.
        params: parameters and buffers of one sample.
        boxes: interval bounds, from ``layer_boxes``.
        rounding: the same as theirs.
        at_once: see ``crown_boxes_of_all``.
        known: likewise.
        steps: likewise.
    """
    return crown_boxes_of_all(graph, Stack(params), boxes[INPUT], rounding, at_once, known, steps)


def crown_boxes_of_all(
    graph: Graph,
    stack: Stack,
    box: Box,
    rounding: Rounding = IDEAL,
    at_once: int | None = None,
    known: Boxes | None = None,
    steps: int = 0,
) -> Boxes:
    """Return boxes of every node of N networks, (N B, ...), with CROWN bounds on the inputs of activations.

    Args:
        graph: the network.
        stack: N samples of its parameters.
        box: inputs, (B, ...); without a ball where there are several networks.
        rounding: of the program that runs, or ideal.
        at_once: coefficients on the largest layer that are held at once; by default as many as
            ``support.memory`` has room for.
        known: boxes of ``narrowed_layers`` that were found before, for the same inputs; slopes by a word, from which
            they come, are not tried again then.
        steps: of ascent on the slopes of each unit that is unstable still (alpha-CROWN; Xu et al., 2021).
    """
    wanted = narrowed_layers(graph)
    at_once = at_once or bytes_allowed(box.center.device) // BYTES
    bent = {
        name
        for node in graph.nodes
        if isinstance(node.operation, NONLINEAR) and not isinstance(node.operation, KINKED)
        for name in node.inputs
    }
    tight: Boxes = {INPUT: stack.box(box)}
    for index, node in enumerate(graph.nodes):
        tight[node.name] = _interval(node, stack, tuple(tight[name] for name in node.inputs), rounding)
        if node.name not in wanted:
            continue
        if known is not None:
            tight[node.name] = known[node.name]
        layer = _Layer(dataclasses.replace(graph, nodes=graph.nodes[: index + 1]), stack, tight, rounding, at_once)
        for slopes in SLOPES if known is None else ():
            tight[node.name] = layer.narrowed(Chosen(slopes), every=node.name in bent)
        if steps > 0:
            tight[node.name] = layer.narrowed(Chosen("adaptive", steps), every=node.name in bent)
    return tight


def _interval(node: Node, stack: Stack, inputs: tuple[Box, ...], rounding: Rounding) -> Box:
    def rule(params: Params, *inputs: Box) -> Box:
        return rules_for(node.operation).interval(node.operation, node.weights(params), inputs, rounding)

    box: Box = stack.each(rule, *inputs)
    return box


def narrowed_layers(graph: Graph) -> set[str]:
    """Return the layers that CROWN may narrow: they feed an activation, and their intervals are not exact."""
    exact = first_layers(graph)
    feeding = {name for node in graph.nodes if isinstance(node.operation, NONLINEAR) for name in node.inputs}
    linear = {node.name for node in graph.nodes if not isinstance(node.operation, NONLINEAR)}
    return (feeding & linear) - exact


def first_layers(graph: Graph) -> set[str]:
    """Return the layers whose intervals are exact: one layer on the input, and what goes value by value around it."""
    by_value, exact = {INPUT}, set[str]()
    for node in graph.nodes:
        if len(node.inputs) != 1:
            continue
        if isinstance(node.operation, VALUE_BY_VALUE):
            for kind in (by_value, exact):
                if node.inputs[0] in kind:
                    kind.add(node.name)
        elif node.inputs[0] in by_value:
            exact.add(node.name)
    return exact | by_value


class Chosen(NamedTuple):
    """How lower slopes are chosen: by a word, and from there by so many steps of ascent, for each unit by itself."""

    word: str
    steps: int = 0

    @property
    def copies(self) -> int:
        """How many times as many numbers are held as by a backward pass: an ascent keeps those of all layers."""
        return COPIES if self.steps else 1

    def lower(self, bounder: LinearBounder, specification: Tensor) -> Tensor:
        """Bound linear functions of a layer's units, (B, S, *shape), from below, (B, S)."""
        if self.steps == 0:
            return bounder.at_input(specification, Relaxation(self.word))
        quantities = specification.shape[1]
        start = {
            name: slopes[:, None].expand(-1, quantities, *slopes.shape[1:])
            for name, slopes in adaptive_slopes(bounder).items()
        }
        return bounder.at_input(specification, ascend(bounder, specification, Relaxation(start), self.steps))


@dataclasses.dataclass(frozen=True)
class _Layer:
    """The last layer of a graph, whose units are to be bounded, for B points of each of N networks.

    Attributes:
        graph: up to this layer.
        stack: the networks.
        boxes: of all layers before, and of this one as far as it is known, (N B, ...).
        rounding: of the program that runs, or ideal.
        at_once: coefficients that are held at once.
    """

    graph: Graph
    stack: Stack
    boxes: Boxes
    rounding: Rounding
    at_once: int

    @property
    def box(self) -> Box:
        """What is known of this layer."""
        return self.boxes[self.graph.nodes[-1].name]

    def narrowed(self, how: Chosen, every: bool) -> Box:
        """Bound units by a backward pass, and intersect with the box that is known.

        Args:
            how: slopes are chosen.
            every: whether to bound all units, or those alone whose sign is not known.
        """
        low, high = (end.flatten(1) for end in self.rounding.ends(self.box))
        wanted = torch.ones_like(low, dtype=torch.bool) if every else (low < 0) & (high > 0)
        found = self._of_some(how, wanted, low, high)
        new_low, new_high = torch.maximum(low, found[0]), torch.minimum(high, found[1])
        new = box_between_ends(new_low, new_high, self.box.center.dtype, self.rounding)
        # Where nothing is gained the box stays as it is, which is not rounded once more.
        gained = (new_low > low) | (new_high < high) | torch.isnan(new_low) | torch.isnan(new_high)
        gained = gained.view(self.box.center.shape)
        return Box(
            torch.where(gained, new.center.view_as(self.box.center), self.box.center),
            torch.where(gained, new.radius.view_as(self.box.radius), self.box.radius),
        )

    def _of_some(self, how: Chosen, wanted: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Bound the wanted units, (N B, units), and return both ends of all of them, (N B, units)."""
        low, high = low.clone(), high.clone()
        if not bool(wanted.any()):
            return low, high
        field = receptive_field(self.graph, self.stack.first, self.boxes)
        if field is not None:
            found = self.stack.side_by_side(wanted)
            ends = self._over_windows(how, field, found.rows)
            point, unit = found.wanted.unbind(1)
            low[point, unit], high[point, unit] = found.of_wanted(ends[0]), found.of_wanted(ends[1])
            return low, high
        for points, units in self._parts(wanted, self._rows_at_once(how)):
            # What fills up rows depends on the other points of a batch, and results must not.
            asked = wanted[points].gather(1, units)
            for end, new in zip((low, high), self._bounded(how, points, units), strict=True):
                known = end[points]
                end[points] = known.scatter(1, units, torch.where(asked, new, known.gather(1, units)))
        return low, high

    def _over_windows(self, how: Chosen, field: ReceptiveField, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Bound units of a convolution, (N, M, 2) by point and number, over their receptive fields, (N, M) each."""
        windowed, shape = field.over(self.boxes), self.graph.output_shape
        found = []
        for part in rows.split(self._at_once(how, field.largest), 1):
            point, unit = part.flatten(0, 1).unbind(1)
            channel, place = unit // (shape[1] * shape[2]), unit % (shape[1] * shape[2])
            at = (place // shape[2], place % shape[2])
            one = torch.arange(shape[0], device=unit.device) == channel[:, None]
            specification = one.to(self.box.center.dtype)[:, None, :, None, None]
            both = torch.cat([specification, -specification], 1)
            lower = self._lower(how, field.graph, windowed.take(point, at), both, windowed.inside(at))
            found.append(lower.unflatten(0, part.shape[:2]))
        lower, negative = torch.cat(found, 1).unbind(2)
        return lower, -negative

    def _lower(
        self, how: Chosen, graph: Graph, boxes: Boxes, specification: Tensor, inside: Mapping[str, Tensor]
    ) -> Tensor:
        """Bound linear functions of a graph's outputs in each network, for as many rows of each, (N R, S)."""
        in_place = self.stack.count == 1 and not self.box.center.is_cuda

        def lower(params: Params, boxes: Boxes, specification: Tensor, inside: Mapping[str, Tensor]) -> Tensor:
            return how.lower(LinearBounder(graph, params, boxes, self.rounding, in_place, inside), specification)

        bounds: Tensor = self.stack.each(lower, boxes, specification, inside)
        return bounds

    def _at_once(self, how: Chosen, largest: int) -> int:
        """How many units of each network are bounded at once, where their coefficients are so many."""
        return max(1, self.at_once // (2 * how.copies * largest * self.stack.count))

    def _rows_at_once(self, how: Chosen) -> int:
        """How many units of how many points together are bounded at once over the whole network."""
        return self._at_once(how, max(box.center[0].numel() for box in self.boxes.values()))

    def _parts(self, wanted: Tensor, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield points (N P,) and units of them (N P, S) until all that are wanted were among them; others fill up.

        Args:
            wanted: units, (N B, units).
            most: units of how many points of a network together.
        """
        by_network = wanted.sum(1).view(self.stack.count, -1)
        # Points with about as many units each, so that little is filled up.
        counts, order = by_network.sort(dim=1, descending=True)
        order = order + torch.arange(len(order), device=order.device)[:, None] * order.shape[1]
        numbers = wanted.int().argsort(dim=1, descending=True, stable=True)
        largest = counts.amax(0).tolist()
        start = 0
        while start < len(largest) and largest[start] > 0:
            count = largest[start]
            points = order[:, start : start + max(1, most // count)]
            for units in numbers[points.flatten(), :count].split(most, 1):
                yield points.flatten(), units
            start += points.shape[1]

    def _bounded(self, how: Chosen, points: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
        """Bound units (N P, S) of some points by a backward pass through the whole network, from both sides."""
        boxes = {name: box.take(points) for name, box in self.boxes.items()}
        every = torch.arange(self.box.center[0].numel(), device=units.device)
        one = (every == units[..., None]).to(self.box.center.dtype)
        specification = torch.cat([one, -one], 1).unflatten(2, self.graph.output_shape)
        lower, negative = self._lower(how, self.graph, boxes, specification, {}).split(units.shape[1], 1)
        return lower, -negative


def box_between_ends(low: Tensor, high: Tensor, dtype: torch.dtype, rounding: Rounding) -> Box:
    """Return a box in ``dtype`` that holds the ends, given in float64."""
    center = ((low + high) / 2).to(dtype)
    reach = torch.maximum(high - center.double(), center.double() - low).clamp(min=0)
    if not rounding.outward:
        return Box(center, reach.to(dtype))
    # One unit for the subtraction and one for the rounding to the network's precision.
    return Box(center, (reach * (1 + 2.0**-50)).to(dtype) * (1 + 4 * rounding.unit) + rounding.underflow)
