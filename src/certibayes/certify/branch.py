"""Branch and bound on unstable activations: margins of single networks, tighter the more time there is.

A ReLU whose input may have either sign is what linear bounds lose by. On a branch where its sign is fixed it loses
nothing, and the smallest bound of all branches holds for the whole box. Leaves below the wanted margin are split and
bounded again with optimised slopes, and with multipliers for the signs that are fixed (beta-CROWN; Wang et al., 2021;
Bunel et al., 2020). It can be stopped at any time; what is proved stays proved.

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

from certibayes.bounds import IDEAL, Box, Rounding, linear_lower
from certibayes.bounds.cut import lowest_point
from certibayes.bounds.linear import Boxes
from certibayes.networks import Graph, Node, Params
from certibayes.networks.graph import INPUT
from certibayes.networks.operations import ReLU

STEPS = 8
"""Of gradient ascent on slopes and multipliers, for each new leaf."""

RATES = (0.4, 0.2)
"""Of Adam, for slopes and for multipliers."""

LEAVES = 2048
"""Leaves bounded at once."""

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
        boxes: of every node for every problem, (P, ...), from ``layer_boxes``.
        specification: coefficients of each problem's margin on the outputs, (P, 1, *output_shape).
        rounding: of the program that runs.
        wanted: margin at which a problem needs no further work.
        bounds: best known lower bound of each problem, float64 (P,).
    """

    graph: Graph
    params: Params
    boxes: Boxes
    specification: Tensor
    rounding: Rounding
    wanted: float
    bounds: Tensor

    def __post_init__(self) -> None:
        self.relus = [node for node in self.graph.nodes if isinstance(node.operation, ReLU)]
        self.sizes = [torch.Size(node.shape).numel() for node in self.relus]
        count, device = len(self.bounds), self.bounds.device
        signs = torch.zeros(count, sum(self.sizes), dtype=torch.int8, device=device)
        roots = torch.arange(count, device=device)
        self.smallest_found = torch.full_like(self.bounds, torch.inf)
        self.frozen = torch.full_like(self.bounds, torch.inf)
        self.worst_inputs = self.boxes[INPUT].centre.clone()
        self.leaves = self._close(self._bounded(roots, signs, self.bounds))

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to split."""
        return len(self.leaves.problem) == 0

    def advance(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Split every open leaf once, or as many as there is time for."""
        grown: list[Leaves] = []
        order = torch.arange(len(self.leaves.problem), device=self.bounds.device)
        for part in order.split(LEAVES // 2):
            leaves = self.leaves.take(part)
            # What there is no time for stays as it is.
            grown.append(leaves if ended() else self._split(leaves))
        joined = Leaves(*(torch.cat(column) for column in zip(*grown, strict=True)))
        self.leaves = self._close(joined)

    def _close(self, leaves: Leaves) -> Leaves:
        """Forget leaves that are done with, and bound each problem by the worst that is left of it."""
        self.smallest_found = self.smallest_found.scatter_reduce(0, leaves.problem, leaves.found, "amin")
        # It only ever falls, so leaves that were forgotten had reached more than it asks for now.
        target = (self.smallest_found - CLOSE).clamp(max=self.wanted)
        open_still = leaves.bound < target[leaves.problem]
        stuck = open_still & ~(leaves.loss > 0)
        unbounded = torch.full_like(leaves.bound, torch.inf)
        held = torch.where(stuck, leaves.bound, unbounded)
        self.frozen = self.frozen.scatter_reduce(0, leaves.problem, held, "amin")
        low = torch.where(open_still, leaves.bound, unbounded)
        worst = torch.minimum(target, self.frozen).scatter_reduce(0, leaves.problem, low, "amin")
        self.bounds = torch.maximum(self.bounds, worst)
        return leaves.take(open_still & ~stuck)

    def _split(self, leaves: Leaves) -> Leaves:
        """Return the two children of every leaf."""
        both = []
        for sign in (1, -1):
            signs = leaves.signs.clone()
            signs.scatter_(1, leaves.choice[:, None], torch.full_like(leaves.signs[:, :1], sign))
            both.append(signs)
        return self._bounded(leaves.problem.repeat(2), torch.cat(both), leaves.bound.repeat(2))

    def _bounded(self, problem: Tensor, signs: Tensor, known: Tensor) -> Leaves:
        """Bound leaves with optimised slopes and multipliers; ``known`` are bounds that hold for them already."""
        boxes, specification = self._boxes(problem, signs), self.specification[problem]
        sign = {name: s[:, None].to(specification.dtype) for name, s in self._by_node(signs).items()}
        slopes, betas = self._optimised(boxes, specification, sign)
        multipliers = {name: beta * sign[name] for name, beta in betas.items()}
        coefficients: dict[str, Tensor] = {}
        bound = linear_lower(
            self.graph, self.params, boxes, specification, self.rounding, slopes, multipliers=multipliers,
            observe=lambda name, c: coefficients.update({name: c[:, 0]}),
        )[:, 0]  # fmt: skip
        corner = lowest_point(coefficients[INPUT], boxes[INPUT])
        losses, found = self._losses(corner, boxes, specification, coefficients, slopes, signs)
        loss, choice = losses.max(1)
        best = self.smallest_found.scatter_reduce(0, problem, found, "amin")
        closest = (found == best[problem]).nonzero().squeeze(-1)
        self.worst_inputs[problem[closest]] = corner[closest]
        return Leaves(problem, signs, torch.maximum(bound, known), choice, loss, found)

    def _by_node(self, flat: Tensor) -> dict[str, Tensor]:
        """Cut (L, H) into (L, *shape) for each ReLU."""
        parts = flat.split(self.sizes, 1)
        return {node.name: part.view(-1, *node.shape) for node, part in zip(self.relus, parts, strict=True)}

    def _boxes(self, problem: Tensor, signs: Tensor) -> Boxes:
        """Boxes of each leaf, with the inputs of its fixed activations cut to their sign."""
        boxes = {name: box.take(problem) for name, box in self.boxes.items()}
        unit = self.rounding.unit
        for node in self.relus:
            sign = self._by_node(signs)[node.name]
            box = boxes[node.inputs[0]]
            # Moved outwards by what the arithmetic here can lose.
            pad = (box.centre.abs() + box.radius) * (8 * unit)
            low, high = box.centre - box.radius - pad, box.centre + box.radius + pad
            # Rounding must not push a cut interval over zero again, or the activation would count as unstable. It is
            # kept a few units clear of it; on its side ReLU is linear up to zero, so nothing is lost by that.
            end = torch.where(sign > 0, high.clamp(min=0), low.clamp(max=0)) * (0.5 + 16 * unit)
            boxes[node.inputs[0]] = Box(
                torch.where(sign == 0, box.centre, end),
                torch.where(sign == 0, box.radius, end.abs() * (1 - 16 * unit)),
            )
        return boxes

    def _optimised(
        self, boxes: Boxes, specification: Tensor, sign: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Find good slopes and multipliers by Adam; any in their ranges are sound."""
        slopes = {name: torch.zeros_like(s) for name, s in sign.items()}
        betas = {name: torch.zeros_like(s) for name, s in sign.items()}

        def total(slopes: dict[str, Tensor], betas: dict[str, Tensor]) -> Tensor:
            signed = {name: beta * sign[name] for name, beta in betas.items()}
            lower = linear_lower(
                self.graph, self.params, boxes, specification, IDEAL, slopes, at_input_only=True, multipliers=signed
            )
            return lower.sum()

        moments: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        for step in range(1, STEPS + 1):
            gradients = torch.func.grad(total, argnums=(0, 1))(slopes, betas)
            for index, (values, gradient) in enumerate(zip((slopes, betas), gradients, strict=True)):
                for name, g in gradient.items():
                    first, second = moments.get((index, name), (torch.zeros_like(g), torch.zeros_like(g)))
                    first, second = 0.9 * first + 0.1 * g, 0.99 * second + 0.01 * g * g
                    moments[index, name] = first, second
                    move = first / (1 - 0.9**step) / ((second / (1 - 0.99**step)).sqrt() + 1e-12)
                    values[name] = (values[name] + RATES[index] * move).clamp(min=0.0)
                    values[name] = values[name].clamp(max=1.0) if index == 0 else values[name] * sign[name].abs()
        return slopes, betas

    def _losses(
        self,
        corner: Tensor,
        boxes: Boxes,
        specification: Tensor,
        coefficients: dict[str, Tensor],
        slopes: dict[str, Tensor],
        signs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return what each relaxation loses at a corner, (L, H), and the margin of the network there, (L,)."""
        inputs: dict[str, Tensor] = {}

        def remember(node: Node, values: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if isinstance(node.operation, ReLU):
                inputs[node.name] = values[0]
            return output

        outputs = self.graph.evaluate(self.params, corner, remember)
        margin = (outputs[:, None] * specification).flatten(1).sum(1)
        losses = []
        for node in self.relus:
            z, c, box = inputs[node.name], coefficients[node.name], boxes[node.inputs[0]]
            low, high = box.centre - box.radius, box.centre + box.radius
            chord = (high / (high - low).clamp(min=1e-30)) * (z - low)
            line = torch.where(c > 0, slopes[node.name][:, 0] * z, chord)
            loss = c * (z.clamp(min=0) - line)
            losses.append(torch.where((low < 0) & (high > 0), loss, torch.zeros_like(loss)).flatten(1))
        return torch.cat(losses, 1).masked_fill(signs != 0, 0.0).clamp(min=0.0), margin.double()
