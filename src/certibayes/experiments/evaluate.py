"""What is measured about a predictor: accuracy, attacks, certificates, uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from certibayes.attacks import PGD, Attacked, attack
from certibayes.attacks.result import UNBROKEN
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
    skip_proved: bool = False,
    stage: Callable[[str], Any] = lambda _: None,
) -> Evaluation:
    """Certify, attack and measure a predictor on a test set.

    Args:
        predictor: what is measured.
        x: points (B, ...).
        y: labels (B,).
        eps: radius of certificates and attacks.
        domain: smallest and largest value of an input.
        method: of certification.
        steps: of PGD.
        restarts: of PGD.
        seed: of the attack.
        skip_proved: attack only the points that are not certified, which takes less time; no attack can break others.
        stage: called with what comes next.
    """
    stage("certifying")
    certificate = certify(predictor, x, y, eps=eps, method=method, domain=domain)
    stage("attacking")
    chosen = ~certificate.certified if skip_proved else torch.ones_like(certificate.certified)
    found = attack(predictor, x[chosen], y[chosen], eps=eps, domain=domain, method=PGD(steps, restarts), seed=seed)
    attacked = _among(found, chosen, x, y)
    stage("measuring uncertainty")
    clean = uncertainty(predictor, x)
    logs = log_probabilities(predictor, x)
    nll = -float(logs.gather(-1, y[:, None]).mean())
    return Evaluation(certificate, attacked, clean, nll, expected_calibration_error(logs, y))


def _among(found: Attacked, chosen: Tensor, x: Tensor, y: Tensor) -> Attacked:
    """Return an attack on the points that ``chosen`` (B,) marks as one on all of them; the others are unbroken."""

    def put(values: Tensor, others: Tensor) -> Tensor:
        return others.to(values).masked_scatter(chosen.view(-1, *[1] * (others.dim() - 1)), values)

    none = torch.zeros_like(y)
    return replace(
        found,
        inputs=put(found.inputs, x),
        labels=y,
        predicted=put(found.predicted, y),
        success=put(found.success, none),
        distance=put(found.distance, none),
        broken_by=put(found.broken_by, none + UNBROKEN),
    )
