"""Certification rules: when do bounds on N networks prove the class of their mean?

Each rule takes bounds on the logits of every network, (N, B, C) in float64, and labels (B,), and returns a margin (B,):
the class is proved where the margin exceeds what rounding of the predictor itself can take back.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from certibayes.certify.softmax import log_sum_of_others, probability_bounds, relative_error

Means = tuple[Tensor, Tensor]
"""Lower and upper bounds on the mean probability of every class; a rule takes them where they are known already."""

Rule = Callable[[Tensor, Tensor, Tensor, Means | None], Tensor]


def _is_label(labels: Tensor, classes: int) -> Tensor:
    return labels[:, None] == torch.arange(classes, device=labels.device)


def mean_probability_bounds(lower: Tensor, upper: Tensor) -> Means:
    """Bound the mean probability of every class, (B, C) each."""
    lowest, highest = probability_bounds(lower, upper)
    return lowest.mean(0), highest.mean(0)


def theorem1(lower: Tensor, upper: Tensor, labels: Tensor, means: Means | None = None) -> Tensor:
    """Theorem 1 of the paper: the mean lower bound of the label against each rival's mean upper bound."""
    lowest, highest = mean_probability_bounds(lower, upper) if means is None else means
    is_label = _is_label(labels, lower.shape[-1])
    own = lowest.masked_fill(~is_label, -torch.inf).amax(-1)
    rival = highest.masked_fill(is_label, -torch.inf).amax(-1)
    return own - rival


def pairwise(lower: Tensor, upper: Tensor, labels: Tensor, means: Means | None = None) -> Tensor:
    """For each rival c, the mean over networks of the smallest softmax_y - softmax_c over the box of logits.

    The minimum is at a corner: y at its lower end, c at its upper end, and the other classes where they help the
    attacker: at their upper ends if the difference is positive (they shrink it), at their lower ends if it is negative.
    Never worse than ``theorem1``, which lets y and c see different corners.
    """
    is_label = _is_label(labels, lower.shape[-1])
    own = lower.masked_fill(~is_label, -torch.inf).amax(-1, keepdim=True)
    # Exponents are taken relative to the larger of y and c, so that neither can vanish beside a third class.
    lead, gap = torch.maximum(own, upper), own - upper
    others = torch.where(
        gap >= 0,
        log_sum_of_others(upper.masked_fill(is_label, -torch.inf)),
        log_sum_of_others(lower.masked_fill(is_label, -torch.inf)),
    )
    ratio = torch.exp(-gap.abs())
    smallest = gap.sign() * (1 - ratio) / (1 + ratio + torch.exp(others - lead))
    # What the exponents lose: at most 1, the size of a difference of probabilities, times their relative error.
    mean = (smallest - 2 * relative_error(lower, upper)).mean(0)
    return mean.masked_fill(is_label, torch.inf).amin(-1)


RULES: dict[str, Rule] = {"theorem1": theorem1, "pairwise": pairwise}
