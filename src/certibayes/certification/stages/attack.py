"""Look for counterexamples of points that are open: by gradients, and from where single networks came closest."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from certibayes.attacks.pgd import PGD, pgd
from certibayes.certification.clock import Clock
from certibayes.certification.problem import Problem
from certibayes.certification.state import State, points_of

GRADIENTS = PGD(steps=40, restarts=2)

QUICK = PGD(steps=8, restarts=1, losses=("margin",))
"""From the points themselves: what it breaks does not depend on chance, nor on the other points of a batch."""

CLIMB = PGD(steps=40, restarts=1, losses=("margin",))

STARTS = 3
"""Networks whose worst inputs are climbed from."""


@dataclass(frozen=True)
class Attack:
    """Attack by projected gradients. An attack is cheaper than a proof, and there is none for points that it breaks."""

    settings: PGD = GRADIENTS

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        points = points_of(state.open)
        if len(points) == 0:
            return state
        generator = torch.Generator(problem.x.device).manual_seed(0)
        with torch.enable_grad():
            found = pgd(
                problem.predictor, problem.region.take(points), problem.labels[points], generator, self.settings
            )
        return state.with_inputs(problem, points, found)


@dataclass(frozen=True)
class AttackFromWorstInputs:
    """Climb from where searches of single networks came closest to the rival, and from the mean of those inputs.

    Gradients alone rarely find such places: they lie beyond units that are switched off on the way.
    """

    settings: PGD = CLIMB

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        pairs = state.pairs
        chosen = pairs.of_pairs(state.open).nonzero().squeeze(-1)
        if len(chosen) == 0:
            return state
        point = pairs.point[chosen]
        inputs = pairs.worst_inputs(chosen, problem.box.center[point])
        nearest = pairs.smallest[:, chosen].topk(min(STARTS, len(inputs)), 0, largest=False).indices
        here = torch.arange(len(chosen), device=chosen.device)
        starts = [*(inputs[network, here] for network in nearest), inputs.mean(0)]
        with torch.enable_grad():
            found = pgd(
                problem.predictor, problem.region.take(point), problem.labels[point], torch.Generator(), self.settings,
                starts,
            )  # fmt: skip
        return state.with_inputs(problem, point, found)
