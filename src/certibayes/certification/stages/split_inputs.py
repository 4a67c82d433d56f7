"""Prove points that are still open part by part of their boxes, where inputs are few."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from certibayes.bounds import Box
from certibayes.certification._input_split import FEW, proved_in_parts
from certibayes.certification.clock import Clock
from certibayes.certification.problem import Problem
from certibayes.certification.stages.logits import LogitBounds
from certibayes.certification.stages.margins import MarginBounds
from certibayes.certification.state import State, points_of


@dataclass(frozen=True)
class SplitInputs:
    """Halve boxes until every part is proved; see ``certification._input_split``.

    Attributes:
        fraction: of the time that is left; what it cannot decide, splitting on activations may.
    """

    fraction: float = 0.5

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        chosen = points_of(state.open)
        few = torch.Size(problem.predictor.graph.input_shape).numel() <= FEW
        if len(chosen) == 0 or not few or problem.region.norm != "linf":
            return state
        now = time.monotonic()
        until = now + (clock.deadline - now) * self.fraction

        def is_open(parts: Box, whose: Tensor) -> Tensor:
            nonlocal state
            point = chosen[whose]
            state = state.with_inputs(problem, point, parts.center)
            # What was found of the whole box holds for its parts, too, but more is true of them.
            part = replace(problem.take(point), box=parts, predicted=problem.labels[point], share=None)
            found = State.start(part)
            for stage in (LogitBounds("ibp"), MarginBounds("crown", "open", with_logits=True)):
                found = stage(part, found, clock)
            return ~found.proved

        def is_lost(whose: Tensor) -> Tensor:
            return state.broken[chosen[whose]]

        proved = proved_in_parts(
            problem.box.take(chosen), problem.arithmetic, is_open, is_lost, lambda: time.monotonic() > until
        )
        # On each part the mean was above the threshold against every rival; how far above was not kept.
        lowest = torch.nextafter(state.joint.new_tensor(state.threshold), state.joint.new_tensor(torch.inf))
        joint = state.joint[chosen[proved]].clamp(min=float(lowest))
        return replace(state, joint=state.joint.index_copy(0, chosen[proved], joint))
