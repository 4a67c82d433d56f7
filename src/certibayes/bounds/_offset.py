r"""The offset of a linear bound, and all that rounding costs a backward pass.

The program that runs computes z = W x + b + δ with |δ| <= e, in any order, e = γ (|W| |x| + |b|); so

    m >= A z + d >= A W x + A b + d - |A| e.

The backward pass rounds as well: A W is off by γ |A| |W|, which moves the bound by γ |A| (|W| |x|), a term of the same
form, so a larger γ in e covers both. Any bound on |W| |x| will do for e, since γ is small. Incoming coefficients may be
a few units off themselves, which a fraction of the layer's own magnitude in e covers; where no e is subtracted, or
coefficients are added and may cancel, their error is subtracted by itself. What underflows has no relative error and is
subtracted at every layer.

Rules say how large e is, and ``Offset`` alone subtracts; in ideal arithmetic it asks for no error. Three roundings stay
where they arise. Interval rules widen the radius that they propagate (``bounds.rounding``): an error beside it would
need a third product as large as the layer. The linear functions of a relaxation are moved outwards where they are made,
because what has to hold is the function itself, not a value near it. And cuts are computed in float64, where products
of floats are exact, and add the error of the program to their constants.
"""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds.rounding import Rounding
from certibayes.bounds.sums import COEFFICIENT_UNITS, dot_magnitudes, sum_error
from certibayes.regions import Box


class Offset:
    """d of a bound m >= A z + d, (B, S), in float64; in ideal arithmetic it is just a sum.

    Attributes:
        value: the sum.
        magnitude: in outward rounding the sum of magnitudes, which bounds the rounding of the sum itself.
    """

    def __init__(self, like: Tensor, rounding: Rounding):
        self.value = torch.zeros(like.shape[:2], dtype=torch.float64, device=like.device)
        self.magnitude, self.rounding = self.value, rounding

    def add(self, term: Tensor) -> None:
        """Add a constant (B, S)."""
        self.value = self.value + term.double()
        if self.rounding.outward:
            self.magnitude = self.magnitude + term.double().abs()

    def add_layer(self, step: Step, back: Backward) -> None:
        """Add the constant of a layer's rule, less its rounding errors."""
        constant = back.constant
        if self.rounding.outward and back.output_error is not None:
            constant = constant - error_through(step.coefficients, step.output, back.output_error(), self.rounding)
        if self.rounding.outward and back.bound_error is not None:
            constant = constant - back.bound_error()
        self.add(constant)

    def cover_coefficients(self, coefficients: Tensor, box: Box) -> None:
        """Subtract what the rounding errors of coefficients on the values of a box can cost."""
        if self.rounding.outward:
            self.add(-coefficient_error(coefficients, box, self.rounding))

    def cover_underflow(self, box: Box) -> None:
        """Subtract what underflow in coefficients on the values of a box can cost."""
        if self.rounding.outward:
            self.add(-underflow_error(box, self.rounding))

    def total(self, last: Tensor) -> Tensor:
        """Return the sum with a last term, rounded down."""
        total = self.value + last
        if not self.rounding.outward:
            return total
        # The sums that led here lose what underflows in them, besides.
        return total - (self.magnitude + last.abs()) * 2.0**-40 - self.rounding.underflow

    def beside(self, coefficients: Tensor, box: Box) -> Tensor:
        """Return the sum as the offset of a linear function of the values of a box, whose coefficients may be off."""
        if not self.rounding.outward:
            return self.value
        return self.total(-coefficient_error(coefficients, box, self.rounding).double())


def coefficient_error(coefficients: Tensor, box: Box, rounding: Rounding) -> Tensor:
    """Return what ``COEFFICIENT_UNITS`` in coefficients on the values of a box can cost, (B, S)."""
    return dot_magnitudes(coefficients, box.magnitude() * (2 * COEFFICIENT_UNITS * rounding.unit))


def underflow_error(box: Box, rounding: Rounding) -> Tensor:
    """Return what underflow in coefficients on the values of a box can cost, (B, 1), in float64.

    A coefficient is a sum of fewer than 2²¹ products (``Rounding.gamma`` refuses longer sums), and each may underflow
    below the smallest normal number. That of a batch norm is multiplied once more, by a weight of up to 2³⁰ or by
    1 / sqrt(v) <= 2³⁴ (``SMALLEST_VARIANCE``), in an order that torch chooses. It matters where small weights follow
    large ones.
    """
    if box.largest is None:
        center, radius = box.center.flatten(1), box.radius.flatten(1)
        largest = torch.maximum(center.amax(1, keepdim=True), -center.amin(1, keepdim=True))
        largest = largest + radius.amax(1, keepdim=True)
    else:
        largest = box.largest.flatten(1).amax(1, keepdim=True)
    # Twice what is needed covers the rounding of this expression.
    return largest.double() * (2 * box.center[0].numel() * rounding.underflow * 2.0**-20)


def error_through(coefficients: Tensor, output: Box, error: Tensor, rounding: Rounding) -> Tensor:
    """Return what an error of at most e in a layer's output can cost, |A| e, (B, S).

    Args:
        coefficients: A on the output, (B, S, *output_shape), which may be off by ``COEFFICIENT_UNITS``.
        output: box that holds it.
        error: e, (B, *output_shape).
        rounding: of the program that runs.
    """
    # The fraction of the magnitude covers the coefficients; the factor covers the rounding of this very sum.
    factor = 1 + sum_error(error, rounding)
    whole = torch.add(error, output.magnitude(), alpha=COEFFICIENT_UNITS * rounding.unit)
    return dot_magnitudes(coefficients, whole.mul_(factor))
