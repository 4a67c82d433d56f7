"""Certification rules: what do bounds on N networks prove about the class of their mean?

Each rule takes float64 bounds and labels (B,) and returns lower bounds on differences of probabilities, softmax_y -
softmax_c, for every class c: the label is proved where all of them exceed what rounding of the predictor itself can
take back. ``theorem1`` bounds the mean over networks, the others each network by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.certification._softmax import log_sum_of_others, probability_bounds, relative_error

PORTION = 2**16
"""Logits that a processor's cache holds, with what is made of them. Twice 2¹⁵, below which torch uses one thread."""

Means = tuple[Tensor, Tensor]
"""Lower and upper bounds on the mean probability of every class, (B, C) each."""


def _is_label(labels: Tensor, classes: int) -> Tensor:
    return labels[:, None] == torch.arange(classes, device=labels.device)


def mean_probability_bounds(lower: Tensor, upper: Tensor) -> Means:
    """Bound the mean probability of every class, (B, C) each.

    Args:
        lower: lower bounds on logits, (N, B, C).
        upper: upper bounds.
    """
    networks, each = len(lower), lower[0].numel()
    # A CPU goes through them in parts that its cache holds; fresh memory for all would cost more than the arithmetic.
    at_once = networks if lower.is_cuda else max(1, PORTION // max(1, each))
    lowest, highest = torch.zeros_like(lower[0]), torch.zeros_like(upper[0])
    for low, high in zip(lower.split(at_once), upper.split(at_once), strict=True):
        smallest, largest = probability_bounds(low, high)
        lowest += smallest.sum(0)
        highest += largest.sum(0)
    return lowest / networks, highest / networks


def theorem1_differences(lowest: Tensor, highest: Tensor, labels: Tensor) -> Tensor:
    """Theorem 1 of the paper: the mean lower bound of the label against each rival's mean upper bound, (B, C).

    Args:
        lowest: lower bounds on the mean probability of every class, (B, C).
        highest: upper bounds.
        labels: (B,).
    """
    is_label = _is_label(labels, lowest.shape[-1])
    own = lowest.masked_fill(~is_label, -torch.inf).amax(-1, keepdim=True)
    return (own - highest).masked_fill(is_label, torch.inf)


def pairwise_values(lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """For each network and rival c, the smallest softmax_y - softmax_c over the box of logits, (N, B, C).

    The minimum is at a corner: y at its lower end, c at its upper end, and the other classes where they help the
    attacker: at their upper ends if the difference is positive (they shrink it), at their lower ends if it is negative.
    The label's own entry is infinite.
    """
    is_label = _is_label(labels, lower.shape[-1])
    own = lower.masked_fill(~is_label, -torch.inf).amax(-1, keepdim=True)
    # Exponents are taken relative to the larger of y and c, so that neither can underflow beside a third class.
    lead, gap = torch.maximum(own, upper), own - upper
    others = torch.where(
        gap >= 0,
        log_sum_of_others(upper.masked_fill(is_label, -torch.inf)),
        log_sum_of_others(lower.masked_fill(is_label, -torch.inf)),
    )
    ratio = torch.exp(-gap.abs())
    smallest = gap.sign() * (1 - ratio) / (1 + ratio + torch.exp(others - lead))
    # What the exponents lose: at most 1, the magnitude of a difference of probabilities, times their relative error.
    return (smallest - 2 * relative_error(lower, upper)).masked_fill(is_label, torch.inf)


def elided_values(margins: Tensor, upper_margins: Tensor, labels: Tensor) -> Tensor:
    """The same from margins m_j = z_y - z_j with the last layer folded in: lower bounds M_j, upper bounds U_j.

        softmax_y - softmax_c = (1 - exp(-m_c)) / (1 + exp(-m_c) + Σ_j exp(-m_j))

    grows with m_c. The other margins matter in two ways: where M_c >= 0, the difference is smallest with them at their
    lower bounds; where M_c < 0, with the sum as small as it can be, so at their upper bounds. Entries of the label are
    ignored and come back infinite.

    Args:
        margins: M, (N, B, C), float64.
        upper_margins: U, (N, B, C), float64.
        labels: (B,).
    """
    is_label = _is_label(labels, margins.shape[-1])
    positive = margins >= 0
    # Logarithms of the sums over the other rivals.
    many = log_sum_of_others((-margins).masked_fill(is_label, -torch.inf))
    few = log_sum_of_others((-upper_margins).masked_fill(is_label, -torch.inf))
    ratio = torch.exp(-margins.abs())
    # Where M_c < 0 both sides of the fraction are multiplied by exp(M_c).
    rest = torch.exp(torch.where(positive, many, few + margins))
    value = margins.sign() * (1 - ratio) / (1 + ratio + rest)
    lost = 2 * relative_error(margins.masked_fill(is_label, 0.0), upper_margins.masked_fill(is_label, 0.0))
    return (value - lost).masked_fill(is_label, torch.inf)
