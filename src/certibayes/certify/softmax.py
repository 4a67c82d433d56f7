"""Bounds on softmax probabilities over boxes of logits, sound in float64.

The softmax of a class grows with its own logit and falls with every other, so over a box its extremes are at corners:
lowest with the class at its lower end and all others at their upper ends. Sums leave the class itself out without
subtracting it, which would cancel; what underflows is replaced by a tiny number on the safe side.
"""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-300


def sum_of_others(terms: Tensor) -> Tensor:
    """For each entry of the last dimension, the sum of all other entries; terms must not be negative."""
    # Adding from both sides instead of total - own keeps every rounding error relative to what is summed.
    zero = torch.zeros_like(terms[..., :1])
    before = torch.cat([zero, torch.cumsum(terms, -1)[..., :-1]], -1)
    after = torch.cat([torch.cumsum(terms.flip(-1), -1).flip(-1)[..., 1:], zero], -1)
    return before + after


def exponentials(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return exp(lower - m), exp(upper - m) with m the largest upper end, and their relative error.

    Args:
        lower: logits' lower ends, float64 (..., C).
        upper: logits' upper ends.

    Returns:
        Both exponentials, and a bound (..., 1) on the relative error of anything computed from them by
        a few sums and one division: an exponent of size z is off by z 2⁻⁵³, and each of the C terms rounds.
    """
    peak = upper.amax(-1, keepdim=True)
    span = (peak - lower.amin(-1, keepdim=True)) + lower.abs().amax(-1, keepdim=True) + peak.abs()
    error = (span + 4 * lower.shape[-1] + 16) * 2.0**-50
    return torch.exp(lower - peak), torch.exp(upper - peak), error


def probability_bounds(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Bound every class probability of each network over its box of logits.

    Args:
        lower: float64 (..., C).
        upper: float64 (..., C).

    Returns:
        Lower and upper bounds on the exact softmax, (..., C).
    """
    low, high, error = exponentials(lower, upper)
    smallest = low / (low + sum_of_others(high) + TINY)
    largest = (high + TINY) / (high + TINY + sum_of_others(low))
    return smallest * (1 - error), (largest * (1 + error)).clamp(max=1.0)
