"""The ramp: radii grow from 0 while training goes on, so that a network first learns to fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from certibayes.errors import InvalidInput
from certibayes.likelihoods._settings import short_repr
from certibayes.likelihoods.radius import RadiusDistribution

DEFAULT_RAMP = "default"


@dataclass(frozen=True, repr=False)
class LinearRamp:
    """Scale radii by a factor that grows linearly from 0 to 1 while training goes from ``start`` to ``end``.

    Both are fractions of the whole training. The paper ramps over all of it.
    """

    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.start < self.end <= 1.0:
            raise InvalidInput(f"a ramp needs 0 <= start < end <= 1, got {self.start}, {self.end}.")

    def __call__(self, progress: float) -> float:
        """Return the factor at a fraction ``progress`` of training."""
        return min(1.0, max(0.0, (progress - self.start) / (self.end - self.start)))

    def __repr__(self) -> str:
        """Return the settings that are not at their defaults."""
        return short_repr(self)


def chosen_ramp(ramp: Any, given: RadiusDistribution | float | None) -> Any:
    """Return the ramp that a user means: by default one that depends on whether a radius was ``given`` or p_eps."""
    if ramp != DEFAULT_RAMP:
        return ramp
    return LinearRamp() if given is None or isinstance(given, RadiusDistribution) else LinearRamp(0.0, 0.5)
