"""The curriculum: how training approaches a robust likelihood that it cannot begin with.

The mixture log(lam p_clean + (1 - lam) p_worst) has two modes: one gives the worst case up, at a price of -log(lam) per
example, and one does not. A deep network whose bounds are still loose falls into the first at once. So the radius grows
while lam is 0, which leaves no other way than to bear the worst case, and lam comes to its value after that. At the end
of the curriculum the likelihood is exactly the one that was asked for: only the way to it differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from certibayes.errors import InvalidInput
from certibayes.likelihoods._settings import short_repr
from certibayes.likelihoods.radius import RadiusDistribution, TwoPoint
from certibayes.likelihoods.ramp import LinearRamp, Ramp, SmoothRamp

DEFAULT_RAMP = "default"


@dataclass(frozen=True, repr=False)
class Curriculum:
    """How radius, multiplier and lam change while training goes on, and what helps bounds to stay tight meanwhile.

    Attributes:
        radius: factor on the radius; None for full radii from the start. A ramp that starts later than 0 is a warm-up
            at radius 0.
        lam: factor on lam, the probability of radius 0 in ``TwoPoint``; it begins when the radius has grown. None for
            a lam that is constant, which any other distribution needs.
        multiplier: a further factor on the radius, such as ``LinearRamp(0.35, 0.5, first=2.0)`` to go through twice
            the radius on the way; None for none.
        tightness: weight of a regularizer that keeps the bounds of all layers about as tight as those of the input,
            while the radius is below its full value (Shi et al., 2021; 0.5 there). For ``TwoPoint``.
        balance: weight of a regularizer that keeps active and inactive units in balance, likewise.
    """

    radius: Ramp | None = SmoothRamp(0.0, 0.35)  # noqa: RUF009 - frozen
    lam: LinearRamp | None = LinearRamp(0.35, 0.5)  # noqa: RUF009 - frozen
    multiplier: LinearRamp | None = None
    tightness: float = 0.0
    balance: float = 0.0

    def __post_init__(self) -> None:
        _require_kind("radius", self.radius, Ramp)
        _require_kind("lam", self.lam, LinearRamp)
        _require_kind("multiplier", self.multiplier, LinearRamp)
        for name, ramp in (("radius", self.radius), ("lam", self.lam)):
            if isinstance(ramp, LinearRamp) and ramp.first != 0.0:
                raise InvalidInput(
                    f"the ramp of {name} begins at 0, got first={ramp.first}; the factor on the radius that begins "
                    "elsewhere is the multiplier."
                )
        grown = 0.0 if self.radius is None else self.radius.end
        if self.lam is not None and self.lam.start < grown:
            raise InvalidInput(
                f"lam rises from {self.lam.start:g} of training on, but the radius grows up to {grown:g}. Until it has "
                "grown, a lam above 0 lets training give the worst case up. Let lam start where the radius ends: "
                f"lam=LinearRamp({grown:g}, {min(1.0, grown + 0.15):g})."
                if grown < 1.0
                else "a radius that grows over all of training leaves no time for lam to rise: end it earlier, "
                "radius=SmoothRamp(0, 0.85), or keep lam constant, lam=None."
            )
        for name, weight in (("tightness", self.tightness), ("balance", self.balance)):
            if not (math.isfinite(weight) and weight >= 0.0):
                raise InvalidInput(f"{name} is the weight of a regularizer, a finite number >= 0, got {weight}.")
            if weight > 0.0 and self.radius is None:
                raise InvalidInput(f"{name} regularizes while the radius grows; give the curriculum a radius to grow.")

    @property
    def regularized(self) -> bool:
        """Whether anything but the likelihood is trained for on the way."""
        return self.tightness > 0.0 or self.balance > 0.0

    def radius_factor(self, progress: float) -> float:
        """Return the factor on radii at a fraction ``progress`` of training."""
        grown = 1.0 if self.radius is None else self.radius(progress)
        return grown if self.multiplier is None else grown * self.multiplier(progress)

    def distribution(self, p_eps: RadiusDistribution, progress: float) -> RadiusDistribution:
        """Return p_eps with its lam at a fraction ``progress`` of training; the radii are those of p_eps itself."""
        # Where radius 0 has all the mass, there is no other that could have it meanwhile.
        if self.lam is None or not isinstance(p_eps, TwoPoint) or p_eps.clean == 1.0:
            return p_eps
        return TwoPoint(p_eps.eta, p_eps.lam * self.lam(progress))

    def require_fits(self, p_eps: RadiusDistribution) -> None:
        """Raise unless the curriculum can lead to ``p_eps``."""
        if isinstance(p_eps, TwoPoint):
            return
        name = type(p_eps).__name__
        if self.lam is not None:
            raise InvalidInput(
                f"lam is the probability of radius 0 in TwoPoint, and {name} has none, so there is nothing to raise. "
                "Ramp the radius alone: ramp=SmoothRamp(0, 0.5), or Curriculum(lam=None)."
            )
        if self.regularized:
            raise InvalidInput(
                f"tightness and balance regularize the bounds of one radius, and {name} has many. Leave them out, or "
                "take TwoPoint."
            )

    def describe(self) -> dict[str, Any]:
        """Return what goes into a posterior's metadata."""
        ramps = {"radius": self.radius, "lam": self.lam, "multiplier": self.multiplier}
        described = {name: None if ramp is None else ramp.describe() for name, ramp in ramps.items()}
        return {"name": "Curriculum", **described, "tightness": self.tightness, "balance": self.balance}

    def __repr__(self) -> str:
        """Return the settings that are not at their defaults."""
        return short_repr(self)


def _require_kind(name: str, ramp: Any, kind: Any) -> None:
    if ramp is not None and not isinstance(ramp, kind):
        kinds = "LinearRamp(start, end) or SmoothRamp(start, end)" if kind is Ramp else "LinearRamp(start, end)"
        raise InvalidInput(f"{name} of a curriculum must be {kinds}, or None; got {ramp!r}.")


def as_curriculum(ramp: Curriculum | Ramp | None) -> Curriculum:
    """Return the curriculum that is meant by a ramp of the radius alone, or by None."""
    return ramp if isinstance(ramp, Curriculum) else Curriculum(radius=ramp, lam=None)


def require_ramp(ramp: Any) -> None:
    """Raise unless ``ramp`` is a ramp of the radius, a curriculum or None."""
    if isinstance(ramp, type) and issubclass(ramp, Curriculum | LinearRamp | SmoothRamp):
        raise InvalidInput(f"ramp is the class {ramp.__name__}; pass an instance: {ramp.__name__}().")
    if ramp is not None and not isinstance(ramp, Curriculum | LinearRamp | SmoothRamp):
        raise InvalidInput(
            "ramp must be LinearRamp(start, end), SmoothRamp(start, end) or Curriculum(...), or None for full radii "
            f"from the start, got {ramp!r}."
        )
