"""What a stage of certification is, and those that are made of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from certibayes.certification._pairs import bytes_held
from certibayes.certification.clock import Clock
from certibayes.certification.problem import Problem
from certibayes.certification.state import State, points_of
from certibayes.errors import UnsupportedLayer

Stage = Callable[[Problem, State, Clock], State]
"""Makes what is known better; it changes neither the problem nor the state that it is given."""


def run(stages: tuple[Stage, ...], problem: Problem, state: State, clock: Clock) -> State:
    """Run stages one after the other; where nothing is open any more, they return at once."""
    for stage in stages:
        state = stage(problem, state, clock)
    return state


@dataclass(frozen=True)
class Budgeted:
    """Stages whose time counts, and which stop when the budget is spent."""

    stages: tuple[Stage, ...]

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        with clock.running():
            return run(self.stages, problem, state, clock)


@dataclass(frozen=True)
class WhereSupported:
    """A stage that is skipped for networks with a layer that its bounds have no rule for, such as a user's own."""

    stage: Stage

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        try:
            return self.stage(problem, state, clock)
        except UnsupportedLayer:
            return state


@dataclass(frozen=True)
class Tightened:
    """A stage that is costly beside the intermediate bounds: where these are CROWN's, their slopes are optimized."""

    stage: Stage

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        tighter = {"crown": "alpha-crown"}.get(problem.intermediates, problem.intermediates)
        return self.stage(replace(problem, intermediates=tighter), state, clock)


@dataclass(frozen=True)
class InParts:
    """Stages that hold much of every point at once: open points go through them in parts that memory can hold.

    What is held of a part takes no more than half of the memory, so that the rest is left for the work itself; it is
    dropped when the next part begins. Each part has its fraction of the time.

    Attributes:
        stages: what every part goes through.
        rivals: of which something is held: ``"open"`` or ``"all"`` of a point that has an open one.
    """

    stages: tuple[Stage, ...]
    rivals: str = "open"

    def __call__(self, problem: Problem, state: State, clock: Clock) -> State:
        """See ``Stage``."""
        wanted = state.open if self.rivals == "open" else state.every_rival
        points = points_of(wanted)
        if len(points) == 0:
            return state
        held = bytes_held(problem.predictor, int(wanted.sum(-1).max()))
        left = len(points)
        for part in points.split(max(1, problem.memory // 2 // held)):
            found = run(self.stages, problem.take(part), state.take(part), clock.part(len(part), left))
            state = state.put(part, found)
            left -= len(part)
        return state
