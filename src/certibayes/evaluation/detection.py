"""Out-of-distribution detection: telling inputs from another distribution by how uncertain a predictor is.

Conventions, the same for every figure here: out-of-distribution inputs are the positive class (1), in-distribution ones
the negative (0), and the score is an uncertainty, so that more of it speaks for "out". A detector that flags every
input whose score is at least t has

    TPR(t) = P(score_out >= t),        FPR(t) = P(score_in >= t).

Some authors take in-distribution inputs as positive. AUROC is the same either way; AUPR and FPR at 95% TPR are not.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.evaluation.entropy import Uncertainty
from certibayes.support.checks import inputs_of, require_count
from certibayes.support.optional import require_package

SCORES = ("expected_entropy", "predictive_entropy", "mutual_information", "max_probability")
"""What a detector can go by. The last is a confidence; its score is 1 - max_c p̄_c (Hendrycks & Gimpel, 2017)."""


def score_of(found: Uncertainty, name: str) -> Tensor:
    """Return one of ``SCORES`` as an uncertainty: larger is less certain, (B,)."""
    if name not in SCORES:
        raise InvalidInput(f"there is no score {name!r}; known are {', '.join(SCORES)}.")
    values: Tensor = getattr(found, name)
    return 1.0 - values if name == "max_probability" else values


@dataclass(frozen=True)
class Detection:
    """How well a score tells the two apart.

    Attributes:
        auroc: area under the ROC curve; 0.5 is chance, 1 perfect.
        aupr: area under the precision-recall curve; chance is the fraction of out-of-distribution inputs.
        fpr95: fraction of in-distribution inputs flagged when at least 95% of the others are; 0 is perfect.
        chance_aupr: that fraction.
    """

    auroc: float
    aupr: float
    fpr95: float
    chance_aupr: float

    def __repr__(self) -> str:
        aupr = f"AUPR {self.aupr:.4f} (chance {self.chance_aupr:.4f})"
        return f"Detection(AUROC {self.auroc:.4f}, {aupr}, FPR at 95% TPR {self.fpr95:.4f})"

    def summary(self) -> dict[str, float]:
        """Return the figures as a plain dictionary."""
        return asdict(self)


def detect(inside: Tensor, outside: Tensor) -> Detection:
    """Measure how well a score detects, from its values on in-distribution (n,) and out-of-distribution inputs (m,)."""
    fraction = len(outside) / max(len(inside) + len(outside), 1)
    return Detection(auroc(inside, outside), aupr(inside, outside), fpr_at_tpr(inside, outside), fraction)


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Area under the ROC curve: the probability that a random input out of distribution scores higher.

    AUROC = P(score_out > score_in) + 1/2 P(score_out = score_in) (Hanley & McNeil, 1982).

    Args:
        inside: scores of in-distribution inputs, (n,).
        outside: scores of out-of-distribution inputs, the positive class, (m,).
    """
    return float(_torchmetrics().binary_auroc(*_ranked(inside, outside)))


def aupr(inside: Tensor, outside: Tensor) -> float:
    """Area under the precision-recall curve, as average precision Σ_k (R_k - R_{k-1}) P_k over all thresholds.

    Args:
        inside: scores of in-distribution inputs, (n,).
        outside: scores of out-of-distribution inputs, the positive class, (m,).
    """
    return float(_torchmetrics().binary_average_precision(*_ranked(inside, outside)))


def fpr_at_tpr(inside: Tensor, outside: Tensor, tpr: float = 0.95) -> float:
    """False positives where at least ``tpr`` of the positives are found: min FPR(t) over all t with TPR(t) >= tpr.

    Both fall as t grows, so the best t is the k-th largest score outside, k = ceil(tpr m).

    Args:
        inside: scores of in-distribution inputs, (n,).
        outside: scores of out-of-distribution inputs, the positive class, (m,).
        tpr: fraction of out-of-distribution inputs to be found, in (0, 1].
    """
    inside, outside = _scores(inside, outside)
    if not 0.0 < tpr <= 1.0:
        raise InvalidInput(f"tpr must be in (0, 1], got {tpr}.")
    # 0.95 is not a float, so tpr * m may come out a hair above a whole number.
    needed = max(math.ceil(tpr * len(outside) - 1e-9), 1)
    threshold = outside.sort(descending=True).values[needed - 1]
    return float((inside >= threshold).double().mean())


def likelihood_ratio(inside: Tensor, outside: Tensor) -> float:
    """The supplement's likelihood ratio: mean confidence out of distribution over mean confidence in distribution.

    The paper: "the average softmax probability coming from out-of-distribution points divided by the average predictive
    probability of in-distribution points"; 1 means predictions as confident out as in, less is better. It leaves two
    things open. Which class: out-of-distribution inputs have no label and the ratio is to compare confidence, so on
    both sides it is the predicted class. Of what: "softmax" may be of each network and "predictive" of their mean, but
    a ratio of two unlike quantities would not be 1 for equal confidence, so both are of the mean prediction, max_c p̄_c.
    It is no ratio of likelihoods in the usual sense.

    Args:
        inside: maximum probabilities of in-distribution inputs, (n,).
        outside: maximum probabilities of out-of-distribution inputs, (m,).
    """
    inside, outside = _scores(inside, outside)
    for values in (inside, outside):
        # The mean of C classes' probabilities can round to a little more than 1.
        if float(values.min()) <= 0.0 or float(values.max()) > 1.0 + 1e-6:
            raise InvalidInput("a likelihood ratio is of maximum probabilities, which are in (0, 1].")
    return float(outside.double().mean() / inside.double().mean())


@dataclass(frozen=True, eq=False)
class Histogram:
    """How a score is distributed over one set of inputs.

    Attributes:
        edges: of the bins, (bins + 1,).
        fractions: of all inputs in each bin, (bins,); they add up to 1.
    """

    edges: Tensor
    fractions: Tensor

    def __repr__(self) -> str:
        fullest = int(self.fractions.argmax())
        low, high = self.edges[fullest : fullest + 2].tolist()
        bins = f"{len(self.fractions)} bins from {float(self.edges[0]):g} to {float(self.edges[-1]):.4g}"
        return f"Histogram({bins}, the fullest {low:.4g} to {high:.4g} with {float(self.fractions[fullest]):.1%})"

    def summary(self) -> dict[str, list[float]]:
        """Return both as plain lists."""
        return {"edges": self.edges.tolist(), "fractions": self.fractions.tolist()}


def histogram(scores: Tensor, largest: float, bins: int = 40) -> Histogram:
    """Count scores (B,) in equal bins [a, b) of [0, ``largest``], the last one closed, so that sets can be compared.

    Args:
        scores: from 0 to ``largest``, up to rounding.
        largest: the largest possible score, such as log C for entropies.
        bins: number of bins.
    """
    require_count(bins, "bins")
    scores = inputs_of(scores, "the scores")
    if len(scores) == 0 or largest <= 0:
        raise InvalidInput("a histogram needs at least one score and a range that is not empty.")
    slack = 1e-6 * largest
    if float(scores.min()) < -slack or float(scores.max()) > largest + slack:
        raise InvalidInput(
            f"scores run from {float(scores.min()):.4g} to {float(scores.max()):.4g}, outside [0, {largest:.4g}]; "
            "give the largest that is possible."
        )
    place = (scores.double() * (bins / largest)).floor().long().clamp(0, bins - 1)
    counts = torch.bincount(place.cpu(), minlength=bins).double()
    return Histogram(torch.linspace(0.0, largest, bins + 1, dtype=torch.float64), counts / len(scores))


def _scores(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores, given as tensors, arrays or lists, as tensors, or raise."""
    found = []
    for given, which in ((inside, "in-distribution"), (outside, "out-of-distribution")):
        scores = inputs_of(given, f"the {which} scores")
        if scores.dim() != 1:
            raise InvalidInput(f"{which} scores must have shape (n,), got {tuple(scores.shape)}.")
        if len(scores) == 0:
            raise InvalidInput(f"there are no {which} scores; to tell two sets apart, both must have some.")
        found.append(scores)
    return found[0], found[1]


def _ranked(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Return ranks in [0, 1] and targets of all inputs.

    Ranks order and tie as the scores do. Scores themselves will not do: torchmetrics sends those that leave [0, 1]
    through a sigmoid, which rounds the smallest differences, and entropies near 0 with them, to ties.
    """
    inside, outside = _scores(inside, outside)
    scores = torch.cat([inside.double().cpu(), outside.double().cpu()])
    levels, rank = scores.unique(return_inverse=True)
    targets = torch.cat([torch.zeros(len(inside), dtype=torch.long), torch.ones(len(outside), dtype=torch.long)])
    return rank.double() / max(len(levels) - 1, 1), targets


def _torchmetrics() -> Any:
    # Imported where it is needed: it takes seconds, and most of certibayes does without.
    return require_package("torchmetrics.functional", "evaluation").classification
