"""Bounds on logits, and what the rules ``theorem1`` and ``pairwise`` conclude from them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from certibayes.certification.clock import Clock
from certibayes.certification.network_bounds import logit_bounds, slope_rounds
from certibayes.certification.problem import Problem
from certibayes.certification.rules import theorem1_differences
from certibayes.certification.state import EVERY, State, points_of


@dataclass(frozen=True)
class LogitBounds:
    """Bound the logits of every network.

    Attributes:
        bounds: how.
        rule: ``"theorem1"``, the paper's rule and nothing else, or ``"pairwise"``, which also tells about margins.
        only_open: whether points that are decided are left alone; the first stage bounds them all.
    """

    bounds: str
    rule: str = "pairwise"
    only_open: bool = False

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        first, *others = slope_rounds(self.bounds, problem.intermediates)
        state = self._bounded(problem, state, points_of(state.open) if self.only_open else EVERY, first)
        for slopes in others:
            state = self._bounded(problem, state, points_of(state.open), slopes)
        return state

    def _bounded(self, problem: Problem, state: State, points: Tensor | slice, slopes: tuple[str, ...]) -> State:
        if len(state.labels[points]) == 0:
            return state
        lower, upper = logit_bounds(
            problem.predictor, problem.box.take(points), problem.rounding, self.bounds, problem.intermediates,
            problem.memory, slopes, None if problem.share is None else problem.share.take(points),
        )  # fmt: skip
        state = state.with_logits(points, lower, upper)
        if self.rule == "pairwise":
            return state.with_values_of_logits(points)
        lowest, highest = (bound[points] for bound in state.probabilities)
        return state.with_differences(points, theorem1_differences(lowest, highest, state.labels[points]))
