"""The paper's claim about uncertainty, decided by a stated criterion.

The paper, in its experiments, says of MNIST: "in each case, robust training with IBP significantly improves uncertainty
by making more uncertain predictions on out-of-distributions data, while still being confident on in-distribution data."
Here that is confirmed for a method, at one temperature and one seed, if

1. the mean entropy out of distribution is larger with the robust than with the standard likelihood, by more than twice
   the standard error of the difference of the two means over inputs, and
2. with the robust likelihood the mean probability of the predicted class in distribution is at least 0.9.

Of CIFAR-10, where accuracy is low, it only says that entropy rises: there the second condition is left out. The entropy
is the expected entropy, the paper's definition; the verdict by the entropy of the mean prediction is given beside it.
The standard error is over test inputs and says nothing about other seeds. Whether out-of-distribution inputs are
*detected* better is another question, since entropy may rise everywhere: AUROC before and after answers that, and
decides nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENT = 0.9
"""Mean probability of the predicted class from which on a predictor counts as confident."""

SIGNIFICANT = 2.0
"""Standard errors that a difference must exceed."""

UNCLAIMED = ("cifar10",)
"""Data sets for which the paper does not claim confidence in distribution."""


@dataclass(frozen=True)
class Claim:
    """What became of the claim for one method.

    Attributes:
        method: its name.
        temperature: of both posteriors.
        seed: of both.
        confirmed: by the expected entropy; None if a run diverged.
        confirmed_predictive: by the entropy of the mean prediction.
        separates: whether AUROC by expected entropy is larger with the robust likelihood.
        sentence: the verdict and its figures.
    """

    method: str
    temperature: float
    seed: int
    confirmed: bool | None
    confirmed_predictive: bool | None
    separates: bool | None
    sentence: str


def decide_claim(
    method: str,
    temperature: float,
    seed: int,
    standard: Mapping[str, Any],
    robust: Mapping[str, Any],
    dataset: str,
    ood: str,
) -> Claim:
    """Decide the claim by the figures (``Assessment.summary``) of a standard and a robust run."""
    who = f"{method}, temperature {temperature:g}"
    for name, figures in (("standard", standard), ("robust", robust)):
        if "diverged" in figures:
            return Claim(method, temperature, seed, None, None, None, f"{who}: not decided, the {name} run diverged.")
    confidence = robust["in"]["max_probability"]
    confident = dataset in UNCLAIMED or confidence >= CONFIDENT
    rises = {
        score: _rises(standard["out"], robust["out"], score) for score in ("expected_entropy", "predictive_entropy")
    }
    confirmed = rises["expected_entropy"] and confident
    out, inside = ([f[part]["expected_entropy"] for f in (standard, robust)] for part in ("out", "in"))
    areas = [f["detection"]["expected_entropy"]["auroc"] for f in (standard, robust)]
    sentence = (
        f"{who}: {'confirmed' if confirmed else 'not confirmed'}. From the standard to the robust likelihood the "
        f"expected entropy on {ood} goes from {out[0]:.3f} to {out[1]:.3f} "
        f"({'a rise' if rises['expected_entropy'] else 'no rise'} beyond {SIGNIFICANT:g} standard errors of "
        f"{_error(standard['out'], robust['out'], 'expected_entropy'):.4f}), on {dataset} from {inside[0]:.3f} to "
        f"{inside[1]:.3f}, where the robust predictor gives its class {confidence:.3f} on average"
        f"{'' if dataset in UNCLAIMED else f' (at least {CONFIDENT:g} wanted)'}; AUROC goes from {areas[0]:.3f} to "
        f"{areas[1]:.3f}."
    )
    return Claim(
        method, temperature, seed, confirmed, rises["predictive_entropy"] and confident, areas[1] > areas[0], sentence
    )


def _error(standard: Mapping[str, float], robust: Mapping[str, float], score: str) -> float:
    return math.hypot(standard[f"{score}_se"], robust[f"{score}_se"])


def _rises(standard: Mapping[str, float], robust: Mapping[str, float], score: str) -> bool:
    return robust[score] - standard[score] > SIGNIFICANT * _error(standard, robust, score)


def claims_markdown(claims: Sequence[Claim], dataset: str, ood: str) -> str:
    """The criterion, a table of verdicts, and a sentence for each method and temperature."""
    second = "" if dataset in UNCLAIMED else (
        " and (2) the mean probability of the predicted class in distribution, with the robust likelihood, is at least "
        f"{CONFIDENT:g}"
    )  # fmt: skip
    lines = [
        f"Claim: robust training raises entropy on {ood}"
        + ("." if dataset in UNCLAIMED else f", while predictions on {dataset} stay confident."),
        "",
        f"Confirmed means: (1) the mean entropy on {ood} is larger with the robust likelihood by more than "
        f"{SIGNIFICANT:g} standard errors of the difference over inputs{second}. Whether "
        "out-of-distribution inputs are detected better is another question; the last column answers it.",
        "",
        "| method | temperature | seed | by expected entropy (the paper's) | by entropy of the mean | larger AUROC |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for claim in claims:
        verdicts = (_word(claim.confirmed), _word(claim.confirmed_predictive), _word(claim.separates, "yes", "no"))
        lines.append("| " + " | ".join((claim.method, f"{claim.temperature:g}", str(claim.seed), *verdicts)) + " |")
    return "\n".join([*lines, "", *(f"- {claim.sentence}" for claim in claims)]) + "\n"


def _word(verdict: bool | None, yes: str = "confirmed", no: str = "not confirmed") -> str:
    return "diverged" if verdict is None else yes if verdict else no
