"""Losses an attack climbs: per example, larger is worse for the predictor. Scores (B, C) and labels (B,) -> (B,)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
"""Scores (B, C) and labels (B,) -> loss (B,)."""


def label_scores(scores: Tensor, y: Tensor) -> Tensor:
    """Pick each example's own column out of (B, C)."""
    return scores.gather(-1, y[:, None]).squeeze(-1)


def cross_entropy_loss(log_probabilities: Tensor, y: Tensor) -> Tensor:
    """-log p(y), per example. Its gradient is 0 where the predictor is certain."""
    return -label_scores(log_probabilities, y)


def margin_loss(log_probabilities: Tensor, y: Tensor) -> Tensor:
    """Log-probability of the best rival minus that of the label, per example; positive once the attack succeeds."""
    is_label = y[:, None] == torch.arange(log_probabilities.shape[-1], device=y.device)
    rivals = log_probabilities.masked_fill(is_label, -torch.inf).amax(-1)
    return rivals - label_scores(log_probabilities, y)


def dlr_loss(log_probabilities: Tensor, y: Tensor) -> Tensor:
    """Difference of logits ratio (Croce & Hein, 2020): the margin over z_(1) - z_(3), the best score less the third.

    It changes neither with a shift nor with the scale of the scores, so a predictor cannot hide behind large logits,
    and the rate at which it grows means the same everywhere. With fewer than three classes there is no third score; the
    margin itself is taken.
    """
    margin = margin_loss(log_probabilities, y)
    if log_probabilities.shape[-1] < 3:
        return margin
    best = log_probabilities.topk(3, -1).values
    # Three equal scores leave nothing to divide by.
    return margin / (best[:, 0] - best[:, 2]).clamp(min=1e-12)


LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy_loss, "margin": margin_loss, "dlr": dlr_loss}
