"""The inputs of a specification as floats: a box that holds all of them for proofs, and those inside it for attacks.

A specification's numbers are decimals, a network reads floats. Whoever reads a decimal gets one of the two floats
beside it, so a proof is about the box between the outermost of these. A counterexample is a float inside the box as it
is written; where there is none between its ends, as where an input is fixed at 0.1, it is the float nearest to them,
and the value that is reported is the end itself, which reads as that float.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from certibayes.bounds import Box, outward
from certibayes.bounds.intermediate import box_between_ends
from certibayes.errors import InvalidInput
from certibayes.support.checks import LARGEST
from certibayes.vnnlib import Case, decimal

_KINDS: dict[torch.dtype, type[np.floating]] = {torch.float32: np.float32, torch.float64: np.float64}


class Neighbors(NamedTuple):
    """The largest float that is not above a number, and the smallest that is not below it."""

    below: float
    above: float


def neighbors(number: Fraction, dtype: torch.dtype) -> Neighbors:
    """Return the floats of a precision on both sides of a number; both are the number where it is a float."""
    kind = _KINDS[dtype]
    near = kind(float(number))
    exact = Fraction(float(near))
    below = near if exact <= number else np.nextafter(near, kind(-np.inf))
    above = near if exact >= number else np.nextafter(near, kind(np.inf))
    return Neighbors(float(below), float(above))


class FloatInputs:
    """The inputs of one case of a specification, as a network of some precision reads them.

    Args:
        case: the box.
        shape: of one input.
        dtype: float32 or float64.
        device: where tensors are made.

    Raises:
        InvalidInput: values are so large that underflow is not accounted for.
    """

    def __init__(self, case: Case, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device):
        if any(abs(end) > LARGEST for end in (*case.lower, *case.upper)):
            raise InvalidInput("inputs are beyond 2^30, where underflow is not accounted for. Scale them.")
        self.case, self.dtype = case, dtype
        self._shape, self._device = shape, device
        self._ends = [
            (neighbors(low, dtype), neighbors(high, dtype)) for low, high in zip(case.lower, case.upper, strict=True)
        ]

    def _tensor(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self._device).view(1, *self._shape)

    @cached_property
    def box(self) -> Box:
        """What proofs are about: every float that a number of the box may be read as, (1, *shape)."""
        low = self._tensor([low.below for low, _ in self._ends])
        high = self._tensor([high.above for _, high in self._ends])
        return box_between_ends(low.double(), high.double(), self.dtype, outward(self.dtype))

    @cached_property
    def limits(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest float of every input that a counterexample may have, (1, *shape) each."""
        lows, highs = [], []
        for number, (low, high) in zip(self.case.lower, self._ends, strict=True):
            inside = low.above <= high.below
            nearest = low.below if number - Fraction(low.below) <= Fraction(low.above) - number else low.above
            lows.append(low.above if inside else nearest)
            highs.append(high.below if inside else nearest)
        return self._tensor(lows), self._tensor(highs)

    def project(self, x: Tensor) -> Tensor:
        """Bring inputs (B, *shape) inside the limits."""
        return torch.clamp(x.to(self.dtype), *self.limits)

    def numbers(self, x: Tensor) -> list[Fraction]:
        """Return the numbers of the box, as it is written, that read as the floats of an input within the limits."""
        floats = map(Fraction, x.double().flatten().tolist())
        return [
            min(max(value, low), high)
            for value, low, high in zip(floats, self.case.lower, self.case.upper, strict=True)
        ]

    def texts(self, x: Tensor) -> list[str]:
        """Write an input (*shape) so that every value lies inside the box and reads as its float."""
        return [
            _text(float(value), number, low, high)
            for value, number, low, high in zip(
                x.double().flatten().tolist(), self.numbers(x), self.case.lower, self.case.upper, strict=True
            )
        ]


def _text(value: float, number: Fraction, low: Fraction, high: Fraction) -> str:
    """Write a float in as few digits as tell it from others; in all of them where that would leave the box."""
    if low <= Fraction(repr(value)) <= high:
        return repr(value)
    try:
        return decimal(number)
    except InvalidInput:  # an end such as 1/3
        return repr(value)
