"""The way to the likelihood that a spec asks for: over which parts of training the radius grows and lam rises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from certibayes.errors import InvalidInput
from certibayes.likelihoods import Curriculum, LinearRamp, Ramp, SmoothRamp

if TYPE_CHECKING:
    from certibayes.experiments.spec import TrainSpec

RAMP = 0.5
"""Fraction of training by which the likelihood that was asked for is reached, unless iterates are collected earlier."""

LAM_PART = 0.3
"""The last part of that, in which lam rises, where it does: the radius has grown by 0.35, and lam by 0.5."""


def ramps_of(spec: TrainSpec) -> tuple[float, float]:
    """Return over which fraction of training the radius grows, and over which lam rises after that."""
    for name in ("ramp", "ramp_start", "lam_ramp"):
        value = getattr(spec, name)
        if value is not None and not 0.0 <= value <= 1.0:
            raise InvalidInput(f"{name} is a fraction of training, got {value}.")
    two_point = spec.radius == "two-point"
    if spec.lam_ramp and not two_point:
        raise InvalidInput(
            f"lam is the probability of radius 0 of the two-point distribution, and {spec.radius} has none: leave "
            "lam_ramp out."
        )
    # By then the likelihood is to be the one that was asked for.
    end = min(RAMP, spec.make_algorithm().collects_after)
    room = max(0.0, end - spec.ramp_start)
    lam_ramp = spec.lam_ramp
    if lam_ramp is None:
        rises = two_point and not spec.regression and spec.ramp != 0.0
        lam_ramp = LAM_PART * (room if spec.ramp is None else end) if rises else 0.0
    ramp = max(0.0, room - lam_ramp) if spec.ramp is None else spec.ramp
    if spec.ramp is None and ramp == 0.0:
        raise InvalidInput(
            f"ramp_start {spec.ramp_start:g} and lam_ramp {lam_ramp:g} leave the radius no time to grow before "
            f"{end:g} of training, when it should have grown. Make them shorter, or set ramp as well."
        )
    # Fractions are rounded when they are written, so that their sum may miss 1 by a little.
    if spec.ramp_start + ramp + lam_ramp > 1.0 + 1e-9:
        raise InvalidInput(
            f"ramp_start {spec.ramp_start:g}, ramp {ramp:g} and lam_ramp {lam_ramp:g} make more than the whole "
            "training, so that the likelihood that was asked for would never be reached. Make them shorter; "
            "lam_ramp 0 keeps lam constant."
        )
    return ramp, lam_ramp


def ramp_shape(spec: TrainSpec, lam_ramp: float) -> str:
    """Return how the radius grows."""
    return ("smooth" if lam_ramp else "linear") if spec.ramp_shape is None else spec.ramp_shape


def make_ramp(spec: TrainSpec) -> Curriculum | Ramp | None:
    """Make the way to the likelihood: a curriculum, or a ramp where that says all."""
    ramp, lam_ramp = ramps_of(spec)
    if spec.ramp_start and not ramp:
        raise InvalidInput("ramp_start is a warm-up before the radius grows, but with ramp 0 it does not grow.")
    grown = min(1.0, spec.ramp_start + ramp)
    end = min(1.0, grown + lam_ramp)
    first = (spec.first_multiplier or spec.multiplier) / spec.multiplier
    if first != 1.0 and not lam_ramp:
        raise InvalidInput("first_multiplier comes to multiplier while lam rises; set lam_ramp to a fraction.")
    shape = SmoothRamp if ramp_shape(spec, lam_ramp) == "smooth" else LinearRamp
    radius = shape(spec.ramp_start, grown) if ramp else None
    if not (lam_ramp or spec.tightness or spec.balance):
        return radius
    return Curriculum(
        radius,
        LinearRamp(grown, end) if lam_ramp else None,
        LinearRamp(grown, end, first) if first != 1.0 else None,
        spec.tightness,
        spec.balance,
    )
