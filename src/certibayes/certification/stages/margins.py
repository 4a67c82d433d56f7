"""Bounds on margins z_y - z_c with the last layer folded in (elision; Gowal et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.certification._prospects import from_all_over, in_turns, is_hopeless
from certibayes.certification.clock import Clock
from certibayes.certification.network_bounds import (
    batch_for,
    go_together,
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
        until_decided: whether a point is left alone once it is proved, where intermediates make networks so costly
            that they have turns; the others would only say more about its probabilities.
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
            if self.until_decided and problem.intermediates != "ibp" and self.bounds != "ibp":
                state = self._in_turns(problem, state, slopes)
            else:
                state = self._bounded(problem, state, slopes, self._wanted(state))
        return state

    def _wanted(self, state: State) -> Tensor:
        return state.open if self.rivals == "open" else state.every_rival

    def _in_turns(self, problem: Problem, state: State, slopes: tuple[str, ...]) -> State:
        """Bound one network, or some, after the other, each for the points that those before them leave undecided."""
        given_up, networks = torch.zeros_like(state.broken), from_all_over(problem.predictor.size)
        together = go_together(problem.predictor, problem.box, self.bounds, problem.intermediates)
        done: list[int] = []
        for turn in in_turns(networks) if together else [[network] for network in networks]:
            state = self._bounded(problem, state, slopes, self._wanted(state) & ~given_up[:, None], turn)
            done += turn
            if self.gives_up:
                point, rival = state.open.nonzero().T
                hopeless = is_hopeless(state.values[done][:, point, rival], len(networks))
                given_up = given_up.index_fill(0, point[hopeless], True)
        return state

    def _bounded(
        self, problem: Problem, state: State, slopes: tuple[str, ...], wanted: Tensor, turn: list[int] | None = None
    ) -> State:
        """Bound the margins against rivals that are wanted, (B, C), in some networks or in all."""
        points = points_of(wanted)
        if len(points) == 0:
            return state
        count, predictor = int(wanted.sum(-1).max()), problem.predictor
        networks = slice(None) if turn is None else turn
        for part in points.split(batch_for(predictor, count, problem.memory, self.bounds, slopes, turn)):
            # The rivals that are wanted come first; shorter lists are filled up with others, at no extra cost.
            rivals = wanted[part].int().argsort(dim=-1, descending=True, stable=True)[:, :count]
            box, share = problem.box.take(part), None if problem.share is None else problem.share.take(part)
            found = margin_bounds(
                predictor, box, problem.labels[part], rivals, problem.rounding, self.bounds, problem.intermediates,
                slopes, share, turn,
            )  # fmt: skip
            margins = state.margins[:, part]
            own, place = margins[networks], rivals.expand(len(found), -1, -1)
            margins[networks] = own.scatter(-1, place, found.maximum(own.gather(-1, place)))
            if self.with_logits:
                lower, upper = state.lower[:, part], state.upper[:, part]
                lower[networks], upper[networks] = logit_bounds(
                    predictor, box, problem.rounding, self.bounds, problem.intermediates, problem.memory, slopes, share,
                    turn,
                )  # fmt: skip
                state = state.with_logits(part, lower, upper).with_values_of_logits(part)
            state = state.with_margins(part, margins)
        return state
