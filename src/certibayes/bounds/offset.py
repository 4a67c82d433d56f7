"""The offset of linear bounds, where constants are added and the rounding errors of a backward pass subtracted."""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.bounds.backward import paid_units, vanished
from certibayes.bounds.rounding import Rounding
from certibayes.regions import Box


class Offset:
    """d of a bound m >= A z + d, (B, S), in float64; in ideal arithmetic it is just a sum.

    Attributes:
        value: the sum.
        size: the sum of magnitudes, which bounds what rounding can do to it.
    """

    def __init__(self, like: Tensor, rounding: Rounding):
        self.value = torch.zeros(like.shape[:2], dtype=torch.float64, device=like.device)
        self.size, self.rounding = self.value, rounding

    def add(self, term: Tensor) -> None:
        """Add a constant (B, S)."""
        self.value = self.value + term.double()
        self.size = self.size + term.double().abs()

    def cover_coefficients(self, coefficients: Tensor, box: Box) -> None:
        """Subtract what the rounding errors of coefficients on the values of a box can cost."""
        if self.rounding.outward:
            self.add(paid_units(coefficients, box, self.rounding))

    def cover_underflow(self, box: Box) -> None:
        """Subtract what underflow in coefficients on the values of a box can cost."""
        if self.rounding.outward:
            self.add(vanished(box, self.rounding))

    def total(self, last: Tensor) -> Tensor:
        """Return the sum with a last term, rounded down."""
        total = self.value + last
        if not self.rounding.outward:
            return total
        # The sums that led here lose what underflows in them, besides.
        return total - (self.size + last.abs()) * 2.0**-40 - self.rounding.underflow

    def beside(self, coefficients: Tensor, box: Box) -> Tensor:
        """Return the sum as the offset of a linear function of the values of a box, whose coefficients may be off."""
        if not self.rounding.outward:
            return self.value
        return self.total(paid_units(coefficients, box, self.rounding).double())
