"""``assess``: a predictor's uncertainty on in-distribution, out-of-distribution and adversarial inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from certibayes.attacks import PGD, Attacked, attack
from certibayes.errors import InvalidInput
from certibayes.evaluation.adversarial import push_on
from certibayes.evaluation.calibration import Reliability, accuracy, brier_score, negative_log_likelihood, reliability
from certibayes.evaluation.detection import SCORES, Histogram, detect, histogram, likelihood_ratio, score_of
from certibayes.evaluation.entropy import Uncertainty, described, uncertainty
from certibayes.evaluation.selective import RiskCoverage, risk_coverage
from certibayes.prediction import Predictor
from certibayes.regions import Domain
from certibayes.support.checks import inputs_of, labels_of


@dataclass(frozen=True, eq=False)
class Assessment:
    """A predictor's uncertainty.

    Attributes:
        inside: on in-distribution inputs, n of them.
        labels: of these, (n,).
        outside: on out-of-distribution inputs, m of them.
        attacked: on adversarial examples of the in-distribution inputs (``push_on``), or None if none were asked for.
        attack: what the attack found, from where they were pushed on; likewise.
    """

    inside: Uncertainty
    labels: Tensor
    outside: Uncertainty
    attacked: Uncertainty | None = None
    attack: Attacked | None = None

    def __repr__(self) -> str:
        parts = {"in distribution:": self.inside, "out of distribution:": self.outside}
        if self.attacked is not None:
            parts["adversarial:"] = self.attacked
        right = accuracy(self.inside.log_probabilities, self.labels)
        robust = "" if self.attack is None else f", robust accuracy {self.attack.robust_accuracy:.1%}"
        lines = [f"  {name:<21}{described(each)}" for name, each in parts.items()]
        return "\n".join([f"Assessment(accuracy {right:.1%}{robust}, ECE {self.reliability.error:.4f})", *lines])

    @property
    def reliability(self) -> Reliability:
        """Confidence against accuracy, in distribution."""
        return reliability(self.inside.log_probabilities, self.labels)

    @property
    def risk_coverage(self) -> RiskCoverage:
        """Selective risk in distribution, where the predictive entropy decides what is answered."""
        return risk_coverage(self.inside.predictive_entropy, self.inside.predicted == self.labels)

    @property
    def sets(self) -> dict[str, Uncertainty]:
        """The uncertainty by set of inputs: ``in``, ``out`` and, if there was an attack, ``adversarial``."""
        found = {"in": self.inside, "out": self.outside}
        return found if self.attacked is None else {**found, "adversarial": self.attacked}

    def histograms(self, score: str = "expected_entropy", bins: int = 40) -> dict[str, Histogram]:
        """Histograms of a score on each set, over the same bins."""
        classes = self.inside.log_probabilities.shape[-1]
        largest = 1.0 if score == "max_probability" else math.log(classes)
        return {name: histogram(score_of(each, score), largest, bins) for name, each in self.sets.items()}

    def summary(self) -> dict[str, Any]:
        """Return all figures: a dictionary for each set, one for detection by each score, and the likelihood ratio."""
        logs = self.inside.log_probabilities
        figures: dict[str, Any] = {name: _means(each) for name, each in self.sets.items()}
        figures["in"] |= {
            "accuracy": accuracy(logs, self.labels),
            "nll": negative_log_likelihood(logs, self.labels),
            "brier": brier_score(logs, self.labels),
            "ece": self.reliability.error,
            "aurc": self.risk_coverage.area,
        }
        if self.attacked is not None and self.attack is not None:
            found = detect(self.inside.expected_entropy, self.attacked.expected_entropy)
            figures["adversarial"] |= {"accuracy": self.attack.robust_accuracy, "auroc": found.auroc}
        figures["detection"] = {
            score: detect(score_of(self.inside, score), score_of(self.outside, score)).summary() for score in SCORES
        }
        figures["likelihood_ratio"] = likelihood_ratio(self.inside.max_probability, self.outside.max_probability)
        return figures


def assess(  # noqa: PLR0913 - public
    predictor: Predictor,
    x: Tensor,
    y: Tensor,
    outside: Tensor,
    *,
    eps: float | Tensor | None = None,
    norm: str = "linf",
    domain: Domain | Literal["predictor"] = "predictor",
    steps: int = 20,
    restarts: int = 2,
    seed: int = 0,
) -> Assessment:
    """Measure a predictor's uncertainty in and out of distribution and, where ``eps`` is given, under attack.

    Args:
        predictor: such as ``posterior.predictor()``.
        x: in-distribution inputs, (n, ...): a tensor, an array or nested lists; as are ``y`` and ``outside``.
        y: their labels, (n,).
        outside: out-of-distribution inputs of the same shape, (m, ...); labels are not needed.
        eps: radius of adversarial examples of ``x``: PGD away from ``y``, then pushed on (``push_on``).
        norm: of the ball of adversarial examples: ``"linf"``, ``"l2"`` or ``"l1"``.
        domain: smallest and largest value of an input, for the attack; by default the predictor's own.
        steps: iterations of the attack.
        restarts: of the attack.
        seed: of the attack.
    """
    x, outside = inputs_of(x, "the in-distribution inputs"), inputs_of(outside, "the out-of-distribution inputs")
    for inputs, which in ((x, "in-distribution"), (outside, "out-of-distribution")):
        if len(inputs) == 0:
            raise InvalidInput(f"there are no {which} inputs.")
    if outside.shape[1:] != x.shape[1:]:
        raise InvalidInput(
            f"out-of-distribution inputs have shape {tuple(outside.shape[1:])}, in-distribution ones "
            f"{tuple(x.shape[1:])}; the same network must take both, so choose a set of the same shape."
        )
    if y is None:
        raise InvalidInput("accuracy and calibration need the labels of the in-distribution inputs; pass y, (n,).")
    y = labels_of(y, predictor.classes, len(x))
    found = attacked = None
    if eps is not None:
        ball: dict[str, Any] = {"eps": eps, "norm": norm, "domain": domain}
        found = attack(predictor, x, y, method=PGD(steps, restarts), seed=seed, **ball)
        pushed = push_on(predictor, x, y, found.inputs, steps=steps, **ball)
        attacked = _cpu(uncertainty(predictor, pushed))
    return Assessment(_cpu(uncertainty(predictor, x)), y.cpu(), _cpu(uncertainty(predictor, outside)), attacked, found)


def _cpu(found: Uncertainty) -> Uncertainty:
    return Uncertainty(*(tensor.cpu() for tensor in vars(found).values()))


def _means(found: Uncertainty) -> dict[str, float]:
    """Mean of every quantity, and the standard error of the mean of both entropies over inputs (0 for one input)."""
    names = ("expected_entropy", "predictive_entropy", "mutual_information", "max_probability", "disagreement")
    means: dict[str, float] = {"n": len(found)} | {name: float(getattr(found, name).mean()) for name in names}
    for name in names[:2]:
        values: Tensor = getattr(found, name)
        means[f"{name}_se"] = float(values.std(correction=0)) / math.sqrt(max(len(values) - 1, 1))
    return means
