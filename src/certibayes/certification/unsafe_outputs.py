"""Unsafe outputs, given by linear constraints: bounds and branch and bound that exclude them on a box of inputs.

Outputs y are unsafe where all constraints of a conjunction hold, a_j y <= b_j. On a box where the smallest value of any
a_j y exceeds b_j, the conjunction is excluded. So is it on a box that is cut into parts which all exclude it, by any of
its constraints; or on all branches of a constraint's tree, where signs of activations are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Box, by_name
from certibayes.certification._branch import Search
from certibayes.certification._input_split import FEW, proved_in_parts
from certibayes.certification._layers import intermediate_boxes
from certibayes.certification.clock import Ended
from certibayes.certification.network_bounds import MEMORY, output_lower_bounds
from certibayes.networks import direct_sums
from certibayes.prediction import Predictor
from certibayes.support.stacks import pick

IsFound = Callable[[Tensor], bool]
"""Is shown inputs (L, ...) that may be counterexamples; tells whether there is one by now, so that work can stop."""


class UnsafeOutputs(NamedTuple):
    """K conjunctions of Q linear constraints in all.

    Attributes:
        coefficients: a of every constraint, (Q, C), in the network's precision.
        bounds: b, in float64, (Q,); rounded up, since a constraint is excluded where a y > b.
        conjunction: which one each constraint belongs to, (Q,).
        conjunctions: K.
    """

    coefficients: Tensor
    bounds: Tensor
    conjunction: Tensor
    conjunctions: int

    def excluded(self, lower: Tensor) -> Tensor:
        """Tell which conjunctions lower bounds on a y, (B, Q), exclude, (B, K)."""
        beyond = (lower > self.bounds).to(torch.int8)
        index = self.conjunction.expand_as(beyond)
        return beyond.new_zeros(len(lower), self.conjunctions).scatter_reduce(1, index, beyond, "amax") > 0

    def margins(self, outputs: Tensor) -> Tensor:
        """Return how far outputs (B, C) are from each conjunction, (B, K): the largest a y - b, unsafe if at most 0.

        Differentiable, and not exact: it is what attacks descend.
        """
        values = outputs @ self.coefficients.to(outputs.dtype).T - self.bounds.to(outputs.dtype)
        index = self.conjunction.expand_as(values)
        return values.new_full((len(values), self.conjunctions), -torch.inf).scatter_reduce(1, index, values, "amax")

    def take(self, chosen: Tensor) -> UnsafeOutputs:
        """Return some of the conjunctions, chosen by a mask (K,)."""
        rows = chosen[self.conjunction]
        number = chosen.cumsum(0) - 1
        return UnsafeOutputs(
            self.coefficients[rows], self.bounds[rows], number[self.conjunction[rows]], int(chosen.sum())
        )


def lower_bounds(predictor: Predictor, box: Box, unsafe: UnsafeOutputs, bounds: str, intermediates: str) -> Tensor:
    """Bound a y of every constraint from below over boxes (B, ...), for the float program, in float64, (B, Q).

    Args:
        predictor: of one network.
        box: inputs.
        unsafe: the constraints.
        bounds: ``"ibp"``, ``"crown"`` or ``"alpha-crown"``.
        intermediates: see ``margin_bounds``.

    Returns:
        The bounds; -inf where nothing is known.
    """
    if len(unsafe.bounds) == 0:
        return unsafe.bounds.new_zeros(len(box.center), 0)
    rows = unsafe.coefficients.view(-1, *predictor.graph.output_shape)
    specification = rows.expand(len(box.center), *rows.shape)
    return output_lower_bounds(predictor, box, specification, "outward", bounds, intermediates)[0]


def excluded_in_parts(predictor: Predictor, box: Box, unsafe: UnsafeOutputs, is_found: IsFound, ended: Ended) -> Tensor:
    """Halve a box until every part excludes all conjunctions; returns them all as excluded or none, (K,).

    Args:
        predictor: of one network with at most ``FEW`` inputs; of others nothing is tried.
        box: inputs, (1, ...).
        unsafe: what is to be excluded.
        is_found: is shown the center of every part.
        ended: tells when to stop.
    """
    nothing = torch.zeros(unsafe.conjunctions, dtype=torch.bool, device=predictor.device)
    if torch.Size(predictor.graph.input_shape).numel() > FEW:
        return nothing
    lost = False

    def is_open(parts: Box, whose: Tensor) -> Tensor:
        nonlocal lost
        lost = lost or is_found(parts.center)
        return ~unsafe.excluded(lower_bounds(predictor, parts, unsafe, "crown", "crown")).all(-1)

    def is_lost(whose: Tensor) -> Tensor:
        return torch.full_like(whose, lost, dtype=torch.bool)

    return nothing | proved_in_parts(box, by_name("outward", predictor.dtype), is_open, is_lost, ended)


@torch.no_grad()
def excluded_by_branching(
    predictor: Predictor, box: Box, unsafe: UnsafeOutputs, is_found: IsFound, ended: Ended, memory: int = MEMORY
) -> Tensor:
    """Split on the signs of activations until conjunctions are excluded, and tell which are, (K,).

    Args:
        predictor: of one network.
        box: inputs, (1, ...).
        unsafe: what is to be excluded.
        is_found: is shown the inputs where constraints came closest to holding.
        ended: tells when to stop.
        memory: bytes for what is bounded at once.
    """
    graph, params = predictor.graph, pick(predictor.samples, 0)
    rows = unsafe.coefficients.view(-1, 1, *graph.output_shape)
    point = torch.zeros(len(rows), dtype=torch.int64, device=predictor.device)
    excluded = torch.zeros(unsafe.conjunctions, dtype=torch.bool, device=predictor.device)
    with direct_sums():
        boxes, ranges = intermediate_boxes(predictor, params, box, "outward", "crown")
        if len(rows) == 0 or not bool(ranges.known.all()):
            return excluded
        search = Search(graph, params, boxes, point, rows, by_name("outward", predictor.dtype), memory // 2)
        trees = search.begin(torch.full_like(unsafe.bounds, -torch.inf), "hull", ended)
        while True:
            excluded = unsafe.excluded(trees.bounds[None])[0]
            # A bound that is equal does not exclude.
            beyond = torch.nextafter(unsafe.bounds, torch.full_like(unsafe.bounds, torch.inf))
            wanted = torch.where(excluded[unsafe.conjunction], -torch.inf, beyond)
            if bool(excluded.all()) or is_found(trees.worst_inputs) or ended():
                return excluded
            # Not how close the network itself comes, which would be good enough where margins only have to be large.
            trees = trees._replace(smallest=torch.full_like(trees.smallest, torch.inf))
            if not bool(trees.open(wanted).any()):
                return excluded
            trees = search.advance(trees, wanted, ended)
