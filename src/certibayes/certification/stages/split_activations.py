"""Branch and bound on unstable activations of single networks, and what comes of it on the way.

That is where to attack from, and linear functions that bound all networks together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.certification._stage import Stage, run
from certibayes.certification.clock import Clock, equal_part
from certibayes.certification.problem import Problem
from certibayes.certification.rules import elided_values
from certibayes.certification.stages.attack import AttackFromWorstInputs
from certibayes.certification.stages.joint import JointBound
from certibayes.certification.stages.refine import SATURATED, with_search
from certibayes.certification.state import State
from certibayes.networks import direct_sums

WANTED = (0.05, 1.0, SATURATED)
"""Margins asked for by splitting: little from every network first, then more from those that can give more, to make up
for those that cannot."""

LEAST = 0.001
"""The first margin that is asked of a network that stands alone: any that is positive will do."""

BETWEEN = 0.1
"""Fraction of the time of a pass that attacks and joint bounds may take, as far as the last ones tell."""


@dataclass(frozen=True)
class SplitActivations:
    """Split the leaves of all searches, for margins that rise from pass to pass; see ``certification._branch``.

    The points that seem to need the least work come first, as far as the gains of splits so far tell.

    Attributes:
        between: stages between the passes.
    """

    between: tuple[Stage, ...] = (AttackFromWorstInputs(), JointBound())

    @torch.no_grad()
    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        began = time.monotonic()
        state = run(self.between, problem, state, clock)
        took = time.monotonic() - began
        for margin in WANTED if problem.predictor.size > 1 else (LEAST, *WANTED):
            goes_on = True
            while goes_on and time.monotonic() < clock.deadline:
                state, goes_on = _one_pass(problem, state, clock, margin)
                if goes_on and took <= BETWEEN * (time.monotonic() - began):
                    began = time.monotonic()
                    state = run(self.between, problem, state, clock)
                    took = time.monotonic() - began
        return JointBound()(problem, state, clock)


def _one_pass(problem: Problem, state: State, clock: Clock, margin: float) -> tuple[State, bool]:
    """Split some leaves of every search once, and tell whether there were any."""
    goes_on, priority = False, work_left(state, margin)
    for place, searched in enumerate(state.pairs.searches):
        worth = promising(state)[searched.which]
        wanted = torch.where(worth, margin, -torch.inf).double()
        trees, search = searched.trees, searched.search
        if not bool(trees.open(wanted).any()):
            continue
        goes_on = True
        # What is proved or broken by now needs its leaves no more, and their memory is for all networks.
        trees = trees.closed(~state.pairs.of_pairs(state.open)[searched.which])
        trees = search.within_memory(trees, priority[searched.which], len(state.pairs.searches))
        ended = equal_part(clock.deadline, len(state.pairs.searches) - place)
        with direct_sums():
            trees = search.advance(trees, wanted, ended, search.at_once(), priority[searched.which])
        state = with_search(problem, state, searched._replace(trees=trees), place)
    return state, goes_on


def work_left(state: State, margin: float) -> Tensor:
    """Guess how many leaves the point of every pair needs in all networks; the logarithm to base 2, (P,)."""
    pairs, is_promising = state.pairs, promising(state)
    points = state.joint[:, 0]
    total = torch.zeros_like(points)
    for _, which, _, trees in pairs.searches:
        wanted = torch.where(is_promising, margin, -torch.inf).double()[which]
        # Powers beyond those of double precision are all alike out of reach.
        total = total.scatter_add(0, pairs.point[which], torch.exp2(trees.work_left(wanted).clamp(max=900.0)))
    return torch.log2(total)[pairs.point]


def promising(state: State) -> Tensor:
    """Tell which pairs (P,) may still be proved by better margins of single networks."""
    pairs = state.pairs
    is_seen = pairs.smallest < torch.inf
    place = pairs.rival.expand_as(is_seen)[..., None]
    # No margin can be bounded by more than the network really gives.
    most = state.margins[:, pairs.point].scatter(-1, place, pairs.smallest[..., None])
    values = elided_values(most, state.upper_margins[:, pairs.point], state.labels[pairs.point])
    values = values.gather(-1, place).squeeze(-1)
    total = torch.where(is_seen, values, torch.zeros_like(values)).sum(0)
    return pairs.of_pairs(state.open) & (total > 0)
