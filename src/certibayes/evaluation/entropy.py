"""How uncertain a Bayesian predictor is, and how much its networks disagree.

For networks w_1..w_N with class probabilities p_i = σ(f^{w_i}(x)) and their mean p̄ = 1/N Σ p_i there are two entropies:

    predictive entropy   H[p̄]  =  -Σ_c p̄_c log p̄_c              of the mean prediction;
    expected entropy     1/N Σ_i H[p_i]  ≈  E_w[ H[σ(f^w(x))] ]    the paper's definition.

The paper calls the second "the entropy of the posterior predictive distribution", a name that belongs to the first, and
its released code computes the first; here both are reported, named apart. H is concave, so the second is never larger
(Jensen), and what lies between is the mutual information of prediction and weights (Houlsby et al., "Bayesian Active
Learning for Classification and Preference Learning", 2011): the part that comes from not knowing the weights,

    H[p̄]  =  1/N Σ_i H[p_i]  +  MI,        0 <= MI <= log min(N, C).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.prediction import Predictor
from certibayes.support.checks import inputs_of, require_count


def entropy(log_probabilities: Tensor) -> Tensor:
    """Entropy in nats over the last dimension; 0 log 0 is 0."""
    probabilities = log_probabilities.exp()
    return -(probabilities * log_probabilities.clamp(min=torch.finfo(log_probabilities.dtype).min)).sum(-1)


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Uncertainty of each of B predictions, in nats, float64 (B,).

    Attributes:
        predictive_entropy: entropy of the mean prediction.
        expected_entropy: mean entropy of the networks (the paper's definition).
        disagreement: fraction of networks that predict another class than the mean does.
        log_probabilities: logarithm of the mean prediction, (B, C).
    """

    predictive_entropy: Tensor
    expected_entropy: Tensor
    disagreement: Tensor
    log_probabilities: Tensor

    def __len__(self) -> int:
        return len(self.predictive_entropy)

    def __repr__(self) -> str:
        return f"Uncertainty({described(self)})"

    @property
    def mutual_information(self) -> Tensor:
        """The part of the entropy that is due to the weights."""
        return (self.predictive_entropy - self.expected_entropy).clamp(min=0.0)

    @property
    def max_probability(self) -> Tensor:
        """The probability of the predicted class, max_c p̄_c: the predictor's confidence (Hendrycks & Gimpel, 2017)."""
        return self.log_probabilities.exp().amax(-1)

    @property
    def predicted(self) -> Tensor:
        """The predicted class, (B,)."""
        return self.log_probabilities.argmax(-1)


def described(found: Uncertainty) -> str:
    """Return means over all predictions, in a line."""
    if not len(found):
        return "no predictions"
    entropies = f"mean entropy {float(found.predictive_entropy.mean()):.4f}"
    weights = f"{float(found.mutual_information.mean()):.4f} of it due to the weights"
    return f"{len(found)} predictions, {entropies}, {weights}, confidence {float(found.max_probability.mean()):.1%}"


@torch.no_grad()
def uncertainty(predictor: Predictor, x: Tensor, batch_size: int = 500) -> Uncertainty:
    """Measure the uncertainty of a predictor at inputs ``x`` (B, ...): a tensor, an array or nested lists."""
    if predictor.task != "classification":
        raise InvalidInput("entropies are of class probabilities; this predictor does regression.")
    require_count(batch_size, "batch_size")
    x = inputs_of(x, "the inputs")
    parts: list[tuple[Tensor, ...]] = []
    for part in x.split(batch_size):
        each = predictor.sample_log_probabilities(part.to(predictor.device))
        mean = torch.logsumexp(each, 0) - torch.tensor(predictor.size, dtype=each.dtype).log()
        disagreement = (each.argmax(-1) != mean.argmax(-1)).double().mean(0)
        parts.append((entropy(mean), entropy(each).mean(0), disagreement, mean))
    return Uncertainty(*(torch.cat(column) for column in zip(*parts, strict=True)))
