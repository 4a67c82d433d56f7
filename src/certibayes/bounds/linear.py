"""Linear bounds (CROWN; LBP in the paper): one network, one batch of boxes, lower bounds on margins and outputs.

Coefficients travel from the outputs back to the input, where the box is put in:

    m >= A x + d >= A c - |A| r + d        for x in the box (c, r).

Every activation needs bounds on what it takes in; they come from interval propagation. On the way, the same
coefficients put into the box of any intermediate layer give a bound too; the one at the last layer's input is the
interval bound with the last layer folded in, and the result is the better of the two. See Zhang et al. (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds.cut import least_over_cut
from certibayes.bounds.interval import interval_bounds
from certibayes.bounds.planes import PlanesByNode, planed_layers, raise_units
from certibayes.bounds.registry import LinearRule, rules_for
from certibayes.bounds.relaxation import Step, dot, joined, paid_units, portion, portions, sum_error, vanished
from certibayes.bounds.rounding import IDEAL, Rounding, widened
from certibayes.errors import UnsupportedLayer
from certibayes.networks import Graph, Node, Params
from certibayes.networks.graph import INPUT
from certibayes.networks.operations import Reshape
from certibayes.regions import Box

Slopes = Mapping[str, Tensor] | str
"""Lower slopes of unstable activations by node, or "zero" or "adaptive" for all of them."""

Boxes = dict[str, Box]
"""Boxes by node, and of the input."""


def layer_boxes(graph: Graph, params: Params, box: Box, rounding: Rounding = IDEAL) -> Boxes:
    """Return the interval bounds of every node, which linear bounds need."""
    boxes: Boxes = {INPUT: box}

    def remember(node: Node, inputs: tuple[Box, ...], output: Box) -> Box:
        boxes[node.name] = output
        return output

    interval_bounds(graph, params, box, rounding, remember)
    return boxes


def linear_lower(
    graph: Graph,
    params: Params,
    boxes: Boxes,
    specification: Tensor,
    rounding: Rounding = IDEAL,
    slopes: Slopes = "zero",
    folded_only: bool = False,
    at_input_only: bool = False,
    multipliers: Mapping[str, Tensor] | None = None,
    planes: PlanesByNode | None = None,
    observe: Callable[[str, Tensor], None] | None = None,
    overwrite: bool = False,
) -> Tensor:
    """Bound linear functions of the network's outputs from below.

    Args:
        graph: the network.
        params: parameters and buffers of one sample.
        boxes: from ``layer_boxes``, with the same rounding.
        specification: coefficients on the outputs, (B, S, *output_shape).
        rounding: ``IDEAL``, or ``outward(dtype)`` for bounds on the float program.
        slopes: see ``Slopes``.
        folded_only: go back through the last layer alone: interval bounds with that layer folded in.
        at_input_only: do not take the better of this bound and the folded one, whose place has no slope to climb.
        multipliers: by activation, (B, S, *shape): β where its input z is known to be >= 0, -β where it is known to be
            <= 0, for any β >= 0. Since β |z| >= 0 may be subtracted from a lower bound, they are subtracted from the
            coefficients on z (beta-CROWN; Wang et al., 2021).
        planes: above some units of ReLU nodes, by name; see ``bounds.planes``.
        observe: told the coefficients on each node's output, by name, and those on the input.
        overwrite: whether coefficients may be overwritten on the way, which saves memory and with it time; not where
            anything is differentiated or mapped. The caller's own are left alone.

    Returns:
        Lower bounds (B, S) in float64; in outward rounding they hold for the outputs of the float program, their
        differences taken exactly.
    """
    free = Free(slopes, multipliers or {}, planes or {})
    ended = _backwards(
        graph, params, boxes, specification, rounding, free, observe, folded_only, overwrite and observe is None
    )
    if folded_only and ended.folded is not None:
        return ended.folded
    result = ended.constant.total(least(ended.coefficients, ended.box, rounding))
    return result if ended.folded is None or at_input_only else torch.maximum(result, ended.folded)


def linear_line(
    graph: Graph,
    params: Params,
    boxes: Boxes,
    specification: Tensor,
    rounding: Rounding = IDEAL,
    slopes: Slopes = "zero",
    multipliers: Mapping[str, Tensor] | None = None,
    planes: PlanesByNode | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the linear functions of the input that ``linear_lower`` puts the box into: m >= A x + d inside it.

    Returns:
        A, (B, S, *input_shape), and d, (B, S) in float64. In outward rounding they hold for the float program as they
        stand, with the product taken exactly.
    """
    free = Free(slopes, multipliers or {}, planes or {})
    ended = _backwards(graph, params, boxes, specification, rounding, free)
    if not rounding.outward:
        return ended.coefficients, ended.constant.value
    # Coefficients may be off by some units when they arrive.
    return ended.coefficients, ended.constant.total(paid_units(ended.coefficients, ended.box, rounding).double())


class Free(NamedTuple):
    """What a relaxation is free to choose; see ``linear_lower``."""

    slopes: Slopes
    multipliers: Mapping[str, Tensor]
    planes: PlanesByNode


class Arrived(NamedTuple):
    """Coefficients (B, S, ...) on the output of a node.

    Attributes:
        coefficients: themselves.
        unpaid: how many layers in a row have let them pass although they may be some units off.
        owned: whether they are in memory of their own.
    """

    coefficients: Tensor
    unpaid: int = 0
    owned: bool = False


class Ended(NamedTuple):
    """Where the way back ends: coefficients (B, S, ...) on a box, the constant, and the folded bound on the way."""

    coefficients: Tensor
    box: Box
    constant: _Sum
    folded: Tensor | None


def _backwards(
    graph: Graph,
    params: Params,
    boxes: Boxes,
    specification: Tensor,
    rounding: Rounding,
    free: Free,
    observe: Callable[[str, Tensor], None] | None = None,
    folded_only: bool = False,
    overwrite: bool = False,
) -> Ended:
    """Carry coefficients from the outputs back to the input."""
    pending = {graph.nodes[-1].name: Arrived(specification)}
    constant = _Sum(specification, rounding)
    folded: Tensor | None = None
    planed = planed_layers(graph) if free.planes else {}

    def travel(name: str, arrived: Arrived) -> None:
        """Let coefficients arrive at the output of a node."""
        together = name in pending
        if rounding.outward and not isinstance(node.operation, Reshape):
            constant.add(vanished(boxes[name], rounding))
        if rounding.outward and (together or arrived.unpaid == PATIENCE):
            # Where coefficients meet they may cancel, so what each may be off by is paid for before.
            constant.add(paid_units(arrived.coefficients, boxes[name], rounding))
            arrived = arrived._replace(unpaid=0)
        if together:
            if rounding.outward:
                constant.add(paid_units(pending[name].coefficients, boxes[name], rounding))
            arrived = Arrived(pending[name].coefficients + arrived.coefficients)
        pending[name] = arrived

    for node in reversed(graph.nodes):
        if node.name not in pending:
            continue
        coefficients, unpaid, owned = pending.pop(node.name)
        inputs = tuple(boxes[name] for name in node.inputs)
        slope = free.slopes if isinstance(free.slopes, str) else free.slopes.get(node.name, "zero")
        reuses = overwrite and rules_for(node.operation).reuses
        step = Step(coefficients, inputs, boxes[node.name], rounding, slope, owned and reuses)
        if observe is not None:
            observe(node.name, coefficients)
        if node.name in free.planes:
            source = planed[node.name]
            fed = source.inputs[0]
            raised = raise_units(
                free.planes[node.name], coefficients, source.weights(params), boxes[fed], boxes[node.name], rounding
            )
            constant.add(raised.constant)
            travel(fed, Arrived(raised.coefficients))
            step = replace(step, coefficients=raised.rest, owned=False)
        back = _linear_rule(node)(node.operation, node.weights(params), step)
        constant.add(back.constant)
        if node.name in free.multipliers:
            if rounding.outward:
                constant.add(paid_units(back.coefficients[0], inputs[0], rounding))
            back = back._replace(coefficients=(back.coefficients[0] - free.multipliers[node.name],))
        for name, arrived in zip(node.inputs, back.coefficients, strict=True):
            travel(name, Arrived(arrived, 0 if back.paid else unpaid + 1, back.owned and reuses))
        if node is graph.nodes[-1] and len(pending) == 1:
            # The last layer folded into the box of what it takes in: interval bounds with the last layer elided.
            folded = constant.total(least(*_only(pending, boxes), rounding))
            if folded_only:
                break
    coefficients, box = _only(pending, boxes)
    if observe is not None:
        observe(INPUT, coefficients)
    return Ended(coefficients, box, constant, folded)


PATIENCE = 4
"""Layers that may pass coefficients on without paying; each adds at most four units to what they may be off by."""


class _Sum:
    """A sum of constants (B, S) in float64, and of their sizes, which bound what rounding can do to it."""

    def __init__(self, like: Tensor, rounding: Rounding):
        self.value = torch.zeros(like.shape[:2], dtype=torch.float64, device=like.device)
        self.size, self.rounding = self.value, rounding

    def add(self, term: Tensor) -> None:
        self.value = self.value + term.double()
        self.size = self.size + term.double().abs()

    def total(self, last: Tensor) -> Tensor:
        total = self.value + last
        if not self.rounding.outward:
            return total
        # The sums that led here lose what underflows in them, besides.
        return total - (self.size + last.abs()) * 2.0**-40 - self.rounding.underflow


def _only(pending: dict[str, Arrived], boxes: Boxes) -> tuple[Tensor, Box]:
    """What is left when all layers are done: coefficients on one box."""
    (name, arrived), *_ = pending.items()
    return arrived.coefficients, boxes[name]


def _linear_rule(node: Node) -> LinearRule:
    rule = rules_for(node.operation).linear
    if rule is None:
        raise UnsupportedLayer(
            f'the operation {type(node.operation).__name__} has interval bounds only. Take bounds="ibp", or give it a '
            "linear rule with certibayes.bounds.register(..., linear=...)."
        )
    return rule


def least(coefficients: Tensor, box: Box, rounding: Rounding = IDEAL) -> Tensor:
    """Smallest value of A x over a box, and over the ball that it may carry, (B, S), in float64.

    Args:
        coefficients: A, (B, S, ...).
        box: (B, ...).
        rounding: of the program that runs; where it is outward, A may be off by some units.
    """
    radius = box.radius
    if rounding.outward:
        # Pays for rounding of both sums, and for coefficients that are off by some units.
        radius = widened(box, sum_error(radius, rounding))
    parts = []
    for part in portions(coefficients):
        some = coefficients[part]
        middle, reach = dot(some, portion(box.centre, part)), dot(some.abs(), portion(radius, part))
        parts.append(middle.double() - reach.double())
    over_box = joined(parts)
    if box.ball is None:
        return over_box
    return torch.maximum(over_box, least_over_cut(coefficients, box, box.ball, rounding))


def margin_specification(labels: Tensor, classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the coefficients of z_y - z_j for the rivals j of each label, (B, C - 1, C), and the rivals (B, C - 1)."""
    every = torch.arange(classes, device=labels.device)
    # Without boolean indexing, which vmap cannot trace: the rivals are all classes in order, the label left out.
    rivals = every[:-1].expand(len(labels), classes - 1)
    rivals = rivals + (rivals >= labels[:, None])
    own = (every == labels[:, None])[:, None, :]
    rival = every == rivals[..., None]
    return own.to(dtype) - rival.to(dtype), rivals


def linear_margins(
    graph: Graph,
    params: Params,
    box: Box,
    labels: Tensor,
    rounding: Rounding = IDEAL,
    slopes: Slopes = "zero",
    boxes: Boxes | None = None,
) -> Tensor:
    """Bound the margins m_j = z_y - z_j from below; never worse than ``interval_margins``.

    Args:
        graph: the network; its output is one vector of logits.
        params: parameters and buffers of one sample.
        box: inputs.
        labels: class y of each input, (B,).
        rounding: with outward rounding the result holds for the exact difference of the float logits that run.
        slopes: see ``Slopes``.
        boxes: from ``layer_boxes``, if they are known.

    Returns:
        Lower bounds (B, C) in float64; 0 for the label itself.
    """
    boxes = layer_boxes(graph, params, box, rounding) if boxes is None else boxes
    specification, rivals = margin_specification(labels, graph.classes, box.centre.dtype)
    lower = linear_lower(graph, params, boxes, specification, rounding, slopes)
    return torch.zeros(len(labels), graph.classes, dtype=lower.dtype, device=lower.device).scatter(1, rivals, lower)


def linear_bounds(
    graph: Graph,
    params: Params,
    box: Box,
    rounding: Rounding = IDEAL,
    slopes: Slopes = "zero",
    boxes: Boxes | None = None,
) -> tuple[Tensor, Tensor]:
    """Bound every output from both sides, (B, C) each, in float64; never worse than interval bounds."""
    known = layer_boxes(graph, params, box, rounding) if boxes is None else boxes
    return output_bounds(
        graph, known, lambda both: linear_lower(graph, params, known, both, rounding, slopes), rounding
    )


def output_bounds(
    graph: Graph, boxes: Boxes, lower_of: Callable[[Tensor], Tensor], rounding: Rounding = IDEAL
) -> tuple[Tensor, Tensor]:
    """Bound every output z_c from both sides by lower bounds on z_c and -z_c, and by the box of the outputs.

    Args:
        graph: the network.
        boxes: from ``layer_boxes``, with the same rounding.
        lower_of: bounds linear functions of the outputs from below: coefficients (B, 2C, *output_shape) -> (B, 2C).
        rounding: of the program that runs, or ``IDEAL``.

    Returns:
        Lower and upper ends, (B, C) each, in float64.
    """
    last = boxes[graph.nodes[-1].name]
    unit = torch.eye(graph.classes, dtype=last.centre.dtype, device=last.centre.device)
    both = torch.cat([unit, -unit]).view(2 * graph.classes, *graph.output_shape)
    lower, negative = lower_of(both.expand(len(last.centre), *both.shape)).split(graph.classes, 1)
    ends = last.ends() if rounding.outward else (last.lower.double(), last.upper.double())
    low, high = (end.flatten(1) for end in ends)
    return torch.maximum(lower, low), torch.minimum(-negative, high)
