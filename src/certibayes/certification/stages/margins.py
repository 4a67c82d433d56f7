"""Bounds on margins z_y - z_c with the last layer folded in (elision; Gowal et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.certification._prospects import from_all_over, is_hopeless
from certibayes.certification.clock import Clock
from certibayes.certification.network_bounds import (
    batch_for,
    can_be_mapped,
    logit_bounds,
    margin_bounds,
    slope_rounds,
)
from certibayes.certification.problem import Problem
from certibayes.certification.state import State, points_of


@dataclass(frozen=True)
class MarginBounds:
    """Bound the margins of open points in every network.

    Attributes:
        bounds: how; not ``"hull"``, which ``Refine`` has.
        rivals: ``"open"`` for those that keep a point open, or ``"all"``: the margins of the others count, too, less.
        with_logits: whether to bound the logits anew, too, for what the other classes add to a denominator.
        until_decided: whether a point is left alone once it is proved, where its networks have their turns one after
            the other; the others would only say more about its probabilities.
        gives_up: whether it is left alone, too, once it is out of reach as far as its networks so far tell; see
            ``certification._prospects``.
    """

    bounds: str
    rivals: str = "all"
    with_logits: bool = False
    until_decided: bool = False
    gives_up: bool = False

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        for slopes in slope_rounds(self.bounds, problem.intermediates):
            if self.until_decided and not can_be_mapped(self.bounds, problem.intermediates):
                state = self._one_by_one(problem, state, slopes)
            else:
                state = self._bounded(problem, state, slopes, self._wanted(state))
        return state

    def _wanted(self, state: State) -> Tensor:
        return state.open if self.rivals == "open" else state.every_rival

    def _one_by_one(self, problem: Problem, state: State, slopes: tuple[str, ...]) -> State:
        """Bound one network after the other, each for the points that those before it leave undecided."""
        given_up, networks = torch.zeros_like(state.broken), from_all_over(problem.predictor.size)
        for done, network in enumerate(networks, 1):
            state = self._bounded(problem, state, slopes, self._wanted(state) & ~given_up[:, None], network)
            if self.gives_up:
                point, rival = state.open.nonzero().T
                hopeless = is_hopeless(state.values[networks[:done]][:, point, rival], len(networks))
                given_up = given_up.index_fill(0, point[hopeless], True)
        return state

    def _bounded(
        self, problem: Problem, state: State, slopes: tuple[str, ...], wanted: Tensor, network: int | None = None
    ) -> State:
        """Bound the margins against rivals that are wanted, (B, C), in one network or in all."""
        points = points_of(wanted)
        if len(points) == 0:
            return state
        count, predictor = int(wanted.sum(-1).max()), problem.predictor
        networks = slice(None) if network is None else slice(network, network + 1)
        for part in points.split(batch_for(predictor, count, problem.memory, self.bounds, slopes)):
            # The rivals that are wanted come first; shorter lists are filled up with others, at no extra cost.
            rivals = wanted[part].int().argsort(dim=-1, descending=True, stable=True)[:, :count]
            box, share = problem.box.take(part), None if problem.share is None else problem.share.take(part)
            found = margin_bounds(
                predictor, box, problem.labels[part], rivals, problem.rounding, self.bounds, problem.intermediates,
                slopes, share, network,
            )  # fmt: skip
            margins = state.margins[:, part]
            own, place = margins[networks], rivals.expand(len(found), -1, -1)
            margins[networks] = own.scatter(-1, place, found.maximum(own.gather(-1, place)))
            if self.with_logits:
                lower, upper = state.lower[:, part], state.upper[:, part]
                lower[networks], upper[networks] = logit_bounds(
                    predictor, box, problem.rounding, self.bounds, problem.intermediates, problem.memory, slopes, share,
                    network,
                )  # fmt: skip
                state = state.with_logits(part, lower, upper).with_values_of_logits(part)
            state = state.with_margins(part, margins)
        return state
