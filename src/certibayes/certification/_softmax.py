"""Bounds on softmax probabilities over boxes of logits, sound in float64.

The softmax of a class grows with its own logit and falls with every other, so over a box its extremes are at corners:
lowest with the class at its lower end and all others at their upper ends. Sums leave the class itself out without
subtracting it, which would cancel; what underflows is replaced by a tiny number on the safe side.
"""

from __future__ import annotations

import torch
from torch import Tensor

TINY = 1e-300

FEW = 64
"""Classes up to which a product with ones beside the diagonal is faster than running sums."""


def sum_of_others(terms: Tensor) -> Tensor:
    """For each entry of the last dimension, the sum of all other entries; terms are finite and not negative."""
    classes = terms.shape[-1]
    if classes <= FEW:
        return terms @ (1 - torch.eye(classes, dtype=terms.dtype, device=terms.device))
    # Adding from both sides instead of total - own keeps every rounding error relative to what is summed.
    zero = torch.zeros_like(terms[..., :1])
    before = torch.cat([zero, torch.cumsum(terms, -1)[..., :-1]], -1)
    after = torch.cat([torch.cumsum(terms.flip(-1), -1).flip(-1)[..., 1:], zero], -1)
    return before + after


def log_sum_of_others(logits: Tensor) -> Tensor:
    """For each entry of the last dimension, log of the sum of the exponentials of all others; -inf if there are none.

    Entries of classes that are left out are -inf.
    """
    peak, top = logits.max(-1, keepdim=True)
    peak = peak.clamp(min=torch.finfo(logits.dtype).min)
    # Beside the largest entry the rest may underflow, so for it the rest is summed on a scale of its own.
    is_top = torch.arange(logits.shape[-1], device=logits.device) == top
    beside_top = torch.logsumexp(logits.masked_fill(is_top, -torch.inf), -1, keepdim=True)
    return torch.where(is_top, beside_top, sum_of_others(torch.exp(logits - peak)).log() + peak)


def relative_error(lower: Tensor, upper: Tensor) -> Tensor:
    """Bound (..., 1) the relative error of what is computed from exponentials of logits by sums and one division.

    An exponent of magnitude z is off by z 2⁻⁵³, and each of the C terms rounds.
    """
    # lower <= upper, so that these are the extremes of both.
    magnitude = torch.maximum(upper.amax(-1, keepdim=True), -lower.amin(-1, keepdim=True))
    return (4 * magnitude + 4 * lower.shape[-1] + 16) * 2.0**-50


def probability_bounds(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Bound every class probability of each network over its box of logits.

    Args:
        lower: logits' lower ends, float64 (..., C).
        upper: logits' upper ends.

    Returns:
        Lower and upper bounds on the exact softmax, (..., C).
    """
    peak, error = upper.amax(-1, keepdim=True), relative_error(lower, upper)
    low, high = (lower - peak).exp_(), (upper - peak).exp_()
    # In place, since fresh memory costs more than the arithmetic. Subnormals have few digits, hence ``TINY``:
    # smallest = (low - TINY) / (low + others of high + TINY), largest = (high + TINY) / (high + TINY + others of low).
    beside_low, beside_high = sum_of_others(high).add_(low).add_(TINY), sum_of_others(low)
    smallest = low.sub_(TINY).clamp_min_(0.0).div_(beside_low).mul_(1 - error).clamp_min_(0.0)
    high.add_(TINY)
    return smallest, high.div_(beside_high.add_(high)).mul_(1 + error).clamp_max_(1.0)
