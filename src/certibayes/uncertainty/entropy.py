"""How uncertain a Bayesian predictor is, and how much its networks disagree.

Total uncertainty is the entropy of the mean prediction; its part that comes from not knowing the weights is the
mutual information between prediction and weights (Houlsby et al., 2011):

    H[ 1/N Σ p_i ]  =  1/N Σ H[ p_i ]  +  MI.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.bounds.checks import require_count, require_floats
from certibayes.errors import InvalidInput
from certibayes.prediction import Predictor


def entropy(log_probabilities: Tensor) -> Tensor:
    """Entropy in nats over the last dimension; 0 log 0 is 0."""
    probabilities = log_probabilities.exp()
    return -(probabilities * log_probabilities.clamp(min=torch.finfo(log_probabilities.dtype).min)).sum(-1)


@dataclass(frozen=True)
class Uncertainty:
    """Uncertainty of each of B predictions, in nats, float64 (B,).

    Attributes:
        predictive_entropy: entropy of the mean prediction.
        expected_entropy: mean entropy of the networks (the paper's definition).
        disagreement: fraction of networks that predict another class than the mean does.
    """

    predictive_entropy: Tensor
    expected_entropy: Tensor
    disagreement: Tensor

    @property
    def mutual_information(self) -> Tensor:
        """The part of the entropy that is due to the weights."""
        return (self.predictive_entropy - self.expected_entropy).clamp(min=0.0)


@torch.no_grad()
def uncertainty(predictor: Predictor, x: Tensor, batch_size: int = 500) -> Uncertainty:
    """Measure the uncertainty of a predictor at inputs ``x`` (B, ...)."""
    if predictor.task != "classification":
        raise InvalidInput("entropies are of class probabilities; this predictor does regression.")
    require_count(batch_size, "batch_size")
    require_floats(x, "the inputs")
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for part in x.split(batch_size):
        each = predictor.sample_log_probabilities(part.to(predictor.device))
        mean = torch.logsumexp(each, 0) - torch.tensor(predictor.size, dtype=each.dtype).log()
        disagreement = (each.argmax(-1) != mean.argmax(-1)).double().mean(0)
        parts.append((entropy(mean), entropy(each).mean(0), disagreement))
    total, expected, disagreement = (torch.cat(column) for column in zip(*parts, strict=True))
    return Uncertainty(total, expected, disagreement)
