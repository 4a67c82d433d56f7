"""Certification rules: when do bounds on N networks prove the class of their mean?

Each rule takes bounds on the logits of every network, (N, B, C) in float64, and labels (B,), and returns a margin (B,):
the class is proved where the margin exceeds what rounding of the predictor itself can take back.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from certibayes.certify.softmax import TINY, exponentials, probability_bounds, sum_of_others

Rule = Callable[[Tensor, Tensor, Tensor], Tensor]


def _is_label(labels: Tensor, classes: int) -> Tensor:
    return labels[:, None] == torch.arange(classes, device=labels.device)


def theorem1(lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """Theorem 1 of the paper: the mean lower bound of the label against each rival's mean upper bound."""
    lowest, highest = (bound.mean(0) for bound in probability_bounds(lower, upper))
    is_label = _is_label(labels, lower.shape[-1])
    own = lowest.masked_fill(~is_label, -torch.inf).amax(-1)
    rival = highest.masked_fill(is_label, -torch.inf).amax(-1)
    return own - rival


def pairwise(lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """For each rival c, the mean over networks of the smallest softmax_y - softmax_c over the box of logits.

    The minimum is at a corner: y at its lower end, c at its upper end, and the other classes where they help the
    attacker: at their upper ends if the difference is positive (they shrink it), at their lower ends if it is negative.
    Never worse than ``theorem1``, which lets y and c see different corners.
    """
    is_label = _is_label(labels, lower.shape[-1])
    low, high, error = exponentials(lower, upper)
    own = low.masked_fill(~is_label, 0.0).sum(-1, keepdim=True)
    others_high = sum_of_others(high.masked_fill(is_label, 0.0))
    others_low = sum_of_others(low.masked_fill(is_label, 0.0))
    difference = own - high
    others = torch.where(difference >= 0, others_high + TINY, others_low)
    smallest = difference / (own + high + others + TINY)
    # The difference of two probabilities carries their absolute error, at most that of a probability of 1.
    mean = (smallest - 2 * error).mean(0)
    return mean.masked_fill(is_label, torch.inf).amin(-1)


RULES: dict[str, Rule] = {"theorem1": theorem1, "pairwise": pairwise}
