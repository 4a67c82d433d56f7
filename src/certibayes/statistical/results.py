"""What statistical certificates return: the numbers, how they were found, and in words what was proved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from certibayes.certificates import reading
from certibayes.certificates.result import Stated
from certibayes.certificates.showing import Intervals, of_label
from certibayes.statistical.concentration import (
    failure_per_statement,
    hoeffding_tail,
    require_confidence,
    summation_slack,
)
from certibayes.statistical.trial import Trial
from certibayes.support.checks import require_count


class _Result(Stated):
    """What the results of a trial have in common."""

    labels: Tensor
    trial: Trial

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.labels)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings."""
        fields = {name: reading.plain(value) for name, value in vars(self).items() if name != "trial"}
        return {"kind": self.kind, "statement": self.statement, **fields, "trial": self.trial.to_json()}


@dataclass(frozen=True)
class RobustProbability(_Result):
    """Bounds on the probability that a drawn network is robust at a point.

    Attributes:
        labels: the class in question for each point, (B,).
        certified: how many of the drawn networks are proved to classify the whole ball as the label, (B,).
        lower: P_w[network w is robust] is at least this, float64 (B,).
        upper: P_w[network w is certified] is at most this, float64 (B,). A network may be robust without a proof, so
            this bounds what the bounds can show, not robustness.
        trial: draws, confidence and ball.
    """

    kind: ClassVar[str] = "robust probability"
    table: ClassVar[dict[str, str]] = {"label": "labels", "certified": "certified", "lower": "lower", "upper": "upper"}

    labels: Tensor
    certified: Tensor
    lower: Tensor
    upper: Tensor
    trial: Trial

    @property
    def statement(self) -> str:
        """What was proved, in words."""
        trial = self.trial
        return (
            f"{trial.confidence_in_words}: a network drawn afresh classifies the point, and {trial.ball_in_words}, as "
            "the point's label with probability at least lower; and the probability that this can be proved of it is "
            f"at most upper. A network counts as robust only where that is proved, {trial.proof_in_words}. "
            f"Confidence bounds by {trial.inequality}, corrected for both sides"
            f"{' and all points' if trial.joint else ''} (union bound). "
            "Nothing is said about the mean prediction, other radii or other kinds of change. "
            f"{trial.origin_in_words}"
        )

    def _intervals(self) -> Intervals:
        return Intervals(self.lower, self.upper, "probability of a robust network")

    def __repr__(self) -> str:
        mean = f"{float(self.lower.mean()):.4g}" if len(self) else "nothing"
        return f"RobustProbability({len(self)} points, on average at least {mean}, {self.trial.briefly})"


@dataclass(frozen=True)
class PredictiveBounds(_Result):
    """Bounds on the worst-case predictive of a posterior, E_w[softmax f^w(x)] over the ball.

    Attributes:
        labels: the class in question for each point, (B,).
        lower: over the whole ball, every class probability of the posterior predictive is at least this, float64
            (B, C).
        upper: at most this, float64 (B, C).
        margins: for every rival c, the predictive of the label minus that of c is at least this over the whole ball,
            float64 (B, C); 1 for the label itself. Differences are bounded network by network, which is tighter than
            ``lower`` of the label minus ``upper`` of c.
        trial: draws, confidence and ball.
    """

    kind: ClassVar[str] = "predictive bounds"
    table: ClassVar[dict[str, str]] = {
        "label": "labels", "certified": "certified", "lower": "lower", "upper": "upper", "margin": "margins",
    }  # fmt: skip

    labels: Tensor
    lower: Tensor
    upper: Tensor
    margins: Tensor
    trial: Trial

    @property
    def certified(self) -> Tensor:
        """Where the posterior predictive classifies the whole ball as the label, (B,)."""
        return self.margins.amin(-1) > 0

    @property
    def statement(self) -> str:
        """What was proved, in words."""
        trial = self.trial
        return (
            f"{trial.confidence_in_words}: at the point and {trial.ball_in_words}, every class probability of the "
            "posterior predictive (the mean of the softmax over all weights of the posterior, not over a sample) lies "
            "between lower and upper, and that of the point's label exceeds that of each rival by at least margins; so "
            "where certified, the posterior predictive classifies the whole ball as the label. "
            f"Each drawn network was bounded {trial.proof_in_words}. Confidence bounds by {trial.inequality}, "
            f"corrected for all classes, both sides and all rivals{' and all points' if trial.joint else ''} (union "
            "bound). "
            "Nothing is said about any finite set of weight samples, other radii or other kinds of change. "
            f"{trial.origin_in_words}"
        )

    def _intervals(self) -> Intervals:
        return Intervals(*of_label(self.lower, self.upper, self.labels), "probability of the label", self.certified)

    def __repr__(self) -> str:
        certified = f"{int(self.certified.sum())} of {len(self)} points certified"
        return f"PredictiveBounds({certified}, {self.trial.briefly})"

    def fresh_predictor(self, samples: int, confidence: float = 0.99) -> FreshPredictorBounds:
        """Carry the bounds over to a predictor with weights that are yet to be drawn.

        Two things are random. These bounds hold with the confidence of their own draws; and if they hold, the
        mean of N fresh draws stays near E_w by Hoeffding's inequality: with D_c(w) <= min over the ball of
        softmax_y - softmax_c, a number in [-1, 1] with E_w[D_c] >= margin_c,

            P[ the fresh predictor errs somewhere in the ball ]  <=  Σ_c P[ mean of N draws of D_c <= t ]
                                                                 <=  Σ_c exp(-N kl( (1 + t)/2 , (1 + margin_c)/2 )),

        which is Theorem 1 of Hoeffding (1963); kl is the relative entropy of two coins, and t is the lead that rounding
        in the predictor could take back (0 for ideal arithmetic).

        Args:
            samples: N, of ``posterior.predictor(samples, seed)``; its draws are never those behind these bounds.
            confidence: wanted probability over the fresh draws; jointly for all points if these bounds are joint.
        """
        require_count(samples, "samples")
        require_confidence(confidence)
        points = len(self) if self.trial.joint else 1
        allowed = failure_per_statement(confidence, 2 * self.lower.shape[-1], points)
        lead = self._lead(samples)
        # The lead is also more than the predictor's own rounding of a probability; the rest covers that of this sum.
        radius = math.sqrt(-math.log(allowed) / (2 * samples)) * (1 + 2.0**-40) + lead + summation_slack(samples)
        failure = (hoeffding_tail(self.margins, lead, samples).sum(-1) * (1 + 2.0**-40)).clamp(max=1.0)
        return FreshPredictorBounds(
            labels=self.labels,
            lower=(self.lower - radius).clamp(min=0.0),
            upper=(self.upper + radius).clamp(max=1.0 + lead),
            failure=failure,
            certified=failure <= failure_per_statement(confidence, 1, points),
            samples=samples,
            confidence=confidence,
            trial=self.trial,
        )

    def _lead(self, samples: int) -> float:
        """Lead in probability that shows in the float predictor; twice the slack that ``certify`` allows for."""
        if self.trial.rounding == "ideal":
            return 0.0
        unit = torch.finfo(getattr(torch, self.trial.dtype)).eps / 2
        return 2 * (4 * unit * (1 + math.log(self.lower.shape[-1])) + 2.0**-50 * (samples + 16))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings."""
        return {**super().to_json(), "certified": self.certified.tolist()}


@dataclass(frozen=True)
class FreshPredictorBounds(_Result):
    """Bounds on what a predictor with N freshly drawn weight samples does over the ball.

    Attributes:
        labels: the class in question for each point, (B,).
        lower: all its class probabilities over the ball are at least this, float64 (B, C).
        upper: at most this, float64 (B, C).
        failure: probability that it classifies some input of the ball as another class is at most this, float64 (B,).
        certified: where that is no more than the wanted confidence leaves, (B,).
        samples: N.
        confidence: wanted probability over the N fresh draws.
        trial: draws behind the bounds on the posterior, with a confidence of their own.
    """

    kind: ClassVar[str] = "fresh predictor bounds"
    table: ClassVar[dict[str, str]] = {
        "label": "labels", "certified": "certified", "failure": "failure", "lower": "lower", "upper": "upper",
    }  # fmt: skip

    labels: Tensor
    lower: Tensor
    upper: Tensor
    failure: Tensor
    certified: Tensor
    samples: int
    confidence: float
    trial: Trial

    @property
    def statement(self) -> str:
        """What was proved, in words."""
        trial = self.trial
        jointly = ", jointly for all points" if trial.joint else ""
        return (
            f"{trial.confidence_in_words}, the following is true of the posterior. Draw {self.samples} further weight "
            f"samples independently and average their softmax. With probability at least {self.confidence!r} over "
            f"these fresh draws{jointly}, its class probabilities at the point and {trial.ball_in_words} lie between "
            "lower and upper; and the probability that it classifies any of them as another class than the point's "
            "label is at most failure. Where certified, that is no more than this confidence leaves. "
            f"Each drawn network was bounded {trial.proof_in_words}. Confidence bounds by {trial.inequality}, "
            "fresh draws by Hoeffding's inequality, corrected for all classes, both sides and all rivals (union "
            "bound). Nothing is said about weight samples that are already fixed; certify them instead. "
            f"{trial.origin_in_words}"
        )

    def _intervals(self) -> Intervals:
        return Intervals(*of_label(self.lower, self.upper, self.labels), "probability of the label", self.certified)

    def __repr__(self) -> str:
        certified = f"{int(self.certified.sum())} of {len(self)} points certified"
        draws = f"{self.samples} fresh samples with confidence {self.confidence:g}"
        return f"FreshPredictorBounds({certified} for {draws}, {self.trial.briefly})"
