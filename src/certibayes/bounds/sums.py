"""Sums of products over a layer: in pieces where they are long, portion by portion, and how far rounding moves them."""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.bounds.rounding import Rounding

COEFFICIENT_UNITS = 16.0
"""Units by which a coefficient may be off when it is propagated to a layer."""

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
    count = points if coefficients.is_cuda else PORTION // max(1, coefficients[:1].numel())
    count = max(1, count)
    return [slice(start, start + count) for start in range(0, max(1, points), count)]


def portion(values: Tensor, part: slice) -> Tensor:
    """Return what belongs to a part of the points: (B, ...), or (1, ...) for all of them."""
    return values if len(values) == 1 else values[part]


def joined(parts: list[Tensor]) -> Tensor:
    """Concatenate the results for portions."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def dot_magnitudes(coefficients: Tensor, values: Tensor) -> Tensor:
    """Return ``dot`` of the magnitudes |A| with values: (B, S, ...) and (B or 1, ...) -> (B, S)."""
    return joined([dot(coefficients[part].abs(), portion(values, part)) for part in portions(coefficients)])


def sum_error(values: Tensor, rounding: Rounding) -> float:
    """Relative error of ``dot`` with ``values`` (B, ...), with some units to spare for coefficients that are off.

    In ideal arithmetic it is 0.
    """
    if not rounding.outward:
        return 0.0
    terms = values[0].numel()
    error = rounding.gamma(terms + 8) if terms <= LONG else rounding.gamma(PIECE + 8) + terms * 2.0**-52
    return 2 * error + COEFFICIENT_UNITS * rounding.unit
