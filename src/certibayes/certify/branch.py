"""Branch and bound on unstable activations: margins of single networks, tighter the more time there is.

A ReLU whose input may have either sign is what linear bounds lose by. On a branch where its sign is fixed it loses
nothing, and the smallest bound of all branches holds for the whole box. Leaves below the wanted margin are split and
bounded again with optimised slopes and planes, and with multipliers for the signs that are fixed (beta-CROWN; Wang et
al., 2021; Bunel et al., 2020). It can be stopped at any time; what is proved stays proved.

Which activation to split: the linear bound of a leaf has its minimum at a corner x* of the box. What the network
really gives there exceeds the bound by what each relaxation loses at x*; the largest loss is split. The margin at x* is
also more than the smallest one there is, so no leaf is asked for more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Box, Rounding
from certibayes.bounds.linear import Boxes, linear_line
from certibayes.bounds.optimise import HULL_STEPS, MOST_PLANES, Relaxation, ascend, begin, bound_with
from certibayes.bounds.optimise import STEPS as ALPHA_STEPS
from certibayes.bounds.planes import Planes, plane_values, planed_layers
from certibayes.certify.network_bounds import MEMORY
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
"""Of gradient ascent on slopes, planes and multipliers, for each new leaf."""

LEAVES = 32
"""Leaves bounded at once on a CPU: their planes should stay in its cache."""

LEAVES_ON_GPU = 256

COPIES = 90
"""About how many numbers the ascent on a leaf holds for each value of the network: slopes, their moments and gradients,
and coefficients on the way back."""

COPIES_OF_SHARES = 20
"""The same for each share of a plane."""


class Method(NamedTuple):
    """How roots are bounded, before anything is split: whether with planes, and how many steps of ascent."""

    hull: bool
    steps: int


METHODS = {"crown": Method(False, 0), "alpha-crown": Method(False, ALPHA_STEPS), "hull": Method(True, HULL_STEPS)}

LINEAR = (
    AdaptiveAvgPool2d, Add, AvgPool2d, BatchNorm, Conv2d, Divide, Linear, Multiply, Normalize, Reshape, Shift, Subtract,
)  # fmt: skip
"""Operations that, going back, ask of what they take in only how large it can be."""

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


@dataclass
class Search:
    """The trees of several problems for one network.

    Attributes:
        graph: the network.
        params: its parameters and buffers.
        boxes: of every node for every point, (B, ...), from ``layer_boxes``.
        point: whose boxes each problem has, (P,).
        specification: coefficients of each problem's margin on the outputs, (P, 1, *output_shape).
        rounding: of the program that runs.
        known: lower bounds that are known already, float64 (P,).
        method: one of ``METHODS``, for the roots.
        ended: tells when to stop; what is not bounded by then keeps its known bound.
        memory: bytes for the leaves that are bounded at once.
    """

    graph: Graph
    params: Params
    boxes: Boxes
    point: Tensor
    specification: Tensor
    rounding: Rounding
    known: Tensor
    method: str = "hull"
    ended: Callable[[], bool] = lambda: False
    memory: int = MEMORY

    def __post_init__(self) -> None:
        self.relus = _splittable(self.graph)
        self.sizes = [torch.Size(node.shape).numel() for node in self.relus]
        count, device = len(self.known), self.known.device
        signs = torch.zeros(count, sum(self.sizes), dtype=torch.int8, device=device)
        roots = torch.arange(count, device=device)
        self.smallest_found = torch.full_like(self.known, torch.inf)
        self.worst_inputs = self.boxes[INPUT].centre[self.point]
        # Linear functions of the input that bound the margins of the roots.
        self.line_coefficients, self.line_offsets = torch.zeros_like(self.worst_inputs), self.known.clone()
        nothing = torch.zeros_like(self.known)
        unknown = Leaves(roots, signs, self.known, torch.zeros_like(roots), nothing, self.smallest_found)
        self.leaves = self._in_parts(unknown, lambda part: self._bounded(part.problem, part.signs, part.bound, True))

    @property
    def bounds(self) -> Tensor:
        """Best known lower bound of each problem, float64 (P,)."""
        worst = torch.full_like(self.known, torch.inf)
        worst = worst.scatter_reduce(0, self.leaves.problem, self.leaves.bound, "amin")
        return torch.maximum(self.known, worst)

    def open(self, wanted: Tensor) -> Tensor:
        """Tell which leaves have to be split for margins that are ``wanted`` of each problem, (P,)."""
        target = torch.minimum(wanted, self.smallest_found - CLOSE)
        return (self.leaves.bound < target[self.leaves.problem]) & (self.leaves.loss > 0)

    def advance(self, wanted: Tensor, ended: Callable[[], bool] = lambda: False) -> None:
        """Split every open leaf once, or as many as there is time for."""
        self.ended = ended
        chosen = self.open(wanted)
        if not bool(chosen.any()):
            return
        grown = self._in_parts(self.leaves.take(chosen), self._split, children=2)
        self.leaves = _joined([self.leaves.take(~chosen), grown])

    def _in_parts(self, leaves: Leaves, work: Callable[[Leaves], Leaves], children: int = 1) -> Leaves:
        """Do some work on all leaves, as many at once as is good, until time is over."""
        most = LEAVES_ON_GPU if self.known.is_cuda else LEAVES
        at_once = max(1, min(most, self.memory // (children * self._bytes_of_leaf)))
        parts = torch.arange(len(leaves.problem), device=self.known.device).split(at_once)
        return _joined([leaves.take(part) if self.ended() else work(leaves.take(part)) for part in parts])

    @property
    def _bytes_of_leaf(self) -> int:
        """About what the ascent on one leaf takes: what it is free to choose, moments and slopes, and a way back."""
        values = sum(torch.Size(node.shape).numel() for node in self.graph.nodes)
        fed = [layer.weights(self.params)["weight"].shape[1] for layer in planed_layers(self.graph).values()]
        return self.specification.element_size() * (COPIES * values + COPIES_OF_SHARES * MOST_PLANES * sum(fed))

    def _split(self, leaves: Leaves) -> Leaves:
        """Return the two children of every leaf."""
        both = []
        for sign in (1, -1):
            signs = leaves.signs.clone()
            signs.scatter_(1, leaves.choice[:, None], torch.full_like(leaves.signs[:, :1], sign))
            both.append(signs)
        return self._bounded(leaves.problem.repeat(2), torch.cat(both), leaves.bound.repeat(2))

    def _bounded(self, problem: Tensor, signs: Tensor, known: Tensor, is_root: bool = False) -> Leaves:
        """Bound leaves with an optimised relaxation; ``known`` are bounds that hold for them already."""
        boxes, specification = self._boxes(problem, signs), self.specification[problem]
        sign = {name: s[:, None].to(specification.dtype) for name, s in self._by_node(signs).items()}
        sign = {} if is_root else sign
        network = self.graph, self.params, boxes, specification
        hull, steps = METHODS[self.method] if is_root else Method(True, STEPS)
        chosen = ascend(*network, begin(*network, hull, sign), sign, steps)
        coefficients: dict[str, Tensor] = {}
        bound = bound_with(
            chosen, *network, self.rounding, sign, observe=lambda name, c: coefficients.update({name: c[:, 0]})
        )[:, 0]
        if is_root:
            line, offset = linear_line(*network, self.rounding, chosen.slopes, planes=chosen.planes)
            self.line_coefficients[problem], self.line_offsets[problem] = line[:, 0], offset[:, 0]
        corner = lowest_point(coefficients[INPUT], boxes[INPUT])
        losses, found = self._losses(corner, boxes, specification, coefficients, chosen, signs)
        # Without activations to split there is no largest loss.
        loss, choice = losses.max(1) if self.relus else (torch.zeros_like(found), torch.zeros_like(problem))
        self.smallest_found = self.smallest_found.scatter_reduce(0, problem, found, "amin")
        closest = (found == self.smallest_found[problem]).nonzero().squeeze(-1)
        self.worst_inputs[problem[closest]] = corner[closest]
        return Leaves(problem, signs, torch.maximum(bound, known), choice, loss, found)

    def _by_node(self, flat: Tensor) -> dict[str, Tensor]:
        """Cut (L, H) into (L, *shape) for each ReLU."""
        parts = flat.split(self.sizes, 1)
        return {node.name: part.view(-1, *node.shape) for node, part in zip(self.relus, parts, strict=True)}

    def _boxes(self, problem: Tensor, signs: Tensor) -> Boxes:
        """Boxes of each leaf, with the inputs of its fixed activations cut to their sign."""
        boxes = {name: box.take(self.point[problem]) for name, box in self.boxes.items()}
        unit, smallest = self.rounding.unit, torch.finfo(self.specification.dtype).smallest_normal
        for node in self.relus:
            sign = self._by_node(signs)[node.name]
            box = boxes[node.inputs[0]]
            # Moved outwards by what the arithmetic here can lose.
            pad = (box.centre.abs() + box.radius) * (8 * unit)
            low, high = box.centre - box.radius - pad, box.centre + box.radius + pad
            # Rounding must not push a cut interval over zero again, or the activation would count as unstable. It is
            # kept a few units clear of it; on its side ReLU is linear up to zero, so nothing is lost by that.
            # An end that is not subnormal can be halved.
            far = torch.where(sign > 0, high.clamp(min=0) + 4 * smallest, low.clamp(max=0) - 4 * smallest)
            end = far * (0.5 + 16 * unit)
            boxes[node.inputs[0]] = Box(
                torch.where(sign == 0, box.centre, end),
                torch.where(sign == 0, box.radius, end.abs() * (1 - 16 * unit)),
            )
        return boxes

    def _losses(
        self,
        corner: Tensor,
        boxes: Boxes,
        specification: Tensor,
        coefficients: dict[str, Tensor],
        chosen: Relaxation,
        signs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return what each relaxation loses at a corner, (L, H), and the margin of the network there, (L,)."""
        values: dict[str, Tensor] = {INPUT: corner}

        def remember(node: Node, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            values[node.name] = output
            return output

        outputs = self.graph.evaluate(self.params, corner, remember)
        margin = (outputs[:, None] * specification).flatten(1).sum(1)
        losses = [corner.new_zeros(len(corner), 0)]
        for node in self.relus:
            z, c, box = values[node.inputs[0]], coefficients[node.name], boxes[node.inputs[0]]
            low, high = box.centre - box.radius, box.centre + box.radius
            above = (high / (high - low).clamp(min=1e-30)) * (z - low)
            if node.name in chosen.planes:
                above = self._under_planes(above, node, chosen.planes[node.name], boxes, values)
            line = torch.where(c > 0, chosen.slopes[node.name][:, 0] * z, above)
            loss = c * (z.clamp(min=0) - line)
            losses.append(torch.where((low < 0) & (high > 0), loss, torch.zeros_like(loss)).flatten(1))
        return torch.cat(losses, 1).masked_fill(signs != 0, 0.0).clamp(min=0.0), margin.double()

    def _under_planes(
        self, above: Tensor, node: Node, planes: Planes, boxes: Boxes, values: dict[str, Tensor]
    ) -> Tensor:
        """Put the values of planes, where there are any, into upper bounds of units, (L, H)."""
        source = next(other for other in self.graph.nodes if other.name == node.inputs[0])
        fed = source.inputs[0]
        at = plane_values(planes, source.weights(self.params), boxes[fed], values[fed])
        units, in_use = planes.units[:, 0], planes.in_use[:, 0]
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
