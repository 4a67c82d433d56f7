"""Margins against the rivals that keep a point open, network by network: optimized slopes, cuts, linear functions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from certibayes.certification._pairs import Pairs, Searched, search_in
from certibayes.certification._prospects import PROBES, is_hardest, is_out_of_reach
from certibayes.certification.clock import Clock, Ended, equal_part
from certibayes.certification.problem import Problem
from certibayes.certification.state import State
from certibayes.networks import direct_sums

SATURATED = 4.0
"""A margin above which a network's probabilities have little to gain; no effort is spent on it."""


@dataclass(frozen=True)
class Refine:
    """Search every network for the smallest margins of open pairs, without splitting anything yet.

    Attributes:
        bounds: ``"crown"``, ``"alpha-crown"`` or ``"hull"``.
        gives_up: whether points whose hardest rivals are out of reach, as far as the first networks tell, are left to
            bounds that cost less; see ``certification._prospects``.
        rivals: ``"open"`` for those that keep a point open, or ``"all"`` rivals of such points.
        until_decided: whether a pair is left alone once it is proved, although its margins in other networks may help
            to prove others.
    """

    bounds: str
    gives_up: bool = False
    rivals: str = "open"
    until_decided: bool = True

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        wanted = state.open if self.rivals == "open" else state.every_rival
        return self.refine(problem, state, clock, Pairs.of(wanted, problem.predictor.size))

    @torch.no_grad()
    def refine(self, problem: Problem, state: State, clock: Clock, pairs: Pairs) -> State:
        """Search every network for the smallest margins of some pairs, which become those of the state."""
        state, networks = replace(state, pairs=pairs), problem.predictor.size
        if len(pairs.point) == 0:
            return state
        if self.gives_up and self.bounds != "crown":
            state = self._probe(problem, state, clock)
        for network in range(networks):
            given_up = state.pairs.given_up
            within_reach = ~torch.isin(pairs.point, pairs.point[given_up])
            ended = equal_part(clock.deadline, networks - network)
            state = self._search(problem, state, network, within_reach, self.bounds, ended)
            # One input for all networks may decide still; where it does not, the point's other rivals need nothing.
            state = self._search(problem, state, network, given_up, "crown", ended)
        return state

    def _probe(self, problem: Problem, state: State, clock: Clock) -> State:
        """Search the first networks for the hardest rival of every point, and see which are out of reach."""
        networks = problem.predictor.size
        before = state.pairs.of_pairs(state.values)
        hardest = is_hardest(before.mean(0), state.pairs.point)
        for network in range(min(PROBES, networks)):
            state = self._search(problem, state, network, hardest, self.bounds, equal_part(clock.deadline, networks))
        pairs = state.pairs
        is_seen = pairs.smallest < torch.inf
        given_up = hardest & is_out_of_reach(before, pairs.of_pairs(state.values), is_seen)
        return replace(state, pairs=replace(pairs, given_up=given_up))

    def _search(self, problem: Problem, state: State, network: int, wanted: Tensor, bounds: str, ended: Ended) -> State:
        """Bound margins of one network for the pairs (P,) that are wanted, where it is worth it and not done yet."""
        pairs = state.pairs
        known, is_new = pairs.of_pairs(state.margins)[network], pairs.smallest[network] == torch.inf
        undecided = pairs.of_pairs(state.open) if self.until_decided else torch.ones_like(wanted)
        which = (wanted & is_new & undecided & (known < SATURATED)).nonzero().squeeze(-1)
        if len(which) == 0:
            return state
        search = search_in(problem, pairs, network, which)
        with direct_sums():
            trees = search.begin(known[which], bounds, ended, pairs.start(which))
        return with_search(problem, state, Searched(network, which, search, trees))


@dataclass(frozen=True)
class RefineRegained:
    """Refine the open rivals of points that were given up for a harder one, which is proved by now."""

    bounds: str

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        pairs, is_open = state.pairs, state.open
        proved = pairs.point[pairs.given_up & ~pairs.of_pairs(is_open)]
        wanted = is_open & torch.zeros_like(state.broken).index_fill(0, proved, True)[:, None]
        return Refine(self.bounds).refine(problem, state, clock, Pairs.of(wanted, problem.predictor.size))


def with_search(problem: Problem, state: State, searched: Searched, place: int | None = None) -> State:
    """Record what a search found of one network: its margins, and its worst inputs as possible counterexamples."""
    pairs = state.pairs.with_search(searched, place)
    point, rival = pairs.point[searched.which], pairs.rival[searched.which]
    margins = state.margins.clone()
    margins[searched.network, point, rival] = torch.maximum(margins[searched.network, point, rival], searched.margins)
    points = point.unique()
    state = replace(state, pairs=pairs).with_margins(points, margins[:, points])
    still = state.open[point].any(-1)
    return state.with_inputs(problem, point[still], searched.trees.worst_inputs[still])
