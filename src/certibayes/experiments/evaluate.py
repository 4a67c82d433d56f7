"""What is measured about a predictor: accuracy, attacks, certificates, uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from certibayes.attacks import PGD, Attacked, attack
from certibayes.bounds import Domain
from certibayes.certificates import Certificate
from certibayes.certification import Method, certify
from certibayes.evaluation import Uncertainty, expected_calibration_error, uncertainty
from certibayes.prediction import Predictor


@dataclass(frozen=True)
class Evaluation:
    """Everything measured on one test set at one radius.

    Attributes:
        certificate: what was proved.
        attacked: what was found by attack.
        uncertainty: of the clean predictions.
        nll: mean negative log-likelihood of the labels.
        ece: expected calibration error.
    """

    certificate: Certificate
    attacked: Attacked
    uncertainty: Uncertainty
    nll: float
    ece: float

    def summary(self) -> dict[str, float]:
        """Return the figures; accuracies are fractions of all points."""
        return {
            "n": len(self.certificate),
            "accuracy": self.certificate.accuracy,
            "pgd": self.attacked.robust_accuracy,
            "certified": self.certificate.certified_fraction,
            "nll": self.nll,
            "ece": self.ece,
            "mutual_information": float(self.uncertainty.mutual_information.mean()),
            "disagreement": float(self.uncertainty.disagreement.mean()),
        }


@torch.no_grad()
def log_probabilities(predictor: Predictor, x: Tensor, batch_size: int = 500) -> Tensor:
    """Return the predictive distribution's logarithm, float64 (B, C)."""
    return torch.cat([predictor(part).double() for part in x.split(batch_size)])


def evaluate(  # noqa: PLR0913 - public
    predictor: Predictor,
    x: Tensor,
    y: Tensor,
    *,
    eps: float,
    domain: Domain,
    method: str | Method = "theorem1",
    steps: int = 20,
    restarts: int = 2,
    seed: int = 0,
    stage: Callable[[str], Any] = lambda _: None,
) -> Evaluation:
    """Certify, attack and measure a predictor on a test set; ``stage`` is called with what comes next."""
    stage("certifying")
    certificate = certify(predictor, x, y, eps=eps, method=method, domain=domain)
    stage("attacking")
    attacked = attack(predictor, x, y, eps=eps, domain=domain, method=PGD(steps, restarts), seed=seed)
    stage("measuring uncertainty")
    clean = uncertainty(predictor, x)
    logs = log_probabilities(predictor, x)
    nll = -float(logs.gather(-1, y[:, None]).mean())
    return Evaluation(certificate, attacked, clean, nll, expected_calibration_error(logs, y))
