"""Bounds on margins z_y - z_c with the last layer folded in (elision; Gowal et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from certibayes.certification.clock import Clock
from certibayes.certification.network_bounds import batch_for, logit_bounds, margin_bounds, slope_rounds
from certibayes.certification.problem import Problem
from certibayes.certification.state import State, points_of


@dataclass(frozen=True)
class MarginBounds:
    """Bound the margins of open points in every network.

    Attributes:
        bounds: how; not ``"hull"``, which ``Refine`` has.
        rivals: ``"open"`` for those that keep a point open, or ``"all"``: the margins of the others count, too, less.
        with_logits: whether to bound the logits anew, too, for what the other classes add to a denominator.
    """

    bounds: str
    rivals: str = "all"
    with_logits: bool = False

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        for slopes in slope_rounds(self.bounds, problem.intermediates):
            state = self._bounded(problem, state, slopes)
        return state

    def _bounded(self, problem: Problem, state: State, slopes: tuple[str, ...]) -> State:
        wanted = state.open if self.rivals == "open" else state.every_rival
        points = points_of(wanted)
        if len(points) == 0:
            return state
        count, predictor = int(wanted.sum(-1).max()), problem.predictor
        for part in points.split(batch_for(predictor, count, problem.memory, self.bounds, slopes)):
            # The rivals that are wanted come first; shorter lists are filled up with others, at no extra cost.
            rivals = wanted[part].int().argsort(dim=-1, descending=True, stable=True)[:, :count]
            box, share = problem.box.take(part), None if problem.share is None else problem.share.take(part)
            found = margin_bounds(
                predictor, box, problem.labels[part], rivals, problem.rounding, self.bounds, problem.intermediates,
                slopes, share,
            )  # fmt: skip
            margins = state.margins[:, part]
            place = rivals.expand(len(found), -1, -1)
            margins = margins.scatter(-1, place, found.maximum(margins.gather(-1, place)))
            if self.with_logits:
                ends = logit_bounds(
                    predictor, box, problem.rounding, self.bounds, problem.intermediates, problem.memory, slopes, share
                )
                state = state.with_logits(part, *ends).with_values_of_logits(part)
            state = state.with_margins(part, margins)
        return state
