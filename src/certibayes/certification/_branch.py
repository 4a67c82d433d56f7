"""Branch and bound on unstable activations: margins of single networks, tighter the more time there is.

A ReLU whose input may have either sign is what linear bounds lose by. On a branch where its sign is fixed it loses
nothing, and the smallest bound of all branches holds for the whole box. Leaves below the wanted margin are split and
bounded again with optimized slopes, and with multipliers for the signs that are fixed (beta-CROWN; Wang et al., 2021;
Bunel et al., 2020); in dense networks with cuts as well. A leaf begins with the boxes of the layers that the root has,
the inputs of its fixed activations cut to their sign, and with the slopes and multipliers of its parent. It can be
stopped at any time; what is proved stays proved.

Any slopes in [0, 1] and multipliers >= 0 are sound, so they are found in any arithmetic; what counts is the bound that
they give in the rounding of the program, by one more backward pass. Which activation to split: see
``certification._branching``. The margin at the corner where a bound is smallest is more than the smallest one there is,
so no leaf is asked for more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import IDEAL, Box, Rounding
from certibayes.bounds.cuts import cut_layers
from certibayes.bounds.linear import Boxes, LinearBounder, LinearFunction
from certibayes.bounds.optimize import HULL_STEPS, MOST_CUTS, ascend, start_relaxation
from certibayes.bounds.optimize import STEPS as ALPHA_STEPS
from certibayes.bounds.relaxation import Relaxation, Slopes
from certibayes.bounds.slopes import WORDS, better_start
from certibayes.certification._branching import BY_SCORE, best_of, scores_at
from certibayes.certification._joint import offset_beside
from certibayes.certification._leaves import LARGEST, Grown, Leaves, Start, Trees, joined
from certibayes.certification.clock import Ended, never
from certibayes.certification.network_bounds import MEMORY
from certibayes.networks import Graph, Node, Params
from certibayes.networks import operations as ops
from certibayes.networks.graph import INPUT
from certibayes.regions import lowest_point

STEPS = 20
"""Of gradient ascent on slopes, cuts and multipliers, for each new leaf with cuts, which begin as chords."""

STEPS_FROM_PARENT = 10
"""The same without cuts: slopes and multipliers are the parent's, and nearly right."""

RATE_FROM_PARENT = 0.25
"""How fast these move, as a fraction of the rates at the root."""

LEAVES = 32
"""Leaves split at once on a CPU: what is known of them should stay in its cache."""

LEAVES_ON_GPU = 4096

LEAST_KEPT = 1024
"""Leaves that are kept however little memory there is: of each there are but a sign and a variable for every unit."""

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
    ops.AdaptiveAvgPool2d, ops.Add, ops.AvgPool2d, ops.BatchNorm, ops.Concatenate, ops.Conv1d, ops.Conv2d,
    ops.ConvTranspose2d, ops.Divide, ops.Linear, ops.MatMul, ops.Mean, ops.Multiply, ops.Normalize, ops.Pad,
    ops.Permute, ops.Reshape, ops.Shift, ops.Slice, ops.Subtract, ops.Sum, ops.Upsample,
)  # fmt: skip
"""Operations whose backward rules need to know of their input only how large it can be."""


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
        memory: bytes for the leaves that are bounded at once, and as much again for those that are kept.
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

    @cached_property
    def has_cuts(self) -> bool:
        """Whether leaves have cuts: where every ReLU can. Beside convolutions they cost more than the splits saved."""
        relus = {node.name for node in self.graph.nodes if isinstance(node.operation, ops.ReLU)}
        return relus <= cut_layers(self.graph).keys()

    def begin(self, known: Tensor, bounds: str, ended: Ended = never, start: Start | None = None) -> Trees:
        """Bound the roots.

        Args:
            known: lower bounds that are known already, float64 (P,).
            bounds: one of ``ROOTS``.
            ended: tells when to stop; what is not bounded by then keeps its known bound.
            start: what was best for the same problems of a network much like this one; half the ascent is saved where
                it is known. Cuts begin as chords in any case.
        """
        count, device, units = len(known), known.device, sum(self.unit_counts)
        roots, nothing = torch.arange(count, device=device), torch.zeros_like(known)
        unseen = torch.full_like(known, torch.inf)
        leaves = Leaves(
            problem=roots,
            signs=torch.zeros(count, units, dtype=torch.int8, device=device),
            variables=torch.zeros(count, units, dtype=torch.float16, device=device),
            bound=known,
            offset=known,
            choices=torch.full((count, 2 * min(BY_SCORE, units)), -1, device=device),
            loss=nothing.to(self.specification.dtype),
            found=unseen,
        )
        middle = self.boxes[INPUT].center[self.point]
        trees = Trees(known, leaves, unseen, middle, torch.zeros_like(middle), nothing, nothing)
        start = None if self.has_cuts else start
        return self._in_parts(trees, leaves, lambda part: self._root(part, ROOTS[bounds], start), ended)

    def advance(
        self,
        trees: Trees,
        wanted: Tensor,
        ended: Ended = never,
        most: int | None = None,
        priority: Tensor | None = None,
    ) -> Trees:
        """Split leaves once that are open for margins ``wanted`` of each problem, (P,), as long as there is time.

        Args:
            trees: what is known.
            wanted: margins.
            ended: tells when to stop.
            most: leaves that are split, or None for all that are open.
            priority: of each problem, (P,): the leaves of the lowest come first.
        """
        chosen = trees.open(wanted)
        if not bool(chosen.any()):
            return trees
        target = trees.target(wanted)
        which = chosen.nonzero().squeeze(-1)
        if most is not None and len(which) > most:
            # The lowest bounds first, and then, stably, by problem.
            which = which[trees.leaves.bound[which].argsort()]
            if priority is not None:
                which = which[priority[trees.leaves.problem[which]].argsort(stable=True)]
            which = which[:most]
            chosen = torch.zeros_like(chosen).index_fill(0, which, True)
        some = trees.leaves.take(which)
        grown = self._in_parts(
            trees, some, lambda part: self._children(part, target, trees.coefficients), ended, children=2
        )
        return grown._replace(leaves=joined([trees.leaves.take(~chosen), grown.leaves]))

    def at_once(self, children: int = 2) -> int:
        """How many leaves with so many children each are bounded at once."""
        most = LEAVES_ON_GPU if self.specification.is_cuda else LEAVES
        return max(1, min(most, self.memory // (children * self._bytes_of_leaf)))

    def _most_leaves(self, searches: int) -> int:
        """How many leaves each of so many searches may keep."""
        # Signs and variables, and a copy while others are put beside them.
        return max(LEAST_KEPT, self.memory // searches // (2 * 3 * sum(self.unit_counts) + 128))

    def within_memory(self, trees: Trees, priority: Tensor, searches: int = 1) -> Trees:
        """Give up the problems of the highest priority number, (P,), until the leaves of the others can be kept.

        The memory is that of so many ``searches`` in all.
        """
        most = self._most_leaves(searches)
        if len(trees.leaves.problem) <= most:
            return trees
        counts = torch.bincount(trees.leaves.problem, minlength=len(priority))
        order = priority.argsort()
        # The first stays: it may have all the room that there is.
        too_many = counts[order].cumsum(0) > most // 2
        too_many[:1] = counts[order[:1]] > most
        return trees.closed(torch.zeros_like(too_many).index_put((order,), too_many))

    def _in_parts(
        self, trees: Trees, leaves: Leaves, work: Callable[[Leaves], Grown], ended: Ended, children: int = 1
    ) -> Trees:
        """Return what is known after some work on leaves, as many at once as is good; they become its leaves."""
        done = []
        for part in torch.arange(len(leaves.problem), device=trees.known.device).split(self.at_once(children)):
            some = leaves.take(part)
            if ended():
                done.append(some)
                continue
            grown = work(some)
            done.append(grown.leaves)
            trees = trees.with_inputs(grown.leaves.problem, grown.leaves.found, grown.corner)
            if grown.coefficients is not None:
                trees = trees.with_coefficients(some.problem, grown.coefficients)
            else:
                trees = trees.with_gains(grown.leaves.problem, some.bound.repeat(children), grown.leaves.bound)
        return trees._replace(leaves=joined(done))

    @property
    def _bytes_of_leaf(self) -> int:
        """About what the ascent on one leaf takes: its choices, moments and slopes, and a backward pass."""
        values = sum(torch.Size(node.shape).numel() for node in self.graph.nodes)
        fed = [layer.weights(self.params)["weight"].shape[1] for layer in cut_layers(self.graph).values()]
        cuts = COPIES_OF_CUTS * MOST_CUTS * sum(fed) if self.has_cuts else 0
        return self.specification.element_size() * (COPIES * values + cuts)

    def _root(self, leaves: Leaves, how: Root, before: Start | None) -> Grown:
        """Bound roots, and find the linear functions below their margins."""
        bounder, specification = self._bounder(leaves), self.specification[leaves.problem]
        start = start_relaxation(bounder, specification, how.hull and self.has_cuts, {})
        ideal = replace(bounder, rounding=IDEAL)
        zero, adaptive = (ideal.at_input(specification, Relaxation(word)) for word in WORDS)
        slopes, steps = better_start(bounder, zero, adaptive), how.steps
        if before is not None:
            other = self._relaxation(bounder, leaves._replace(variables=before.variables[leaves.problem]))
            better = ideal.at_input(specification, other) > torch.maximum(zero, adaptive)
            slopes = _where(better, other.slopes, slopes)
            steps = (steps + 1) // 2 if bool(before.is_known[leaves.problem].all()) else steps
        chosen = ascend(bounder, specification, replace(start, slopes=slopes), steps)
        grown, (coefficients, offset) = self._bounded(bounder, leaves, chosen)
        # One that is no number says nothing; the known bound is the offset of A = 0.
        is_number = torch.isfinite(coefficients.flatten(1)).all(1) & torch.isfinite(offset)
        offset = torch.where(is_number, offset, leaves.offset)
        coefficients = coefficients.masked_fill(~is_number.view(-1, *[1] * (coefficients.dim() - 1)), 0.0)
        return Grown(grown.leaves._replace(offset=offset), grown.corner, coefficients)

    def _children(self, leaves: Leaves, target: Tensor, coefficients: Tensor) -> Grown:
        """Bound the two children of every leaf."""
        choice = self._choice(leaves, target[leaves.problem])
        return self.with_signs(joined([_with_sign(leaves, choice, sign) for sign in (1, -1)]), coefficients)

    def _choice(self, leaves: Leaves, target: Tensor) -> Tensor:
        """Return the activation to split in each leaf, (L,), by a look at the children of all candidates."""
        children = []
        for choice in leaves.choices.unbind(1):
            both = joined([_with_sign(leaves, choice.clamp(min=0), sign) for sign in (1, -1)])
            bounder = replace(self._bounder(both), rounding=IDEAL)
            found = bounder.at_input(self.specification[both.problem], self._relaxation(bounder, both))
            children.append(found.view(2, -1).T)
        return best_of(torch.stack(children, 1), leaves.bound, target, leaves.choices)

    def with_signs(self, leaves: Leaves, coefficients: Tensor) -> Grown:
        """Bound leaves on the part of the box where their fixed activations have their signs.

        Args:
            leaves: what is known of them.
            coefficients: A of every problem, (P, *input_shape).
        """
        bounder, specification = self._bounder(leaves), self.specification[leaves.problem]
        start = self._relaxation(bounder, leaves, hull=self.has_cuts)
        if self.has_cuts:
            chosen = ascend(bounder, specification, start, STEPS)
        else:
            chosen = ascend(bounder, specification, start, STEPS_FROM_PARENT, RATE_FROM_PARENT)
        grown, own = self._bounded(bounder, leaves, chosen)
        offset = offset_beside(own, coefficients[leaves.problem], bounder.boxes[INPUT])
        return grown._replace(leaves=grown.leaves._replace(offset=_raised(leaves.offset, offset)))

    def _relaxation(self, bounder: LinearBounder, leaves: Leaves, hull: bool = False) -> Relaxation:
        """Return the relaxation of leaves that their variables are of."""
        specification, variables = self.specification[leaves.problem], self._by_node(leaves.variables)
        signs = {name: sign[:, None].to(specification) for name, sign in self._by_node(leaves.signs).items()}
        start = start_relaxation(bounder, specification, hull, signs)
        assert not isinstance(start.slopes, str)
        values = {name: value[:, None].to(specification).clamp(min=0.0) for name, value in variables.items()}
        return replace(
            start,
            slopes={**start.slopes, **{name: value.clamp(max=1.0) for name, value in values.items()}},
            multipliers={name: value * signs[name].abs() for name, value in values.items()},
        )

    def _bounder(self, leaves: Leaves) -> LinearBounder:
        boxes = self.boxes_of(leaves.problem, leaves.signs)
        return LinearBounder(self.graph, self.params, boxes, self.rounding)

    def _bounded(self, bounder: LinearBounder, leaves: Leaves, chosen: Relaxation) -> tuple[Grown, LinearFunction]:
        """Bound leaves, whose own bounds hold already, with a relaxation that was chosen for them.

        Returns:
            The leaves, all but their offsets, and the linear functions below their margins, (L, *input_shape).
        """
        specification = self.specification[leaves.problem]
        lower, on_nodes, function = bounder.lower_with_coefficients(specification, chosen)
        on = {name: c[:, 0] for name, c in on_nodes.items()}
        corner = lowest_point(on[INPUT], bounder.boxes[INPUT])
        scores = scores_at(corner, bounder, self.relus, specification, leaves.signs, on, chosen)
        grown = leaves._replace(
            bound=_raised(leaves.bound, lower[:, 0]),
            variables=self._variables(leaves, chosen),
            choices=scores.candidates,
            loss=scores.loss,
            found=scores.margin,
        )
        return Grown(grown, corner), LinearFunction(on[INPUT], function.offset[:, 0])

    def _variables(self, leaves: Leaves, chosen: Relaxation) -> Tensor:
        """Return the slopes of a relaxation, and the multipliers where signs are fixed, in half precision, (L, H)."""
        assert not isinstance(chosen.slopes, str)
        parts = [leaves.variables[:, :0]]
        for name, sign in self._by_node(leaves.signs).items():
            value = chosen.slopes[name][:, 0]
            if name in chosen.multipliers:
                value = torch.where(sign == 0, value, chosen.multipliers[name][:, 0].clamp(max=LARGEST))
            parts.append(torch.nan_to_num(value).to(torch.float16).flatten(1))
        return torch.cat(parts, 1)

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


def _splittable(graph: Graph) -> list[Node]:
    """Return the ReLU nodes whose input may be cut to a sign.

    A cut interval stays a few units clear of zero. That is nothing to ReLUs, which are linear up to zero, and nothing
    to linear layers; any other operation that reads the same values would be bounded on too small an interval.
    """
    harmless = (ops.ReLU, ops.LeakyReLU, *LINEAR)
    read_otherwise = {name for node in graph.nodes if not isinstance(node.operation, harmless) for name in node.inputs}
    # Whoever makes the values is shown the cut interval as its output; of operations from elsewhere nothing is known.
    familiar = (*harmless, ops.MaxPool2d, ops.Sigmoid, ops.Tanh)
    may_be_cut = {node.name for node in graph.nodes if isinstance(node.operation, familiar)} | {INPUT}
    may_be_cut -= read_otherwise
    return [node for node in graph.nodes if isinstance(node.operation, ops.ReLU) and node.inputs[0] in may_be_cut]


def _where(better: Tensor, one: Slopes, other: Slopes) -> dict[str, Tensor]:
    """Take the slopes of the better of two relaxations for each quantity, (B, S)."""
    assert not isinstance(one, str) and not isinstance(other, str)
    return {
        name: torch.where(better.view(*better.shape, *[1] * (value.dim() - 2)), one[name], value)
        for name, value in other.items()
    }


def _raised(known: Tensor, found: Tensor) -> Tensor:
    """Return the better of two lower bounds. One that is no number says nothing, and what held before still holds."""
    return torch.maximum(torch.where(torch.isfinite(found), found, -torch.inf), known)


def _with_sign(leaves: Leaves, choice: Tensor, sign: int) -> Leaves:
    """Return leaves with one more activation of each, (L,), fixed to a sign, and its multiplier at 0."""
    place = choice[:, None]
    return leaves._replace(
        signs=leaves.signs.scatter(1, place, torch.full_like(leaves.signs[:, :1], sign)),
        variables=leaves.variables.scatter(1, place, torch.zeros_like(leaves.variables[:, :1])),
    )
