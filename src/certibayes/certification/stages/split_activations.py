"""Branch and bound on unstable activations of single networks, and attacks from what comes up on the way."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.certification.clock import Clock, equal_part
from certibayes.certification.problem import Problem
from certibayes.certification.rules import elided_values
from certibayes.certification.stages.attack import AttackFromWorstInputs
from certibayes.certification.stages.refine import SATURATED, with_search
from certibayes.certification.state import State
from certibayes.networks import direct_sums

WANTED = (0.05, 1.0, SATURATED)
"""Margins asked for by splitting: little from every network first, then more from those that can give more, to make up
for those that cannot."""


@dataclass(frozen=True)
class SplitActivations:
    """Split the leaves of all searches, for margins that rise from pass to pass; see ``certification._branch``."""

    climb: AttackFromWorstInputs = AttackFromWorstInputs()  # noqa: RUF009 - immutable

    @torch.no_grad()
    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        state = self.climb(problem, state, clock)
        for margin in WANTED:
            goes_on = True
            while goes_on and time.monotonic() < clock.deadline:
                goes_on = False
                for place, searched in enumerate(state.pairs.searches):
                    wanted = torch.where(promising(state), margin, -torch.inf).double()[searched.which]
                    if not bool(searched.trees.open(wanted).any()):
                        continue
                    goes_on = True
                    ended = equal_part(clock.deadline, len(state.pairs.searches) - place)
                    with direct_sums():
                        trees = searched.search.advance(searched.trees, wanted, ended)
                    state = with_search(problem, state, searched._replace(trees=trees), place)
                if goes_on:
                    state = self.climb(problem, state, clock)
        return state


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
