"""Points and boxes through a network and their derivatives back: the two passes of a robust training step.

``point_and_box`` says what is computed, and torch can differentiate it. Here the backward pass is written out, layer by
layer in reverse. A step of a small network takes little longer than its matrix products, and automatic differentiation
would add as much again, in memory that is written once and in small operations. Layers without a rule of their own are
differentiated by torch. Everything may run inside ``torch.vmap`` over networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from certibayes.bounds._pullback import MAGNITUDE, Pullback, TrainingRule, Wanted, points_and_centers, with_points
from certibayes.bounds.registry import Rules, rules_for
from certibayes.bounds.rounding import IDEAL, Rounding
from certibayes.networks import Graph, Node, Params
from certibayes.networks.batch_norm import learned_weights, without_effect
from certibayes.networks.operations import Weights
from certibayes.regions import Box

NOTHING: Mapping[str, Box] = MappingProxyType({})
"""No derivatives along the way."""


class LayerUse(NamedTuple):
    """How a layer was used: points and boxes that it read, and derivatives with respect to those that it made."""

    value: Box
    derivative: Box


class TrainingPass:
    """The pass of points and boxes through a network, of which a scalar function of the outputs can be differentiated.

    Args:
        graph: the network; where a batch norm takes the statistics of the batch, they are those of the points.
        params: those of its tensors with respect to which ``gradient`` differentiates.
        constants: the others.
        inputs: points, (B, *input_shape); None for boxes alone.
        box: B boxes of inputs, without balls; None for points alone.
        rounding: ideal, or smoothed.
        watched: names of layers whose uses are kept.

    Attributes:
        output: centers (P + B, outputs) with the points first, and radii (B, outputs).
        uses: of the layers that are watched, by name, once ``gradient`` was called.
        magnitudes: derivatives with respect to |W|, with which boxes widen, by parameter, once ``gradient`` was called.
    """

    def __init__(
        self,
        graph: Graph,
        params: Params,
        constants: Params,
        inputs: Tensor | None,
        box: Box | None,
        rounding: Rounding = IDEAL,
        watched: frozenset[str] = frozenset(),
    ) -> None:
        self.params, self.watched = params, watched
        self.uses: dict[str, LayerUse] = {}
        self.magnitudes: dict[str, Tensor] = {}
        self._steps: list[tuple[Node, tuple[Box, ...], Pullback]] = []
        # Values that depend on what is differentiated: only through these do derivatives go back.
        self._reached: set[str] = set()
        tensors = {**constants, **params}
        # Their gradients are 0; computed, they would be rounding errors, which take time and change a gradient's norm.
        unbiased = without_effect(graph)

        def forward(node: Node, values: tuple[Box, ...]) -> Box:
            weights = learned_weights(node, tensors)
            if node.name in unbiased:
                del weights["bias"]
            learned = frozenset(role for role in weights if node.roles[role] in params)
            wanted = Wanted(any(name in self._reached for name in node.inputs), learned)
            if wanted.inputs or wanted.weights or node.name in watched:
                self._reached.add(node.name)
            rules = rules_for(node.operation)
            rule = rules.training or torch_rule(rules)
            output, pullback = rule(node.operation, weights, values, rounding, wanted)
            self._steps.append((node, values, pullback))
            return output

        inputs_and_box = _together(inputs, box)
        self._dtype = inputs_and_box.center.dtype
        output = graph.fold(inputs_and_box, forward)
        self._made = output.center.dtype
        self.output = _stored(output, self._dtype)

    @property
    def entering(self) -> dict[str, Box]:
        """The box that enters each node, without points, by the node's name; of several boxes the first."""
        return {node.name: Box(points_and_centers(values[0])[1], values[0].radius) for node, values, _ in self._steps}

    def gradient(self, derivative: Box, along: Mapping[str, Box] = NOTHING) -> dict[str, Tensor]:
        """Return the gradient with respect to the parameters of a function with this derivative at ``output``.

        It can be asked for once: memory is given back along the way.

        Args:
            derivative: of the function.
            along: derivatives of what is added to the function, with respect to boxes on the way, without points, by
                the node that made them.
        """
        pending = {self._steps[-1][0].name: _stored(derivative, self._made)}
        found: dict[str, Tensor] = {}
        while self._steps:
            node, values, pullback = self._steps.pop()
            if node.name not in self._reached or node.name not in pending:
                continue
            outgoing = pending.pop(node.name)
            if node.name in along:
                outgoing = _with_boxes(outgoing, along[node.name])
            if node.name in self.watched:
                self.uses[node.name] = LayerUse(_stored(values[0], self._dtype), _stored(outgoing, self._dtype))
            incoming, weights = pullback(outgoing)
            if MAGNITUDE in weights:
                _add(self.magnitudes, node.roles["weight"], weights.pop(MAGNITUDE))
            for name, part in zip(node.inputs, incoming, strict=False):
                if name in self._reached:
                    pending[name] = _sum(pending[name], part) if name in pending else part
            for role, slope in weights.items():
                _add(found, node.roles[role], slope)
        return {name: found[name] if name in found else torch.zeros_like(p) for name, p in self.params.items()}


def _together(inputs: Tensor | None, box: Box | None) -> Box:
    if box is None:
        assert inputs is not None
        return Box(inputs, inputs[:0])
    return box if inputs is None else with_points(inputs, box)


def _stored(box: Box, dtype: torch.dtype) -> Box:
    """Return a box in another precision: convolutions may make theirs in bfloat16."""
    return box if box.center.dtype == dtype else Box(box.center.to(dtype), box.radius.to(dtype))


def _add(found: dict[str, Tensor], name: str, slope: Tensor) -> None:
    found[name] = found[name] + slope if name in found else slope


def _with_boxes(derivative: Box, boxes: Box) -> Box:
    """Add derivatives with respect to boxes alone, which may broadcast, to those with respect to points and boxes."""
    points, centers = points_and_centers(derivative)
    boxes = _stored(boxes, derivative.center.dtype)
    return with_points(points, Box(centers + boxes.center, derivative.radius + boxes.radius))


def _sum(one: Box, other: Box) -> Box:
    return Box(one.center + other.center, one.radius + other.radius)


def apply_rule(rules: Rules, operation: Any, weights: Weights, values: tuple[Box, ...], rounding: Rounding) -> Box:
    """Carry points and boxes through one operation by its interval rule."""
    if rules.separable:
        return rules.interval(operation, weights, values, rounding)
    points, centers = zip(*map(points_and_centers, values), strict=True)
    boxes = tuple(Box(center, value.radius) for center, value in zip(centers, values, strict=True))
    if not len(points[0]):
        return rules.interval(operation, weights, boxes, rounding)
    evaluated = operation.evaluate(weights, *points)
    if not len(centers[0]):
        return Box(evaluated, evaluated[:0])
    return with_points(evaluated, rules.interval(operation, weights, boxes, rounding))


def torch_rule(rules: Rules) -> TrainingRule:
    """Make a training rule of an interval rule, by torch's own differentiation."""

    def training(
        operation: Any, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding, wanted: Wanted
    ) -> tuple[Box, Pullback]:
        def forward(chosen: Weights, pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
            output = apply_rule(rules, operation, {**weights, **chosen}, tuple(Box(c, r) for c, r in pairs), rounding)
            return output.center, output.radius

        chosen = {role: weights[role] for role in wanted.weights}
        pairs = [(box.center, box.radius) for box in boxes]
        if not (wanted.inputs or chosen):
            center, radius = forward({}, pairs)
            return Box(center, radius), lambda derivative: ((), {})
        both = (chosen, pairs) if wanted.inputs else (chosen,)
        (center, radius), pull, *_ = torch.func.vjp(lambda chosen, into=pairs: forward(chosen, into), *both)

        def pullback(derivative: Box) -> tuple[tuple[Box, ...], Weights]:
            slopes, *into = pull((derivative.center, derivative.radius))
            return tuple(Box(c, r) for c, r in into[0]) if into else (), slopes

        return Box(center, radius), pullback

    return training
