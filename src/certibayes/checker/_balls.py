"""The inputs that a claim is about: as intervals and round balls, and whether a given input is one of them."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from certibayes.checker._arithmetic import Array, Interval
from certibayes.checker._ball_enclosure import Round
from certibayes.checker._claim import FLOATS, Claim


class Balls(NamedTuple):
    """Balls around points, cut by the domain; all of the shape of the points, (B, ...).

    Attributes:
        x: the points.
        eps: radii.
        low: smallest values that inputs can take.
        high: largest values.
    """

    x: Array
    eps: Array
    low: Array
    high: Array

    def part(self, which: slice) -> Balls:
        """Return the balls of some points."""
        return Balls(*(values[which] for values in self))


def balls_of(claim: Claim, x: Array) -> Balls | None:
    """Return the balls of a claim around points (B, ...), or None if its radii or its domain do not fit them."""
    values = [_fitted(part, x.shape) for part in (claim.eps, *claim.domain)]
    return None if any(value is None for value in values) else Balls(x, *values)  # type: ignore[arg-type]


def _fitted(values: Array, shape: tuple[int, ...]) -> Array | None:
    """Shape a number, one for each point (B,), or one for each input value (1, ...) or (B, ...) like the points."""
    if values.ndim == 1 and values.shape == shape[:1]:
        values = values.reshape(-1, *(1,) * (len(shape) - 1))
    elif values.ndim and not (values.shape[1:] == shape[1:] and values.shape[0] in (1, shape[0])):
        return None
    return np.broadcast_to(values, shape)


def box_around(balls: Balls, claim: Claim) -> Interval:
    """Enclose every input that the claim is about, as the program reads it; no norm is smaller than l-infinity."""
    x, eps = balls.x, balls.eps
    lower = np.where(eps > 0, np.nextafter(x - eps, -np.inf), x)
    upper = np.where(eps > 0, np.nextafter(x + eps, np.inf), x)
    # The point itself is an input, also where it is the rounded end of the domain.
    lower = np.maximum(lower, np.minimum(balls.low, x))
    upper = np.minimum(upper, np.maximum(balls.high, x))
    if claim.rounding == "ideal":
        return Interval(lower, upper)
    # The program rounds its input to its own precision. Rounding is monotone: no input passes a rounded end.
    read = FLOATS[claim.dtype]
    return Interval(lower.astype(read).astype(np.float64), upper.astype(read).astype(np.float64))


def round_balls(balls: Balls, box: Interval, claim: Claim) -> Round | None:
    """The balls of the claim in l2 or l1; what reading an input rounds is their slack, a unit of its magnitude."""
    if claim.norm == "linf":
        return None
    x = balls.x
    radius = balls.eps.reshape(len(x), -1).max(1) * (1 + 2.0**-50)
    units = 0.0 if claim.rounding == "ideal" else 4 * claim.program.unit
    slack = units * np.maximum(box.magnitude, np.abs(x)) + claim.program.tiny
    return Round(x, radius, {"l2": 2, "l1": 1}[claim.norm], np.ones_like(x[:1]), slack)


def contains(balls: Balls, index: int, point: Array, claim: Claim) -> bool:
    """Tell whether an input (...) lies in the ball and the domain of point ``index``, without any tolerance.

    Its exact distance, rounded to float64, must not exceed the radius: that is how the distance of an input is meant
    where ball and input are float64 numbers. The domain's ends count as they are and as the program rounds them.
    """
    x, eps, low, high = (values[index].ravel() for values in balls)
    point, read = point.ravel(), FLOATS[claim.dtype]
    lowest = np.minimum(np.minimum(low, low.astype(read)), x)
    highest = np.maximum(np.maximum(high, high.astype(read)), x)
    if not ((lowest <= point) & (point <= highest)).all():
        return False
    away = [abs(Fraction(float(a)) - Fraction(float(b))) for a, b in zip(point, x, strict=True)]
    reach = [_rounds_to(float(radius)) for radius in eps] if claim.norm == "linf" else [_rounds_to(float(eps.min()))]
    if claim.norm == "linf":
        return all(one <= radius for one, radius in zip(away, reach, strict=True))
    if claim.norm == "l1":
        return sum(away) <= reach[0]
    return sum(one * one for one in away) <= reach[0] ** 2


def _rounds_to(value: float) -> Fraction:
    """The largest number that rounds to ``value``."""
    return (Fraction(value) + Fraction(float(np.nextafter(value, np.inf)))) / 2
