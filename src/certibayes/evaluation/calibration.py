"""Calibration: whether a predictor is right as often as it says; and proper scores, which reward that."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.support.checks import labels_of, require_count
from certibayes.support.tensors import as_tensor


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence and accuracy in bins of confidence: what a reliability diagram shows (DeGroot & Fienberg, 1983).

    Attributes:
        counts: predictions in each bin, (bins,).
        confidence: their mean confidence, (bins,); NaN where there are none.
        accuracy: the fraction of them that is right, (bins,); NaN where there are none.
    """

    counts: Tensor
    confidence: Tensor
    accuracy: Tensor

    def __repr__(self) -> str:
        count = int(self.counts.sum())
        return f"Reliability({count} predictions in {len(self.counts)} bins, calibration error {self.error:.4f})"

    @property
    def error(self) -> float:
        """Expected calibration error, Σ_k n_k / n |accuracy_k - confidence_k|."""
        gaps = (self.counts * (self.accuracy - self.confidence).abs()).nan_to_num()
        return float(gaps.sum() / self.counts.sum())

    def summary(self) -> dict[str, list[float | None]]:
        """Return plain lists, with None for what an empty bin does not have."""
        columns = {"counts": self.counts, "confidence": self.confidence, "accuracy": self.accuracy}
        return {name: [None if v != v else v for v in values.tolist()] for name, values in columns.items()}


def reliability(log_probabilities: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Sort predictions into ``bins`` equal intervals (a, b] of their confidence max_c p_c.

    Args:
        log_probabilities: (B, C).
        labels: (B,).
        bins: number of intervals.
    """
    require_count(bins, "bins")
    log_probabilities, labels = _predictions(log_probabilities, labels)
    confidence, predicted = log_probabilities.double().exp().max(-1)
    right = (predicted == labels).double()
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    empty = torch.zeros(bins, dtype=torch.float64, device=place.device)
    counts = empty.index_add(0, place, torch.ones_like(confidence))
    sums = (empty.index_add(0, place, values) for values in (confidence, right))
    return Reliability(counts, *(total / counts for total in sums))


def expected_calibration_error(log_probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Mean gap between confidence and accuracy (Naeini et al., 2015; Guo et al., 2017).

    ECE = Σ_k n_k / n |accuracy_k - confidence_k| over ``bins`` equal intervals (a, b] of the confidence. torchmetrics
    closes them on the other side, [a, b); nothing else differs.

    Args:
        log_probabilities: (B, C).
        labels: (B,).
        bins: number of intervals.
    """
    return reliability(log_probabilities, labels, bins).error


def accuracy(log_probabilities: Tensor, labels: Tensor) -> float:
    """Fraction of predictions (B, C) whose most probable class is the label (B,)."""
    log_probabilities, labels = _predictions(log_probabilities, labels)
    return float((log_probabilities.argmax(-1) == labels).double().mean())


def negative_log_likelihood(log_probabilities: Tensor, labels: Tensor) -> float:
    """Mean of -log p_y in nats, over predictions (B, C) and labels (B,); infinite if some label was ruled out."""
    log_probabilities, labels = _predictions(log_probabilities, labels)
    return -float(log_probabilities.double().gather(-1, labels[:, None]).mean())


def brier_score(log_probabilities: Tensor, labels: Tensor) -> float:
    """Mean squared distance of the probabilities from the truth, over all classes (Brier, 1950).

    Brier = 1/B Σ_b Σ_c (p_bc - [c = y_b])², from 0 (certain and right) to 2 (certain and wrong); the uniform prediction
    has 1 - 1/C. Some authors divide by C, or by 2.

    Args:
        log_probabilities: (B, C).
        labels: (B,).
    """
    log_probabilities, labels = _predictions(log_probabilities, labels)
    probabilities = log_probabilities.double().exp()
    truth = torch.arange(probabilities.shape[-1], device=labels.device) == labels[:, None]
    return float((probabilities - truth.double()).square().sum(-1).mean())


def _predictions(log_probabilities: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (B, C) and labels (B,), given as tensors, arrays or lists, as tensors, or raise."""
    if labels is None:
        raise InvalidInput("calibration compares predictions with labels; pass the labels, (B,).")
    log_probabilities = as_tensor(log_probabilities, "the log-probabilities")
    if log_probabilities.dim() != 2 or len(log_probabilities) == 0:
        raise InvalidInput(f"predictions must have shape (B, C) with B > 0, got {tuple(log_probabilities.shape)}.")
    # -inf is the logarithm of a class that was ruled out.
    if bool(log_probabilities.isnan().any()) or float(log_probabilities.max()) > 1e-3:
        raise InvalidInput(
            "log-probabilities are numbers up to 0; these hold NaN or larger ones. Logits need log_softmax first."
        )
    return log_probabilities, labels_of(labels, log_probabilities.shape[-1], len(log_probabilities))
