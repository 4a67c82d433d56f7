"""Linear bounds (CROWN; LBP in the paper): one network, one batch of boxes, lower bounds on margins and outputs.

A backward pass propagates coefficients from the outputs to the input, where they are concretized over the box:

    m >= A x + d >= A c - |A| r + d        for x in the box (c, r).

Every activation needs intermediate bounds, on its input; they come from interval propagation. The same coefficients
concretized over the box of an intermediate layer give a bound too; the one at the last layer's input is the interval
bound with the last layer elided, and ``LinearBounder.lower`` is the better of the two. See Zhang et al. (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds._ball_box import concretize_over_ball_box
from certibayes.bounds._offset import Offset
from certibayes.bounds.cuts import apply_cuts, cut_layers
from certibayes.bounds.interval import interval_bounds
from certibayes.bounds.registry import LinearRule, rules_for
from certibayes.bounds.relaxation import PLAIN, Relaxation, Slopes
from certibayes.bounds.rounding import IDEAL, Rounding
from certibayes.bounds.sums import dot, joined, portion, portions, sum_error
from certibayes.errors import UnsupportedLayer
from certibayes.networks import Graph, Node, Params
from certibayes.networks.graph import INPUT
from certibayes.networks.operations import AFFINE, Reshape
from certibayes.regions import Box

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


class LinearFunction(NamedTuple):
    """Linear functions A x + d of the input for S quantities of each example.

    Attributes:
        coefficients: A, (B, S, *input_shape).
        offset: d, (B, S), in float64.
    """

    coefficients: Tensor
    offset: Tensor


@dataclass(frozen=True)
class LinearBounder:
    """Bounds linear functions of the outputs of one network, over one batch of boxes, from below.

    A specification is their coefficients on the outputs, (B, S, *output_shape). In outward rounding bounds hold for the
    outputs of the float program, their linear functions taken exactly.

    Attributes:
        graph: the network.
        params: parameters and buffers of one sample.
        boxes: of every node and the input, from ``layer_boxes``, with the same rounding.
        rounding: ``IDEAL``, or ``outward(dtype)`` for bounds on the float program.
        in_place: whether ``lower`` and ``elided`` may overwrite coefficients that they made themselves, which saves
            memory and with it time; not where anything is differentiated or mapped.
        inside: by node, 1 where its values are those of the network and 0 where they are nothing but zeros around an
            image, broadcasting against coefficients (B, S, *shape); see ``bounds.windows``.
    """

    graph: Graph
    params: Params
    boxes: Boxes
    rounding: Rounding = IDEAL
    in_place: bool = False
    inside: Mapping[str, Tensor] = field(default_factory=dict)

    def lower(self, specification: Tensor, relaxation: Relaxation = PLAIN) -> Tensor:
        """Return the better of the bound at the input and the elided one, (B, S), in float64."""
        return _BackwardPass(self, specification, relaxation).better_bound()

    def at_input(self, specification: Tensor, relaxation: Relaxation = PLAIN) -> Tensor:
        """Return the bound at the input alone, (B, S), in float64.

        It is what to ascend: where the elided bound is better, ``lower`` has no gradient in the relaxation.
        """
        backward = _BackwardPass(self, specification, relaxation)
        backward.propagate_to_input()
        return backward.concretized()

    def elided(self, specification: Tensor) -> Tensor:
        """Return the interval bound with the last layer elided, (B, S), in float64.

        Where the last operation has several inputs, whose boxes know nothing of each other, it is the one at the input.
        """
        backward = _BackwardPass(self, specification, PLAIN)
        backward.propagate_last()
        if not backward.is_at_one_node:
            backward.propagate_to_input()
        return backward.concretized()

    def function(self, specification: Tensor, relaxation: Relaxation = PLAIN) -> LinearFunction:
        """Return the linear functions of the input that ``at_input`` concretizes: m >= A x + d inside the box.

        In outward rounding they hold for the float program as they stand, with the product taken exactly.
        """
        backward = _BackwardPass(self, specification, relaxation)
        backward.propagate_to_input()
        return backward.function()

    def lower_with_coefficients(
        self, specification: Tensor, relaxation: Relaxation = PLAIN
    ) -> tuple[Tensor, dict[str, Tensor], LinearFunction]:
        """Return ``lower``, the coefficients on each node's output and on the input, (B, S, *shape), and ``function``.

        Coefficients are kept by name.
        """
        seen: dict[str, Tensor] = {}
        backward = _BackwardPass(replace(self, in_place=False), specification, relaxation, seen)
        return backward.better_bound(), seen, backward.function()


class _Pending(NamedTuple):
    """Coefficients (B, S, *shape) on the output of a node that the backward pass has not reached yet.

    Attributes:
        coefficients: themselves.
        carried: how many layers in a row have carried their rounding error on; see ``Backward``.
        owned: whether they are in memory of their own.
    """

    coefficients: Tensor
    carried: int = 0
    owned: bool = False


CARRY_LIMIT = 4
"""Layers that may carry the rounding error of coefficients on; each adds at most four units to it."""


class _BackwardPass:
    """One backward pass: coefficients on the nodes that it has reached, and the offset.

    Attributes:
        pending: coefficients by node, or the input.
        offset: d of m >= A z + d.
        seen: where coefficients on the nodes that it has passed are kept, if anywhere.
    """

    def __init__(
        self,
        bounder: LinearBounder,
        specification: Tensor,
        relaxation: Relaxation,
        seen: dict[str, Tensor] | None = None,
    ):
        self.bounder, self.relaxation, self.boxes = bounder, relaxation, bounder.boxes
        self.nodes = list(bounder.graph.nodes)
        self.cut_layers = cut_layers(bounder.graph) if relaxation.cuts else {}
        self.offset = Offset(specification, bounder.rounding)
        self.pending = {self.nodes[-1].name: _Pending(specification)}
        self.seen = seen

    @property
    def is_at_one_node(self) -> bool:
        """Whether the bound is a function of one node's values, or of the input."""
        return len(self.pending) == 1

    @property
    def at_node(self) -> tuple[Tensor, Box]:
        """Coefficients on that one node, and its box."""
        ((name, pending),) = self.pending.items()
        return pending.coefficients, self.boxes[name]

    def concretized(self) -> Tensor:
        """Return the bound over the box of that one node, (B, S), in float64."""
        return self.offset.total(concretize(*self.at_node, self.bounder.rounding))

    def function(self) -> LinearFunction:
        """Return the bound as a function of that one node's values."""
        coefficients, box = self.at_node
        return LinearFunction(coefficients, self.offset.beside(coefficients, box))

    def better_bound(self) -> Tensor:
        """Propagate to the input, and return the better of the bounds there and at the last layer's input.

        Where the last layer is relaxed, the bound at the outputs may be better than both.
        """
        found = [] if isinstance(self.nodes[-1].operation, AFFINE) else [self.concretized()]
        self.propagate_last()
        if self.is_at_one_node:
            found.append(self.concretized())
        self.propagate_to_input()
        best = self.concretized()
        for bound in found:
            best = torch.maximum(best, bound)
        return best

    def propagate_to_input(self) -> None:
        """Propagate through all layers that are left."""
        while self.nodes:
            self.propagate_last()
        self._keep(INPUT)

    def propagate_last(self) -> None:
        """Propagate through the last layer that is left."""
        node, bounder = self.nodes.pop(), self.bounder
        if node.name not in self.pending:
            return
        self._keep(node.name)
        coefficients, carried, owned = self.pending.pop(node.name)
        reuses = bounder.in_place and rules_for(node.operation).reuses
        inputs = tuple(self.boxes[name] for name in node.inputs)
        slope = self.relaxation.slope(node.name)
        step = Step(coefficients, inputs, self.boxes[node.name], bounder.rounding, slope, owned and reuses)
        if node.name in self.relaxation.cuts:
            step = self._apply_cuts(node, step)
        back = _linear_rule(node)(node.operation, node.weights(bounder.params), step)
        self.offset.add_layer(step, back)
        if node.name in self.relaxation.multipliers:
            back = self._subtract_multipliers(node, back)
        for name, into in zip(node.inputs, back.coefficients, strict=True):
            count = carried + 1 if back.carries_error else 0
            self._propagate_to(name, _Pending(into, count, back.owned and reuses), node)

    def _keep(self, name: str) -> None:
        if self.seen is not None:
            self.seen[name] = self.pending[name].coefficients

    def _apply_cuts(self, node: Node, step: Step) -> Step:
        """Bound the units of a ReLU that have cuts, and leave the others to its rule."""
        source = self.cut_layers[node.name]
        fed = source.inputs[0]
        cuts, weights = self.relaxation.cuts[node.name], source.weights(self.bounder.params)
        relaxed = apply_cuts(cuts, step.coefficients, weights, self.boxes[fed], step.output, step.rounding)
        self.offset.add(relaxed.constant)
        self._propagate_to(fed, _Pending(relaxed.coefficients), node)
        return replace(step, coefficients=relaxed.rest, owned=False)

    def _subtract_multipliers(self, node: Node, back: Backward) -> Backward:
        """Subtract β s from the coefficients on the input z of an activation, since β s z >= 0."""
        (coefficients,) = back.coefficients
        self.offset.cover_coefficients(coefficients, self.boxes[node.inputs[0]])
        multipliers = self.relaxation.multipliers[node.name] * self.relaxation.signs[node.name]
        return back._replace(coefficients=(coefficients - multipliers,))

    def _propagate_to(self, name: str, incoming: _Pending, source: Node) -> None:
        """Add coefficients that a later layer has propagated to the output of a node, or to the input."""
        box, waiting = self.boxes[name], self.pending.get(name)
        if name in self.bounder.inside:
            # Zeros around an image are no values of the node: nothing is propagated to what lies beyond it.
            incoming = incoming._replace(coefficients=incoming.coefficients * self.bounder.inside[name])
        if not isinstance(source.operation, Reshape):
            self.offset.cover_underflow(box)
        if waiting is not None or incoming.carried == CARRY_LIMIT:
            # Where coefficients meet they may cancel, so the error of each is covered before.
            self.offset.cover_coefficients(incoming.coefficients, box)
            incoming = incoming._replace(carried=0)
        if waiting is not None:
            self.offset.cover_coefficients(waiting.coefficients, box)
            incoming = _Pending(waiting.coefficients + incoming.coefficients)
        self.pending[name] = incoming


def _linear_rule(node: Node) -> LinearRule:
    rule = rules_for(node.operation).linear
    if rule is None:
        raise UnsupportedLayer(
            f'the operation {type(node.operation).__name__} has interval bounds only. Take bounds="ibp", or give it a '
            "linear rule with certibayes.bounds.register(..., linear=...)."
        )
    return rule


def concretize(coefficients: Tensor, box: Box, rounding: Rounding = IDEAL) -> Tensor:
    """Smallest value of A x over a box, and over the ball that it may carry, (B, S), in float64.

    Args:
        coefficients: A, (B, S, ...).
        box: (B, ...).
        rounding: of the program that runs; where it is outward, A may be off by some units.
    """
    # Covers the rounding of both sums, and coefficients that are off by some units.
    radius = rounding.widened_by(box, sum_error(box.radius, rounding))
    parts = []
    for part in portions(coefficients):
        some = coefficients[part]
        # Magnitudes first: a pass over memory brings the coefficients into the cache four times as fast as ``dot``.
        reach = dot(some.abs(), portion(radius, part))
        parts.append(dot(some, portion(box.center, part)).double() - reach.double())
    over_box = joined(parts)
    if box.ball is None:
        return over_box
    return torch.maximum(over_box, concretize_over_ball_box(coefficients, box, rounding))


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
    specification, rivals = margin_specification(labels, graph.classes, box.center.dtype)
    lower = LinearBounder(graph, params, boxes, rounding).lower(specification, Relaxation(slopes))
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
    bounder = LinearBounder(graph, params, known, rounding)
    return output_bounds(graph, known, lambda both: bounder.lower(both, Relaxation(slopes)), rounding)


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
    unit = torch.eye(graph.classes, dtype=last.center.dtype, device=last.center.device)
    both = torch.cat([unit, -unit]).view(2 * graph.classes, *graph.output_shape)
    lower, negative = lower_of(both.expand(len(last.center), *both.shape)).split(graph.classes, 1)
    low, high = (end.flatten(1) for end in rounding.ends(last))
    return torch.maximum(lower, low), torch.minimum(-negative, high)
