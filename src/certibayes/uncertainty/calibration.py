"""Calibration: whether a predictor is right as often as it says."""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.bounds.checks import require_count


def expected_calibration_error(log_probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Mean gap between confidence and accuracy (Naeini et al., 2015; Guo et al., 2017).

    ECE = Σ_k n_k / n |accuracy_k - confidence_k| over ``bins`` equal intervals (a, b] of the confidence.

    Args:
        log_probabilities: (B, C).
        labels: (B,).
        bins: number of intervals.
    """
    require_count(bins, "bins")
    confidence, predicted = log_probabilities.double().exp().max(-1)
    right = (predicted == labels).double()
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = torch.zeros(bins, dtype=torch.float64, device=place.device).index_add(0, place, right - confidence)
    return float(gap.abs().sum() / len(labels))
