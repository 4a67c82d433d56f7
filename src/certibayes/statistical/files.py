"""Reading statistical certificates back from the files that ``save`` wrote; ``load_certificate`` knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from certibayes.certificates import reading
from certibayes.certificates.files import KINDS
from certibayes.certificates.provenance import Provenance
from certibayes.certificates.result import require_same_words
from certibayes.errors import CorruptFile
from certibayes.regions import NORMS
from certibayes.statistical.concentration import INEQUALITIES, Sums, binomial_tail, failure_per_statement
from certibayes.statistical.results import FreshPredictorBounds, PredictiveBounds, RobustProbability
from certibayes.statistical.trial import Trial

TRIAL = (
    "posterior", "confidence", "inequality", "joint", "points", "eps", "norm", "domain", "rounding", "provenance",
)  # fmt: skip
SETTINGS = ("bounds", "method", "intermediates")
ROUNDINGS = ("outward", "ideal")
WHAT = "this statistical certificate"


def read_robust_probability(record: dict[str, Any]) -> RobustProbability:
    """Read what ``RobustProbability.to_json`` returned."""
    trial = _trial(record, "labels", "certified", "lower", "upper")
    result = RobustProbability(
        labels=reading.whole_numbers(record["labels"], "labels"),
        certified=reading.whole_numbers(record["certified"], "certified"),
        lower=reading.numbers(record["lower"], "lower", 1),
        upper=reading.numbers(record["upper"], "upper", 1),
        trial=trial,
    )
    _require_alike(trial, result.labels, result.certified, result.lower, result.upper)
    if bool((result.certified < 0).any() or (result.certified > trial.samples).any()):
        raise CorruptFile(f"{WHAT} contradicts itself: more networks are certified than were drawn.")
    if not _follow_from_counts(result):
        raise CorruptFile(f"{WHAT} contradicts itself: its bounds do not follow from how many networks are certified.")
    require_same_words(record, result)
    return result


def read_predictive_bounds(record: dict[str, Any]) -> PredictiveBounds:
    """Read what ``PredictiveBounds.to_json`` returned."""
    trial = _trial(record, "labels", "lower", "upper", "margins", "certified")
    result = PredictiveBounds(
        labels=reading.whole_numbers(record["labels"], "labels"),
        lower=reading.numbers(record["lower"], "lower", 2),
        upper=reading.numbers(record["upper"], "upper", 2),
        margins=reading.numbers(record["margins"], "margins", 2),
        trial=trial,
    )
    _require_alike(trial, result.labels, result.lower, result.upper, result.margins)
    _require_probabilities(result.labels, result.lower, result.upper)
    is_label = result.labels[:, None] == torch.arange(result.lower.shape[1])
    right = torch.where(is_label, result.margins == 1.0, result.margins.abs() <= 1.0)
    if result.margins.shape != result.lower.shape or not bool(right.all()):
        raise CorruptFile(f"{WHAT} contradicts itself: margins are not what differences of probabilities can be.")
    if record["certified"] != result.certified.tolist():
        raise CorruptFile(f"{WHAT} contradicts itself: marks do not follow from its margins.")
    require_same_words(record, result)
    return result


def read_fresh_predictor_bounds(record: dict[str, Any]) -> FreshPredictorBounds:
    """Read what ``FreshPredictorBounds.to_json`` returned."""
    trial = _trial(record, "labels", "lower", "upper", "failure", "certified", "samples", "confidence")
    result = FreshPredictorBounds(
        labels=reading.whole_numbers(record["labels"], "labels"),
        lower=reading.numbers(record["lower"], "lower", 2),
        upper=reading.numbers(record["upper"], "upper", 2),
        failure=reading.numbers(record["failure"], "failure", 1),
        certified=reading.truths(record["certified"], "certified"),
        samples=reading.count(record["samples"], "samples", minimum=1),
        confidence=_fraction(record["confidence"]),
        trial=trial,
    )
    _require_alike(trial, result.labels, result.lower, result.upper, result.failure, result.certified)
    _require_probabilities(result.labels, result.lower, result.upper)
    allowed = failure_per_statement(result.confidence, 1, trial.points if trial.joint else 1)
    if bool((result.failure < 0).any()) or not torch.equal(result.certified, result.failure <= allowed):
        raise CorruptFile(f"{WHAT} contradicts itself: marks do not follow from its probabilities of failure.")
    require_same_words(record, result)
    return result


def _trial(record: dict[str, Any], *names: str) -> Trial:
    """Check the keys of a record, and read how its networks were drawn."""
    reading.require_keys(record, ("kind", "statement", *names, "trial"), WHAT)
    trial = record["trial"]
    reading.require_keys(trial, TRIAL, "its trial")
    points = reading.count(trial["points"], "points")
    return Trial(
        posterior=reading.text(trial["posterior"], "the posterior"),
        confidence=_fraction(trial["confidence"]),
        inequality=reading.choice(trial["inequality"], INEQUALITIES, "the inequality"),
        joint=reading.truth(trial["joint"], "joint"),
        points=points,
        eps=reading.radii(trial["eps"], points),
        norm=reading.choice(trial["norm"], NORMS, "norm"),
        domain=reading.domain(trial["domain"], points),
        rounding=reading.choice(trial["rounding"], ROUNDINGS, "rounding"),
        provenance=Provenance.from_json(trial["provenance"], SETTINGS),
    )


def _fraction(value: Any) -> float:
    found = reading.number(value, "the confidence")
    if not 0.0 < found < 1.0:
        raise CorruptFile(f"a confidence lies between 0 and 1, got {found}.")
    return found


def _require_alike(trial: Trial, *parts: Tensor) -> None:
    if any(len(part) != trial.points for part in parts):
        raise CorruptFile(f"{WHAT} has parts that are not all about the same {trial.points} points.")


def _require_probabilities(labels: Tensor, lower: Tensor, upper: Tensor) -> None:
    """Raise unless bounds (B, C) are those of probabilities and labels are some of their classes."""
    if lower.shape != upper.shape or bool(((labels < 0) | (labels >= lower.shape[-1])).any()):
        raise CorruptFile(f"{WHAT} has parts that are not all about the same classes.")
    if bool(((lower < 0) | (lower > upper) | (upper > 1.01)).any()):
        raise CorruptFile(f"{WHAT} contradicts itself: its bounds are not what bounds of probabilities can be.")


def _follow_from_counts(result: RobustProbability) -> bool:
    """Tell whether no bound says more than its inequality says of so many certified networks."""
    trial, draws, lower, upper = result.trial, result.trial.samples, result.lower, result.upper
    failure, certified = trial.failure(2), result.certified.double()
    if not bool(((lower >= 0) & (lower <= upper) & (upper <= 1)).all()):
        return False
    if trial.inequality == "clopper-pearson":
        # By its definition: the quantiles that bounds are made of need a package that a reader may not have.
        sides = (certified, lower), (draws - certified, 1 - upper)
        pairs = {pair for side in sides for pair in zip(*(part.tolist() for part in side), strict=True)}
        return all(p == 0 or binomial_tail(int(k), draws, p) <= failure * (1 + 1e-6) for k, p in pairs)
    if draws < 2 and trial.inequality == "bernstein":
        return False  # one draw has no variance
    lowest, highest = INEQUALITIES[trial.inequality](Sums(draws, certified, certified), failure)
    return bool(((lower <= lowest + 1e-12) & (upper >= highest - 1e-12)).all())


READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    RobustProbability.kind: read_robust_probability,
    PredictiveBounds.kind: read_predictive_bounds,
    FreshPredictorBounds.kind: read_fresh_predictor_bounds,
}
KINDS.update(READERS)
