"""Leaves of branch and bound, and the trees that they make up: what is known of every part of a box.

The parts of a box on which the signs of some activations are fixed cover it, so the smallest bound of a problem's
leaves holds for the whole box. Leaves are split and bounded in ``certification._branch``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CLOSE = 0.01
"""How close to the smallest margin that was found a bound has to come, where the wanted margin is out of reach."""

LARGEST = 6e4
"""Multipliers are kept in half precision, which has no larger numbers; any that is not negative is sound."""


class Leaves(NamedTuple):
    """Leaves of the trees of all problems.

    Attributes:
        problem: which problem each belongs to, (L,).
        signs: of the activations that are fixed, int8 (L, H); 0 where both are possible.
        variables: of the relaxation, float16 (L, H): the lower slope of an activation, or, where its sign is fixed,
            the multiplier of that. Children begin their ascent with them.
        bound: lower bound on the margin, float64 (L,).
        offset: d of the linear function A x + d below the margin, with the problem's A, float64 (L,).
        choices: activations that may be split next, the most promising first, (L, K).
        loss: what the relaxations of all activations lose, (L,); 0 where nothing is left to split.
        found: margin of the network itself at the corner where the bound is smallest, (L,).
    """

    problem: Tensor
    signs: Tensor
    variables: Tensor
    bound: Tensor
    offset: Tensor
    choices: Tensor
    loss: Tensor
    found: Tensor

    def take(self, which: Tensor) -> Leaves:
        """Return some of the leaves."""
        return Leaves(*(column[which] for column in self))


class Start(NamedTuple):
    """Variables that problems may begin with, float16 (P, H), and of which they are known, (P,); else they are 0."""

    variables: Tensor
    is_known: Tensor


class Grown(NamedTuple):
    """Leaves that were bounded, the corner of the box where the bound of each is smallest, and of roots their A."""

    leaves: Leaves
    corner: Tensor
    coefficients: Tensor | None = None


class Trees(NamedTuple):
    """What a search knows about its P problems so far.

    Attributes:
        known: lower bounds that were known before, float64 (P,).
        leaves: of all trees.
        smallest: smallest margin that the network was seen to have, float64 (P,); infinite where it was not looked at.
        worst_inputs: where, (P, *input_shape).
        coefficients: A of a linear function of the input below the margin, A x + d, (P, *input_shape).
        gained: by how much splits have raised the bounds of leaves, float64 (P,); the sum over all children.
        children: how many there were, float64 (P,).
    """

    known: Tensor
    leaves: Leaves
    smallest: Tensor
    worst_inputs: Tensor
    coefficients: Tensor
    gained: Tensor
    children: Tensor

    @property
    def bounds(self) -> Tensor:
        """Best known lower bound of each problem, float64 (P,)."""
        worst = torch.full_like(self.known, torch.inf)
        worst = worst.scatter_reduce(0, self.leaves.problem, self.leaves.bound, "amin")
        return torch.maximum(self.known, worst)

    @property
    def offsets(self) -> Tensor:
        """Best known d of A x + d below the margin in the whole box, float64 (P,): the smallest of all leaves."""
        offsets = torch.full_like(self.known, torch.inf)
        return offsets.scatter_reduce(0, self.leaves.problem, self.leaves.offset, "amin")

    def target(self, wanted: Tensor) -> Tensor:
        """Return the bound that each problem's leaves are split for, (P,): what is wanted, or all that there is."""
        return torch.where(self.smallest >= wanted, wanted, self.smallest - CLOSE)

    def open(self, wanted: Tensor) -> Tensor:
        """Tell which leaves have to be split for margins that are ``wanted`` of each problem, (P,)."""
        return (self.leaves.bound < self.target(wanted)[self.leaves.problem]) & (self.leaves.loss > 0)

    def work_left(self, wanted: Tensor) -> Tensor:
        """Guess how many leaves every problem is from its wanted margin; the logarithm to base 2, float64 (P,).

        If every split raises a bound by g, as it did on average so far, a leaf that is short by h becomes 2^(h / g).
        """
        # All problems together stand for one of which nothing is known yet.
        usual = self.gained.sum() / self.children.sum().clamp(min=1)
        gain = ((self.gained + usual) / (self.children + 1)).clamp(min=1e-9)
        is_open = self.open(wanted)
        problem = self.leaves.problem[is_open]
        short = (self.target(wanted)[problem] - self.leaves.bound[is_open]) / gain[problem]
        # A sum of powers without overflow: the largest power of each problem is taken out.
        most = torch.full_like(self.known, -torch.inf).scatter_reduce(0, problem, short, "amax")
        total = torch.zeros_like(self.known).scatter_add(0, problem, torch.exp2(short - most[problem]))
        return torch.where(total > 0, most + torch.log2(total), -torch.inf)

    def with_inputs(self, problem: Tensor, found: Tensor, inputs: Tensor) -> Trees:
        """Record what the network gives at some inputs, (L, *input_shape)."""
        smallest = self.smallest.scatter_reduce(0, problem, found, "amin")
        closest = (found == smallest[problem]).nonzero().squeeze(-1)
        worst = self.worst_inputs.clone()
        worst[problem[closest]] = inputs[closest]
        return self._replace(smallest=smallest, worst_inputs=worst)

    def with_coefficients(self, problem: Tensor, found: Tensor) -> Trees:
        """Record A, (L, *input_shape), of some problems, (L,), none twice."""
        coefficients = self.coefficients.clone()
        coefficients[problem] = found
        return self._replace(coefficients=coefficients)

    def with_gains(self, problem: Tensor, before: Tensor, after: Tensor) -> Trees:
        """Record by how much the bounds of children, (L,), are above those of the leaves that they were made of."""
        # One that was not bounded before tells nothing.
        gain = torch.where(torch.isfinite(before) & torch.isfinite(after), after - before, 0.0)
        return self._replace(
            gained=self.gained.scatter_add(0, problem, gain),
            children=self.children.scatter_add(0, problem, torch.ones_like(gain)),
        )

    def closed(self, problems: Tensor) -> Trees:
        """Give up the leaves of some problems, a mask (P,): each keeps one, which stands for the whole box."""
        bounds, offsets, leaves = self.bounds, self.offsets, self.leaves
        kept = leaves.take(~problems[leaves.problem])
        first = problems.nonzero().squeeze(-1)
        some = torch.zeros_like(first)
        whole = leaves.take(some)._replace(
            problem=first,
            signs=torch.zeros_like(leaves.signs[some]),
            bound=bounds[first],
            offset=offsets[first],
            loss=torch.zeros_like(leaves.loss[some]),
        )
        return self._replace(leaves=joined([kept, whole]))


def joined(parts: list[Leaves]) -> Leaves:
    """Put lists of leaves one after the other."""
    return Leaves(*(torch.cat(column) for column in zip(*parts, strict=True)))
