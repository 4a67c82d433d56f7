"""What a page says besides the statement: the same facts, for a reader who has never seen a certificate.

Every function is pure: words come from the record and from nothing else.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.certificates._names import NORMS
from certibayes.certificates.abstention import Abstention
from certibayes.certificates.certificate import Certificate
from certibayes.certificates.provenance import Provenance
from certibayes.certificates.radius import Radius
from certibayes.certificates.regression import RegressionCertificate
from certibayes.certificates.words import number_in_words
from certibayes.regions import Domain

Result = Certificate | Radius | RegressionCertificate | Abstention


class Row(NamedTuple):
    """A line of a table: a name, its value, and what it means."""

    name: str
    value: str
    meaning: str = ""


BOUNDS = {
    "ibp": "intervals: each layer turns ranges of its inputs into ranges of its outputs",
    "crown": "linear bounds, from the outputs back to the input (CROWN), and intervals",
    "alpha-crown": "linear bounds as in CROWN, with slopes optimized for each point, and intervals",
    "hull": "linear bounds with multi-neuron cuts, optimized for each point, and intervals",
}
METHODS = {
    "auto": "the bounds of all networks are compared class by class, with costlier bounds where cheap ones do not do",
    "theorem1": "the label at its lowest probability is compared with each other class at its highest",
    "pairwise": "the label is compared with each other class, network by network",
    "elided": "differences between the label's output and each other class's are bounded directly",
    "joint": "one input for all networks: their linear bounds are averaged first",
    "best": "all methods in turn; with a time budget also attacks, and splitting into cases",
}
ROUNDINGS = {
    "outward": "float rounding is accounted for: the proof is about the program that runs",
    "ideal": "float rounding is not accounted for: the proof is about exact arithmetic",
}
DISTANCES = {
    "linf": "Each value of the input may change by up to {}, up or down, all values at the same time.",
    "l2": "The changes of an input, taken together, may have a Euclidean length of up to {}.",
    "l1": "The changes of all values of an input may add up to {}, counted without their signs.",
}
TITLES = {
    Certificate: "Certificate of robustness",
    Radius: "Certified radii",
    RegressionCertificate: "Certified predictions",
    Abstention: "Certified uncertainty",
}


def changes_in_words(result: Certificate | Radius | RegressionCertificate) -> list[Row]:
    """Say which changes of an input are meant."""
    if isinstance(result, Radius):
        radius = "one per point"
    elif isinstance(result.eps, Tensor):
        radius = "one per point" if result.eps.dim() == 1 else "one per value"
    else:
        radius = number_in_words(result.eps)
    low, high = result.domain or (-math.inf, math.inf)
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        domain = "one per value"
    else:
        domain = f"[{number_in_words(low)}, {number_in_words(high)}]" if result.domain else "no limit"
    return [
        Row("Radius", radius, _distance_in_words(result)),
        Row("Norm", NORMS[result.norm], "in which the radius is measured"),
        Row("Domain", domain, _domain_in_words(result.domain)),
    ]


def _distance_in_words(result: Certificate | Radius | RegressionCertificate) -> str:
    if isinstance(result, Radius):
        return DISTANCES[result.norm].format("the radius stated for the point")
    eps = result.eps
    if not isinstance(eps, Tensor):
        return DISTANCES[result.norm].format(number_in_words(eps))
    span = _span(eps)
    if eps.dim() == 1:
        return DISTANCES[result.norm].format(f"a radius that differs from point to point ({span})")
    still = " A value whose radius is 0 does not change." if bool((eps == 0).any()) else ""
    return f"Each value of the input may change by up to a radius of its own, up or down ({span}).{still}"


def _domain_in_words(domain: Domain) -> str:
    if domain is None:
        return "There is no limit on the values that an input can have."
    low, high = domain
    if isinstance(low, Tensor) and isinstance(high, Tensor):
        return f"Each value stays in a range of its own (from {float(low.min()):g} to {float(high.max()):g} in all)."
    ends = float(low), float(high)
    if math.isinf(ends[0]) or math.isinf(ends[1]):
        limits = [f"{word} {number_in_words(end)}" for word, end in zip(("at least", "at most"), ends, strict=True)
                  if math.isfinite(end)]  # fmt: skip
        return f"Every value stays {' and '.join(limits)}." if limits else _domain_in_words(None)
    return f"Every value stays between {number_in_words(ends[0])} and {number_in_words(ends[1])}."


def lead_in_words(result: Result) -> list[str]:
    """Say in a few sentences what was proved."""
    if isinstance(result, Abstention):
        proved = (
            f"Proved for {_some(result.certified, len(result))}: no allowed change of the input makes the predictor "
            f"surer than {number_in_words(result.tau)} of any class: it stays uncertain, and may withhold its answer."
        )
        return [proved, _covers(result.certificate.provenance)]
    if isinstance(result, RegressionCertificate):
        proved = "For every point, the prediction stays between the bounds below, whichever allowed change is made."
        if result.certified is not None:
            where = "the target" if result.targets_given else "the prediction at the point itself"
            proved += (
                f" Proved for {_some(result.certified, len(result))}: it stays within "
                f"{number_in_words(float(result.tolerance or 0))} of {where}."
            )
        return [proved, _covers(result.provenance)]
    if isinstance(result, Radius):
        proved = (
            f"Proved for {_some(result.certified, len(result))}: no change of the input within the radius stated "
            "changes the class from the point's label."
        )
        return [proved, _covers(result.provenance)]
    proved = (
        f"Proved for {_some(result.certified, len(result))}: no allowed change of the input changes the class from "
        "the point's label. For all points, the probability of each class stays between the bounds in the record."
    )
    return [proved, _covers(result.provenance)]


def _covers(provenance: Provenance) -> str:
    networks = "one network" if provenance.samples == 1 else f"the mean of {provenance.samples:,} networks"
    return (
        "This was proved, not sampled: it holds for every allowed change at once, also for those that nobody has "
        f"tried. The predictor is {networks} with fixed weights."
    )


def figures_of(result: Result) -> list[Row]:
    """Count points by what is known of them."""
    n = len(result)
    rows = [Row("Points", f"{n:,}", "that this certificate is about")]
    if result.certified is not None:
        rows.append(Row("Certified", counted(result.certified), "proved for every allowed change"))
    if isinstance(result, Abstention):
        return rows
    if isinstance(result, Radius):
        rows.append(Row("Classified as labeled", counted(result.correct), "without any change"))
        rows.append(Row("Mean radius", _floor(result.mean), "points without a proof count as 0"))
        return rows
    if isinstance(result, Certificate):
        rows.append(Row("Classified as labeled", counted(result.predicted == result.labels), "without any change"))
        if result.attacked is not None:
            rows.append(
                Row("Counterexample", counted(result.attacked), "an allowed input was found that gets another class")
            )
        rows.append(Row("Not decided", counted(_undecided(result)), "neither a proof nor a counterexample"))
    if result.reasons:
        rows.append(
            Row(
                "No conclusion", counted_number(len(result.reasons), n), "; ".join(sorted(set(result.reasons.values())))
            )
        )
    return rows


def not_proved(result: Result) -> list[str]:
    """Say what must not be read into it."""
    record = result.certificate if isinstance(result, Abstention) else result
    said = ["Other changes: anything that takes an input further than stated above, such as most shifts, rotations or "
            "changes of lighting."]  # fmt: skip
    if bool(_undecided(result).any()):
        said.append(
            "Points that are not marked certified. No proof was found for them, which does not mean that there is none."
        )
    said += [
        "Other inputs. Each statement is about a point of this list and its surroundings, and says nothing about "
        "inputs that the predictor meets elsewhere.",
        "Other weights. A predictor that was trained again, sampled again or converted to another format is another "
        "predictor, with another digest.",
    ]
    if record.rounding == "outward":
        said.append(
            f"Other arithmetic: half precision, TF32, autocast or quantized numbers. The proof is about {record.dtype} "
            "by direct sums."
        )
    else:
        said.append("The program that runs: the proof is about exact arithmetic, and floats round.")
    if isinstance(record, RegressionCertificate):
        said.append("That predictions are right. They may be wrong, within their bounds; observations also have noise.")
    else:
        said.append(
            "That labels are right, or that probabilities are calibrated. Bounds are on what the predictor says. A "
            "label is the class in question: the true one where labels were given, else the predictor's own answer."
        )
    return said


def _undecided(result: Result) -> Tensor:
    """Where neither a proof nor a counterexample is known, (B,)."""
    if isinstance(result, Certificate):
        # A point that is not classified as its label is itself a counterexample, whether or not one was looked for.
        return result.unknown & (result.predicted == result.labels)
    return torch.zeros(0) if result.certified is None else ~result.certified


def proof_rows(result: Result) -> list[Row]:
    """Say how it was proved."""
    record = result.certificate if isinstance(result, Abstention) else result
    settings = record.provenance.settings
    rows = [Row("Bounds", settings["bounds"], BOUNDS.get(settings["bounds"], ""))]
    if settings.get("intermediates", "ibp") != "ibp":
        rows.append(Row("Layers in between", settings["intermediates"], BOUNDS.get(settings["intermediates"], "")))
    if "method" in settings:
        rows.append(Row("Method", settings["method"], METHODS.get(settings["method"], "")))
    rows.append(Row("Rounding", record.rounding, ROUNDINGS.get(record.rounding, "")))
    return rows


def origin_rows(provenance: Provenance) -> list[Row]:
    """Say what it is about and what made it."""
    seed = "not recorded" if provenance.seed is None else str(provenance.seed)
    return [
        Row("Predictor", f"sha256:{provenance.digest}", "digest of the network and its weights"),
        Row("Points", f"sha256:{provenance.inputs_digest}", "digest of the inputs, bit for bit"),
        Row("Weight samples", f"{provenance.samples:,}", f"seed: {seed}"),
        Row("Computed on", provenance.device, f"in {provenance.dtype}"),
        Row("Made by", f"certibayes {provenance.version}"),
    ]


def counted(where: Tensor) -> str:
    """Write how many of some points, and as a percentage, rounded down."""
    return counted_number(int(where.sum()), len(where))


def counted_number(count: int, n: int) -> str:
    """Write a count of n, and the percentage, rounded down."""
    return f"{count:,} ({_floor(100 * count / n, 1)}%)" if n else "0"


def _some(where: Tensor, n: int) -> str:
    count = int(where.sum())
    if count == n:
        return "the one point" if n == 1 else f"all {n:,} points"
    return f"{count:,} of {n:,} points" if count else f"none of the {n:,} points"


def _floor(value: float, digits: int = 4) -> str:
    return f"{math.floor(value * 10**digits) / 10**digits:.{digits}f}"


def _span(values: Tensor) -> str:
    if not values.numel():
        return "of no points"
    low, high = torch.aminmax(values.double())
    return f"from {number_in_words(float(low))} to {number_in_words(float(high))}"
