r"""What a layer's linear rule takes and returns.

Linear bounds go backwards (CROWN; Zhang et al., 2018). A quantity m of the outputs is bounded from below by a linear
function of some layer's values z, m >= A z + d, and a layer's rule turns that into a linear function of what the layer
takes in: exactly for a linear layer, by a linear relaxation for an activation, line by line for the sign of A.

Rounding. The program that runs computes z = W x + b + δ with |δ| <= e, in any order, e = γ (|W| |x| + |b|); so
m >= A W x + A b + d - |A| e. The backward computation rounds as well: A W is off by γ |A| |W|, which moves the
bound by γ |A| (|W| |x|), a term of the same form. Both are paid for by |A| e with a larger γ. Coefficients that
arrive at a layer may be off by a few units themselves; a share of the layer's own magnitude in e pays for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds.rounding import Rounding, widened
from certibayes.regions import Box

COEFFICIENT_UNITS = 16.0
"""Units by which a coefficient may be off when it arrives at a layer."""


@dataclass(frozen=True)
class Step:
    """One layer on the way back.

    Attributes:
        coefficients: A on the layer's output, (B, S, *output_shape), for S quantities of each example.
        inputs: boxes that hold the layer's inputs, in the program that runs.
        output: box that holds its output.
        rounding: of the program that runs, or ideal.
        slope: lower slopes of unstable activations, in [0, 1], broadcasting against the coefficients; or ``"zero"`` or
            ``"adaptive"``, CROWN's choice of 1 where the interval is more positive than negative.
        owned: whether nobody else needs the coefficients, so that they may be overwritten.
    """

    coefficients: Tensor
    inputs: tuple[Box, ...]
    output: Box
    rounding: Rounding
    slope: Tensor | str = "zero"
    owned: bool = False

    def magnitude(self, index: int = 0) -> Tensor:
        """Largest magnitude of an input, |c| + r."""
        box = self.inputs[index]
        return box.centre.abs() + box.radius

    def ends(self, index: int = 0) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends of an input, moved outwards by what the subtraction can lose."""
        box = self.inputs[index]
        radius = widened(box, 4 * self.rounding.unit) if self.rounding.outward else box.radius
        return box.centre - radius, box.centre + radius


class Backward(NamedTuple):
    """Coefficients on each input, (B, S, *input_shape), and what is added to the constant, (B, S).

    Attributes:
        coefficients: one for each input.
        constant: of the bound.
        paid: whether coefficients that arrived a few units off were paid for; see ``paid``.
        owned: whether the coefficients are in memory of their own.
    """

    coefficients: tuple[Tensor, ...]
    constant: Tensor
    paid: bool = True
    owned: bool = False


LONG = 1024
"""Sums longer than this are made in pieces, which are added up in float64: their rounding would cost too much."""

PIECE = 32


def dot(coefficients: Tensor, values: Tensor) -> Tensor:
    """Sum of products over everything but the first two dimensions: (B, S, ...) and (B or 1, ...) -> (B, S).

    It errs by at most ``sum_error`` times the same sum of magnitudes.
    """
    flat = coefficients.flatten(2)
    row = values.expand(flat.shape[0], *values.shape[1:]).flatten(1)[:, None]
    terms = flat.shape[-1]
    if terms > LONG:
        products, whole = flat * row, terms - terms % PIECE
        pieces = products[..., :whole].unflatten(-1, (-1, PIECE)).sum(-1)
        return pieces.sum(-1, dtype=torch.float64) + products[..., whole:].sum(-1)
    # A row times the transposed matrix: the other way round takes three times as long.
    return torch.bmm(row, flat.transpose(1, 2)).squeeze(1)


PORTION = 2**19
"""Coefficients that a processor's cache holds. Fresh memory for all of them costs more than the arithmetic."""


def portions(coefficients: Tensor) -> list[slice]:
    """Cut the points of coefficients (B, S, ...) into parts that a cache holds; a GPU takes them whole."""
    points = len(coefficients)
    size = points if coefficients.is_cuda else PORTION // max(1, coefficients[:1].numel())
    size = max(1, size)
    return [slice(start, start + size) for start in range(0, max(1, points), size)]


def portion(values: Tensor, part: slice) -> Tensor:
    """Return what belongs to a part of the points: (B, ...), or (1, ...) for all of them."""
    return values if len(values) == 1 else values[part]


def joined(parts: list[Tensor]) -> Tensor:
    """Put the results for portions together again."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def dot_sizes(coefficients: Tensor, values: Tensor) -> Tensor:
    """Return ``dot`` of the sizes |A| with values: (B, S, ...) and (B or 1, ...) -> (B, S)."""
    return joined([dot(coefficients[part].abs(), portion(values, part)) for part in portions(coefficients)])


def sum_error(values: Tensor, rounding: Rounding) -> float:
    """Relative error of ``dot`` with ``values`` (B, ...), with some units to spare for coefficients that are off."""
    terms = values[0].numel()
    error = rounding.gamma(terms + 8) if terms <= LONG else rounding.gamma(PIECE + 8) + terms * 2.0**-52
    return 2 * error + COEFFICIENT_UNITS * rounding.unit


def paid_units(coefficients: Tensor, box: Box, rounding: Rounding) -> Tensor:
    """Return what ``COEFFICIENT_UNITS`` in coefficients on the values of a box can cost, (B, S)."""
    share = (box.centre.abs() + box.radius) * (2 * COEFFICIENT_UNITS * rounding.unit)
    return -dot_sizes(coefficients, share)


def vanished(box: Box, rounding: Rounding) -> Tensor:
    """Return what underflow in coefficients on the values of a box can cost, (B, 1).

    A coefficient is a sum of fewer than 2²¹ products (``Rounding.gamma`` refuses longer sums), and each may vanish
    below the smallest normal number, or be multiplied once more by a weight of up to 2³⁰ (batch norm). It matters where
    small weights follow large ones.
    """
    centre, radius = box.centre.flatten(1), box.radius.flatten(1)
    largest = torch.maximum(centre.amax(1, keepdim=True), -centre.amin(1, keepdim=True)) + radius.amax(1, keepdim=True)
    # Twice what is needed pays for rounding.
    return -largest.double() * (2 * box.centre[0].numel() * rounding.underflow * 2.0**-20)


def paid(step: Step, error: Tensor) -> Tensor:
    """Return what an error of at most ``error`` (B, *output_shape) in the layer's output can cost: -|A| e, (B, S)."""
    own = step.output.centre.abs().add_(step.output.radius)
    # The share of the magnitude pays for the coefficients; the factor for rounding of this very sum.
    factor = 1 + sum_error(own, step.rounding)
    total = own.mul_(COEFFICIENT_UNITS * step.rounding.unit).add_(error).mul_(factor)
    return -dot_sizes(step.coefficients, total)
