"""Ramps: a factor that changes while training goes on, and ends at 1."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from certibayes.errors import InvalidInput
from certibayes.likelihoods._settings import short_repr

QUARTIC = 0.25
"""Part of a smooth ramp that is quartic."""


@dataclass(frozen=True, repr=False)
class LinearRamp:
    """A factor that goes linearly from ``first`` to 1 while training goes from ``start`` to ``end``.

    Both are fractions of the whole training. The paper ramps the radius over all of it.

    Attributes:
        start: where the ramp begins; the factor is ``first`` up to there.
        end: where the factor is 1, and stays so.
        first: factor at the start. 0 for what grows; above 1 for a multiplier that comes down.
    """

    start: float = 0.0
    end: float = 1.0
    first: float = 0.0

    def __post_init__(self) -> None:
        _require_interval(self)
        if not (math.isfinite(self.first) and self.first >= 0.0):
            raise InvalidInput(f"a ramp begins at a finite factor >= 0, got first={self.first}.")

    def __call__(self, progress: float) -> float:
        """Return the factor at a fraction ``progress`` of training."""
        done = _done(self, progress)
        # Not first + done * (1 - first), which may miss 1 by a rounding error.
        return done + (1.0 - done) * self.first

    def describe(self) -> dict[str, Any]:
        """Return what goes into a posterior's metadata."""
        return {"name": "LinearRamp", **asdict(self)}

    def __repr__(self) -> str:
        """Return the settings that are not at their defaults."""
        return short_repr(self)


@dataclass(frozen=True, repr=False)
class SmoothRamp:
    """A factor that grows from 0 to 1, at first as a fourth power and then linearly.

    With u in [0, 1] the part of the ramp that is done and m = 1/4 the part that is quartic,

        s(u) = a u⁴  up to m,        s(u) = a m⁴ + 4 a m³ (u - m)  from there,        a = 1 / (m³ (4 - 3 m)),

    so that value and slope are continuous and s(1) = 1. Certified training of deep networks ramps its radius in this
    way (Xu et al., 2020): while the radius is small, little changes from one step to the next.

    Attributes:
        start: fraction of training up to which the factor is 0: a warm-up without an adversary.
        end: fraction of training at which the factor is 1, and stays so.
    """

    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        _require_interval(self)

    def __call__(self, progress: float) -> float:
        """Return the factor at a fraction ``progress`` of training."""
        done = _done(self, progress)
        steepness = 1.0 / (QUARTIC**3 * (4.0 - 3.0 * QUARTIC))
        if done < QUARTIC:
            return steepness * done**4
        # Counted from the end, where it must be exactly 1.
        return 1.0 - 4.0 * steepness * QUARTIC**3 * (1.0 - done)

    def describe(self) -> dict[str, Any]:
        """Return what goes into a posterior's metadata."""
        return {"name": "SmoothRamp", **asdict(self)}

    def __repr__(self) -> str:
        """Return the settings that are not at their defaults."""
        return short_repr(self)


Ramp = LinearRamp | SmoothRamp


def _done(ramp: Ramp, progress: float) -> float:
    """Return the part of a ramp that is done, in [0, 1]."""
    return min(1.0, max(0.0, (progress - ramp.start) / (ramp.end - ramp.start)))


def _require_interval(ramp: Ramp) -> None:
    if ramp.end > 1.0:
        raise InvalidInput(
            f"a ramp that ends at {ramp.end} of training is never over, so that what is inferred is not what was asked "
            "for. Its ends are fractions of training, not epochs: end at 1 or before."
        )
    if not 0.0 <= ramp.start < ramp.end:
        raise InvalidInput(f"a ramp needs 0 <= start < end <= 1, got {ramp.start}, {ramp.end}.")
