"""Branch and bound on unstable activations: margins of single networks, tighter the more time there is.

A ReLU whose input may have either sign is what linear bounds lose by. On a branch where its sign is fixed it loses
nothing, and the smallest bound of all branches holds for the whole box. Leaves below the wanted margin are split and
bounded again with optimized slopes and cuts, and with multipliers for the signs that are fixed (beta-CROWN; Wang et
al., 2021; Bunel et al., 2020). It can be stopped at any time; what is proved stays proved.

Which activation to split: the linear bound of a leaf has its minimum at a corner x* of the box. What the network
really gives there exceeds the bound by what each relaxation loses at x*; the largest loss is split. The margin at x* is
also more than the smallest one there is, so no leaf is asked for more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Box, Rounding
from certibayes.bounds.cuts import Cuts, cut_layers, cut_values
from certibayes.bounds.linear import Boxes, LinearBounder, LinearFunction
from certibayes.bounds.optimize import HULL_STEPS, MOST_CUTS, ascend, start_relaxation
from certibayes.bounds.optimize import STEPS as ALPHA_STEPS
from certibayes.bounds.relaxation import Relaxation
from certibayes.certification.clock import Ended, never
from certibayes.certification.network_bounds import MEMORY
from certibayes.networks import Graph, Node, Params
from certibayes.networks.graph import INPUT
from certibayes.networks.operations import (
    AdaptiveAvgPool2d,
    Add,
    AvgPool2d,
    BatchNorm,
    Conv2d,
    Divide,
    LeakyReLU,
    Linear,
    MaxPool2d,
    Multiply,
    Normalize,
    ReLU,
    Reshape,
    Shift,
    Sigmoid,
    Subtract,
    Tanh,
)
from certibayes.regions import lowest_point

STEPS = 20
"""Of gradient ascent on slopes, cuts and multipliers, for each new leaf."""

LEAVES = 32
"""Leaves bounded at once on a CPU: their cuts should stay in its cache."""

LEAVES_ON_GPU = 256

COPIES = 90
"""About how many numbers the ascent on a leaf holds for each value of the network: slopes, their moments and gradients,
and coefficients of the backward pass."""

COPIES_OF_CUTS = 20
"""The same for each coefficient of a cut."""


class Root(NamedTuple):
    """How roots are bounded, before anything is split: whether with cuts, and how many steps of ascent."""

    hull: bool
    steps: int


ROOTS = {"crown": Root(False, 0), "alpha-crown": Root(False, ALPHA_STEPS), "hull": Root(True, HULL_STEPS)}

LINEAR = (
    AdaptiveAvgPool2d, Add, AvgPool2d, BatchNorm, Conv2d, Divide, Linear, Multiply, Normalize, Reshape, Shift, Subtract,
)  # fmt: skip
"""Operations whose backward rules need to know of their input only how large it can be."""

CLOSE = 0.01
"""How close to the smallest margin that was found a bound has to come, where the wanted margin is out of reach."""


class Leaves(NamedTuple):
    """Leaves of the trees of all problems.

    Attributes:
        problem: which problem each belongs to, (L,).
        signs: of the activations that are fixed, int8 (L, H); 0 where both are possible.
        bound: lower bound on the margin, float64 (L,).
        choice: activation to split next, (L,).
        loss: what its relaxation loses, (L,); 0 where nothing is left to split.
        found: margin of the network itself at the corner where the bound is smallest, (L,).
    """

    problem: Tensor
    signs: Tensor
    bound: Tensor
    choice: Tensor
    loss: Tensor
    found: Tensor

    def take(self, which: Tensor) -> Leaves:
        """Return some of the leaves."""
        return Leaves(*(column[which] for column in self))


class Grown(NamedTuple):
    """Leaves that were bounded, the corner of the box where the bound of each is smallest, and for roots A and d."""

    leaves: Leaves
    corner: Tensor
    function: LinearFunction | None = None


class Trees(NamedTuple):
    """What a search knows about its P problems so far.

    Attributes:
        known: lower bounds that were known before, float64 (P,).
        leaves: of all trees.
        smallest: smallest margin that the network was seen to have, float64 (P,); infinite where it was not looked at.
        worst_inputs: where, (P, *input_shape).
        coefficients: A of a linear function of the input below the margin, A x + d, (P, *input_shape).
        offsets: d, float64 (P,).
    """

    known: Tensor
    leaves: Leaves
    smallest: Tensor
    worst_inputs: Tensor
    coefficients: Tensor
    offsets: Tensor

    @property
    def bounds(self) -> Tensor:
        """Best known lower bound of each problem, float64 (P,)."""
        worst = torch.full_like(self.known, torch.inf)
        worst = worst.scatter_reduce(0, self.leaves.problem, self.leaves.bound, "amin")
        return torch.maximum(self.known, worst)

    def open(self, wanted: Tensor) -> Tensor:
        """Tell which leaves have to be split for margins that are ``wanted`` of each problem, (P,)."""
        target = torch.minimum(wanted, self.smallest - CLOSE)
        return (self.leaves.bound < target[self.leaves.problem]) & (self.leaves.loss > 0)

    def with_inputs(self, problem: Tensor, found: Tensor, inputs: Tensor) -> Trees:
        """Record what the network gives at some inputs, (L, *input_shape)."""
        smallest = self.smallest.scatter_reduce(0, problem, found, "amin")
        closest = (found == smallest[problem]).nonzero().squeeze(-1)
        worst = self.worst_inputs.clone()
        worst[problem[closest]] = inputs[closest]
        return self._replace(smallest=smallest, worst_inputs=worst)

    def with_functions(self, problem: Tensor, function: LinearFunction) -> Trees:
        """Record linear functions (L, 1, *input_shape) below the margins of some problems, (L,), none twice."""
        # One that is no number says nothing, and the constant that was known before still holds.
        found, offset = (part[:, 0] for part in function)
        is_number = torch.isfinite(found.flatten(1)).all(1) & torch.isfinite(offset)
        coefficients, offsets = self.coefficients.clone(), self.offsets.clone()
        coefficients[problem[is_number]], offsets[problem[is_number]] = found[is_number], offset[is_number]
        return self._replace(coefficients=coefficients, offsets=offsets)


@dataclass(frozen=True)
class Search:
    """Problems of one network: what is asked; what is found is in ``Trees``.

    Attributes:
        graph: the network.
        params: its parameters and buffers.
        boxes: of every node for every point, (B, ...), from ``layer_boxes``.
        point: whose boxes each problem has, (P,).
        specification: coefficients of each problem's margin on the outputs, (P, 1, *output_shape).
        rounding: of the program that runs.
        memory: bytes for the leaves that are bounded at once.
    """

    graph: Graph
    params: Params
    boxes: Boxes
    point: Tensor
    specification: Tensor
    rounding: Rounding
    memory: int = MEMORY

    @cached_property
    def relus(self) -> list[Node]:
        """The activations that may be split."""
        return _splittable(self.graph)

    @cached_property
    def unit_counts(self) -> list[int]:
        """How many units each of them has; H in all."""
        return [torch.Size(node.shape).numel() for node in self.relus]

    def begin(self, known: Tensor, bounds: str, ended: Ended = never) -> Trees:
        """Bound the roots.

        Args:
            known: lower bounds that are known already, float64 (P,).
            bounds: one of ``ROOTS``.
            ended: tells when to stop; what is not bounded by then keeps its known bound.
        """
        count, device = len(known), known.device
        signs = torch.zeros(count, sum(self.unit_counts), dtype=torch.int8, device=device)
        roots, nothing = torch.arange(count, device=device), torch.zeros_like(known)
        unseen = torch.full_like(known, torch.inf)
        leaves = Leaves(roots, signs, known, torch.zeros_like(roots), nothing, unseen)
        middle = self.boxes[INPUT].center[self.point]
        trees = Trees(known, leaves, unseen, middle, torch.zeros_like(middle), known)
        return self._in_parts(trees, leaves, lambda part: self._root(part, ROOTS[bounds]), ended)

    def advance(self, trees: Trees, wanted: Tensor, ended: Ended = never) -> Trees:
        """Split every leaf once that is open for margins ``wanted`` of each problem, (P,), as long as there is time."""
        chosen = trees.open(wanted)
        if not bool(chosen.any()):
            return trees
        grown = self._in_parts(trees, trees.leaves.take(chosen), self._children, ended, children=2)
        return grown._replace(leaves=_joined([trees.leaves.take(~chosen), grown.leaves]))

    def _in_parts(
        self, trees: Trees, leaves: Leaves, work: Callable[[Leaves], Grown], ended: Ended, children: int = 1
    ) -> Trees:
        """Return what is known after some work on leaves, as many at once as is good; they become its leaves."""
        most = LEAVES_ON_GPU if trees.known.is_cuda else LEAVES
        at_once = max(1, min(most, self.memory // (children * self._bytes_of_leaf)))
        done = []
        for part in torch.arange(len(leaves.problem), device=trees.known.device).split(at_once):
            some = leaves.take(part)
            if ended():
                done.append(some)
                continue
            grown = work(some)
            done.append(grown.leaves)
            trees = trees.with_inputs(grown.leaves.problem, grown.leaves.found, grown.corner)
            if grown.function is not None:
                trees = trees.with_functions(some.problem, grown.function)
        return trees._replace(leaves=_joined(done))

    @property
    def _bytes_of_leaf(self) -> int:
        """About what the ascent on one leaf takes: its choices, moments and slopes, and a backward pass."""
        values = sum(torch.Size(node.shape).numel() for node in self.graph.nodes)
        fed = [layer.weights(self.params)["weight"].shape[1] for layer in cut_layers(self.graph).values()]
        return self.specification.element_size() * (COPIES * values + COPIES_OF_CUTS * MOST_CUTS * sum(fed))

    def _root(self, leaves: Leaves, how: Root) -> Grown:
        """Bound roots, and find the linear functions below their margins."""
        bounder, specification = self._bounder(leaves), self.specification[leaves.problem]
        chosen = ascend(bounder, specification, start_relaxation(bounder, specification, how.hull, {}), how.steps)
        return self._bounded(bounder, leaves, chosen)._replace(function=bounder.function(specification, chosen))

    def _children(self, leaves: Leaves) -> Grown:
        """Bound the two children of every leaf."""
        both = []
        for sign in (1, -1):
            signs = leaves.signs.clone()
            signs.scatter_(1, leaves.choice[:, None], torch.full_like(leaves.signs[:, :1], sign))
            both.append(leaves._replace(signs=signs))
        return self.with_signs(_joined(both))

    def with_signs(self, leaves: Leaves) -> Grown:
        """Bound leaves on the part of the box where their fixed activations have their signs."""
        bounder, specification = self._bounder(leaves), self.specification[leaves.problem]
        fixed = {name: sign[:, None].to(specification.dtype) for name, sign in self._by_node(leaves.signs).items()}
        chosen = ascend(bounder, specification, start_relaxation(bounder, specification, True, fixed), STEPS)
        return self._bounded(bounder, leaves, chosen)

    def _bounder(self, leaves: Leaves) -> LinearBounder:
        boxes = self.boxes_of(leaves.problem, leaves.signs)
        return LinearBounder(self.graph, self.params, boxes, self.rounding)

    def _bounded(self, bounder: LinearBounder, leaves: Leaves, chosen: Relaxation) -> Grown:
        """Bound leaves, whose own bounds hold already, with a relaxation that was chosen for them."""
        lower, coefficients = bounder.lower_with_coefficients(self.specification[leaves.problem], chosen)
        on = {name: c[:, 0] for name, c in coefficients.items()}
        corner = lowest_point(on[INPUT], bounder.boxes[INPUT])
        losses, found = self._losses(corner, bounder, leaves, on, chosen)
        # Without activations to split there is no largest loss.
        loss, choice = losses.max(1) if self.relus else (torch.zeros_like(found), torch.zeros_like(leaves.problem))
        # A bound that is no number says nothing, and what held before still holds.
        bound = torch.maximum(torch.where(torch.isfinite(lower[:, 0]), lower[:, 0], -torch.inf), leaves.bound)
        return Grown(leaves._replace(bound=bound, choice=choice, loss=loss, found=found), corner)

    def _by_node(self, flat: Tensor) -> dict[str, Tensor]:
        """Cut (L, H) into (L, *shape) for each ReLU."""
        parts = flat.split(self.unit_counts, 1)
        return {node.name: part.view(-1, *node.shape) for node, part in zip(self.relus, parts, strict=True)}

    def boxes_of(self, problem: Tensor, signs: Tensor) -> Boxes:
        """Boxes of each leaf, with the inputs of its fixed activations cut to their sign."""
        boxes = {name: box.take(self.point[problem]) for name, box in self.boxes.items()}
        unit, smallest = self.rounding.unit, torch.finfo(self.specification.dtype).smallest_normal
        for node in self.relus:
            sign = self._by_node(signs)[node.name]
            box = boxes[node.inputs[0]]
            # Moved outwards by what the arithmetic here can lose.
            pad = (box.center.abs() + box.radius) * (8 * unit)
            low, high = box.center - box.radius - pad, box.center + box.radius + pad
            # Rounding must not push a cut interval over zero again, or the activation would count as unstable. It is
            # kept a few units clear of it; on its side ReLU is linear up to zero, so nothing is lost by that.
            # An end that is not subnormal can be halved.
            far = torch.where(sign > 0, high.clamp(min=0) + 4 * smallest, low.clamp(max=0) - 4 * smallest)
            end = far * (0.5 + 16 * unit)
            boxes[node.inputs[0]] = Box(
                torch.where(sign == 0, box.center, end),
                torch.where(sign == 0, box.radius, end.abs() * (1 - 16 * unit)),
            )
        return boxes

    def _losses(
        self,
        corner: Tensor,
        bounder: LinearBounder,
        leaves: Leaves,
        coefficients: dict[str, Tensor],
        chosen: Relaxation,
    ) -> tuple[Tensor, Tensor]:
        """Return what each relaxation loses at a corner, (L, H), and the margin of the network there, (L,)."""
        boxes, specification, slopes = bounder.boxes, self.specification[leaves.problem], chosen.slopes
        assert not isinstance(slopes, str)
        values: dict[str, Tensor] = {INPUT: corner}

        def remember(node: Node, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            values[node.name] = output
            return output

        outputs = self.graph.evaluate(self.params, corner, remember)
        margin = (outputs[:, None] * specification).flatten(1).sum(1)
        losses = [corner.new_zeros(len(corner), 0)]
        for node in self.relus:
            z, c, box = values[node.inputs[0]], coefficients[node.name], boxes[node.inputs[0]]
            low, high = box.center - box.radius, box.center + box.radius
            above = (high / (high - low).clamp(min=1e-30)) * (z - low)
            if node.name in chosen.cuts:
                above = self._under_cuts(above, node, chosen.cuts[node.name], boxes, values)
            line = torch.where(c > 0, slopes[node.name][:, 0] * z, above)
            loss = c * (z.clamp(min=0) - line)
            losses.append(torch.where((low < 0) & (high > 0), loss, torch.zeros_like(loss)).flatten(1))
        return torch.cat(losses, 1).masked_fill(leaves.signs != 0, 0.0).clamp(min=0.0), margin.double()

    def _under_cuts(self, above: Tensor, node: Node, cuts: Cuts, boxes: Boxes, values: dict[str, Tensor]) -> Tensor:
        """Put the values of cuts, where there are any, into upper bounds of units, (L, H)."""
        source = next(other for other in self.graph.nodes if other.name == node.inputs[0])
        fed = source.inputs[0]
        at = cut_values(cuts, source.weights(self.params), boxes[fed], values[fed])
        units, in_use = cuts.units[:, 0], cuts.in_use[:, 0]
        return above.scatter(1, units, torch.where(in_use, at[:, 0], above.gather(1, units)))


def _splittable(graph: Graph) -> list[Node]:
    """Return the ReLU nodes whose input may be cut to a sign.

    A cut interval stays a few units clear of zero. That is nothing to ReLUs, which are linear up to zero, and nothing
    to linear layers; any other operation that reads the same values would be bounded on too small an interval.
    """
    harmless = (ReLU, LeakyReLU, *LINEAR)
    read_otherwise = {name for node in graph.nodes if not isinstance(node.operation, harmless) for name in node.inputs}
    # Whoever makes the values is shown the cut interval as its output; of operations from elsewhere nothing is known.
    familiar = (*harmless, MaxPool2d, Sigmoid, Tanh)
    may_be_cut = {node.name for node in graph.nodes if isinstance(node.operation, familiar)} | {INPUT}
    may_be_cut -= read_otherwise
    return [node for node in graph.nodes if isinstance(node.operation, ReLU) and node.inputs[0] in may_be_cut]


def _joined(parts: list[Leaves]) -> Leaves:
    return Leaves(*(torch.cat(column) for column in zip(*parts, strict=True)))
