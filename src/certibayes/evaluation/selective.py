"""Selective prediction: how accurate a predictor is where it is sure enough to answer.

A predictor that answers only the fraction c of inputs it is least uncertain about (its coverage) has the selective risk
r(c), the fraction of wrong ones among the answers. See El-Yaniv & Wiener, "On the Foundations of Noise-free Selective
Classification", JMLR 2010, and Geifman & El-Yaniv, "Selective Classification for Deep Neural Networks", NeurIPS 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.support.checks import inputs_of, require_count
from certibayes.support.tensors import as_tensor


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The risk-coverage curve of B predictions.

    Attributes:
        coverage: k/B for k = 1..B, (B,).
        risk: fraction of wrong answers among the k least uncertain predictions, (B,).
    """

    coverage: Tensor
    risk: Tensor

    def __repr__(self) -> str:
        answered = ", ".join(f"{self.accuracy_at(c):.1%} at coverage {c:g}" for c in (1.0, 0.5))
        return f"RiskCoverage({len(self.risk)} points, area {self.area:.4f}, accuracy {answered})"

    @property
    def area(self) -> float:
        """AURC, the mean risk over all coverages 1/B..1; smaller is better, and 1 - accuracy is chance."""
        return float(self.risk.mean())

    def accuracy_at(self, coverage: float) -> float:
        """Selective accuracy when at least the fraction ``coverage`` in (0, 1] is answered."""
        if not 0.0 < coverage <= 1.0:
            raise InvalidInput(f"coverage must be in (0, 1], got {coverage}.")
        return 1.0 - float(self.risk[max(math.ceil(coverage * len(self.risk) - 1e-9), 1) - 1])

    def thinned(self, points: int = 100) -> RiskCoverage:
        """Return at most ``points`` points of the curve, evenly spaced, the last among them."""
        require_count(points, "points")
        size = len(self.risk)
        kept = torch.linspace(size / min(points, size), size, min(points, size), dtype=torch.float64).round().long() - 1
        return RiskCoverage(self.coverage[kept], self.risk[kept])

    def summary(self) -> dict[str, list[float]]:
        """Return the curve as plain lists."""
        return {"coverage": self.coverage.tolist(), "risk": self.risk.tolist()}


def risk_coverage(scores: Tensor, right: Tensor) -> RiskCoverage:
    """Draw the risk-coverage curve.

    Predictions with the same score have no order of their own. The risk is then its expectation over all orders: each
    of them counts as wrong as they are on average.

    Args:
        scores: uncertainty of each prediction, (B,).
        right: whether it is right, (B,), bool.
    """
    scores, right = inputs_of(scores, "the scores"), as_tensor(right, "the truth values")
    if right.dtype != torch.bool or scores.dim() != 1 or right.shape != scores.shape or len(scores) == 0:
        raise InvalidInput(
            "a risk-coverage curve needs a score and a truth value (predicted == labels) for each prediction, both "
            f"(B,) with B > 0; got {tuple(scores.shape)} and {right.dtype} {tuple(right.shape)}."
        )
    _, level, ties = scores.double().cpu().unique(return_inverse=True, return_counts=True)
    wrong = torch.zeros(len(ties), dtype=torch.float64).index_add(0, level, (~right).double().cpu()) / ties
    answered = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    # unique() sorts, so repeating each level over its ties puts the least uncertain first.
    return RiskCoverage(answered / len(scores), wrong.repeat_interleave(ties).cumsum(0) / answered)
