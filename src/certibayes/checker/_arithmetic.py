"""Intervals in numpy float64, and the arithmetic of the program that they must hold: the independent checker's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = dict[str, Array]

OWN_UNIT = 2.0**-53
"""Unit roundoff of numpy's float64."""

LIMIT = 2.0**100
"""Terms that may add up to more than this could overflow float32; nothing is said about such a point."""


class Interval(NamedTuple):
    """Lower and upper ends, (B, ...)."""

    lower: Array
    upper: Array

    @property
    def magnitude(self) -> Array:
        """Largest absolute value."""
        return np.maximum(np.abs(self.lower), np.abs(self.upper))


@dataclass(frozen=True)
class Program:
    """The arithmetic in which the network runs.

    Attributes:
        unit: unit roundoff; 0 for exact arithmetic.
        tiny: smallest normal number: what underflow can take, even if subnormal numbers are flushed to 0.
    """

    unit: float
    tiny: float

    def widen(
        self, lower: Array, upper: Array, magnitude: Array, roundings: int, factors: float | Array = 0.0
    ) -> Interval:
        """Enclose what the program computes where the exact result lies in [lower, upper], as computed here.

        Args:
            lower: lower end, up to our own rounding.
            upper: upper end.
            magnitude: the sum of the magnitudes of all terms.
            roundings: how many roundings a term meets in the program; here it may be twice as many and 8 more.
            factors: a bound on the sum of the factors that an underflowed value may be multiplied by.
        """
        relative = gamma(roundings, self.unit) + gamma(2 * roundings + 8, OWN_UNIT)
        # 1.001 covers the rounding of magnitude and of this expression.
        error = 1.001 * (relative * magnitude + 4.0 * self.tiny * (roundings + 8) * (1.0 + factors))
        error = np.where(magnitude <= LIMIT, error, np.nan)
        return Interval(np.nextafter(lower - error, -np.inf), np.nextafter(upper + error, np.inf))


def gamma(roundings: int, unit: float) -> float:
    """γ_k = k u / (1 - k u), or NaN where that is of no use."""
    return roundings * unit / (1 - roundings * unit) if roundings * unit < 0.1 else np.nan
