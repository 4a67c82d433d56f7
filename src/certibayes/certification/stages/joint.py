"""One input for all networks: bounds on the mean over networks, from linear functions below their margins."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.certification._joint import Others, joint_values
from certibayes.certification._softmax import log_sum_of_others
from certibayes.certification.clock import Clock
from certibayes.certification.problem import Problem
from certibayes.certification.state import State

SMALL = 1e-9
"""Far more than float64 loses in a sum of exponentials."""


@dataclass(frozen=True)
class JointBound:
    """Bound the mean difference of probabilities for one input of all networks; see ``certification._joint``."""

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        pairs = state.pairs
        if not pairs.searches:
            return state
        inputs = torch.Size(problem.predictor.graph.input_shape).numel()
        at_once = max(1, problem.memory // (8 * 8 * inputs * problem.predictor.size))
        for part in pairs.of_pairs(state.open).nonzero().squeeze(-1).split(at_once):
            point, rival = pairs.point[part], pairs.rival[part]
            known = state.margins[:, point, rival]
            functions = pairs.functions(part, known)
            values = joint_values(functions, known, others_of(state, point, rival), problem.box.take(point))
            state = state.with_joint(point, rival, values)
        return state


def others_of(state: State, point: Tensor, rival: Tensor) -> Others:
    """What the classes besides label and rival add to the denominators of softmax, for pairs of point and rival."""
    place = rival.expand(len(state.margins), -1)[..., None]
    is_label = state.labels[point, None] == torch.arange(state.margins.shape[-1], device=point.device)

    def others(margins: Tensor) -> Tensor:
        logs = log_sum_of_others((-margins[:, point]).masked_fill(is_label, -torch.inf))
        return logs.gather(-1, place).squeeze(-1).exp()

    # Rounding aside; less is safe where margins are negative, so what could overflow is cut.
    return Others(others(state.margins) * (1 + SMALL), others(state.upper_margins).clamp(max=1e6) * (1 - SMALL))
