"""The points of a page: a picture or values, an answer, and bounds as numbers and bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import torch
from torch import Tensor

from certibayes.certificates._page_words import Result
from certibayes.certificates.abstention import Abstention
from certibayes.certificates.certificate import Certificate
from certibayes.certificates.radius import Radius
from certibayes.certificates.regression import RegressionCertificate
from certibayes.certificates.words import number_in_words
from certibayes.regions import Domain
from certibayes.support.png import COLORS, image_source, png

CLASSES = 10
"""So many classes of a point are shown, those with the largest upper bounds; more would hide the answer."""

OVERLAP = (
    "Ranges of several classes overlap because each was bounded by itself; which class is largest was proved by "
    "comparing the classes."
)
"""Said of a class that is proved although ranges of probabilities alone would not tell."""

FEATURES = 40
"""Inputs of up to so many values are shown as numbers."""


@dataclass(frozen=True)
class Bar:
    """A range on a scale, from 0 to 100, with its ends in digits that were rounded outward."""

    name: str
    start: float
    width: float
    text: str
    marked: bool = False
    tick: float | None = None


@dataclass(frozen=True)
class Point:
    """What a page shows of a point.

    Attributes:
        number: in the certificate, from 0.
        facts: what it is, in a line: label and prediction.
        verdict: the answer.
        tone: of the answer: ``"proved"``, ``"broken"`` or ``"open"``.
        bars: bounds.
        image: its address, or nothing.
        counterexample: likewise.
        values: of inputs that are no images: name, value, and how far it may change.
        note: below the bars.
    """

    number: int
    facts: str
    verdict: str
    tone: str
    bars: list[Bar] = field(default_factory=list)
    image: str = ""
    counterexample: str = ""
    values: list[tuple[str, str, str]] = field(default_factory=list)
    note: str = ""


def outward(value: float, upper: bool, digits: int = 4) -> str:
    """Write a bound in a few digits after the point, so that it stays a bound."""
    rounding = ROUND_CEILING if upper else ROUND_FLOOR
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), rounding=rounding, context=Context(prec=400)))


def shortly(value: float, upper: bool, digits: int = 5) -> str:
    """Write a bound of any magnitude in a few significant digits, so that it stays a bound."""
    rounded = Context(prec=digits, rounding=ROUND_CEILING if upper else ROUND_FLOOR).create_decimal(value)
    return f"{rounded:g}" if rounded else "0"


def point_of(result: Result, number: int, classes: Sequence[str]) -> Point:
    """Return what a page shows of a point, without its input."""
    if isinstance(result, Certificate):
        return _classified(result, number, classes)
    if isinstance(result, Radius):
        return _radius(result, number, classes)
    if isinstance(result, RegressionCertificate):
        return _predicted(result, number, classes)
    return _uncertain(result, number)


def images_of(inputs: Tensor, domain: Domain) -> list[str]:
    """Return inputs (B, 1 or 3, H, W) as addresses of pictures; nothing for inputs that are no images.

    Black and white are the ends of the domain where it has two for all pixels, else the smallest and the largest value.
    """
    if inputs.dim() != 4 or inputs.shape[1] not in COLORS or min(inputs.shape[2:]) < 2:
        return [""] * len(inputs)
    values = inputs.detach().cpu().double()
    low, high = (float(end) if not isinstance(end, Tensor) else torch.inf for end in domain or (torch.inf, torch.inf))
    if not (abs(low) < torch.inf and abs(high) < torch.inf):
        known = values[values.isfinite()]
        low, high = (float(known.min()), float(known.max())) if known.numel() else (0.0, 1.0)
    scaled = (values - low) / ((high - low) or 1.0)
    return [image_source(png(image)) if bool(image.isfinite().all()) else "" for image in scaled]


def values_of(inputs: Tensor, radii: float | Tensor | None, names: Sequence[str]) -> list[list[tuple[str, str, str]]]:
    """Return inputs of a few values by name; nothing for longer ones and images.

    Args:
        inputs: (B, ...).
        radii: how far each value may change: a number, one per input (B,), or one per value; None where that cannot
            be said of a single value.
        names: of the values.
    """
    flat = inputs.detach().cpu().double().flatten(1)
    if inputs.dim() > 2 or flat.shape[1] > FEATURES:
        return [[] for _ in inputs]
    each = torch.as_tensor(torch.nan if radii is None else radii, dtype=torch.float64).cpu()
    each = each.view(-1, 1) if each.dim() == 1 else each.flatten(1) if each.dim() > 1 else each
    titles = names or [f"value {index}" for index in range(flat.shape[1])]
    return [
        [
            (name, f"{value:g}", "" if radii is None else _allowed(radius))
            for name, value, radius in zip(titles, row, allowed, strict=True)
        ]
        for row, allowed in zip(flat.tolist(), each.expand(flat.shape).tolist(), strict=True)
    ]


def _allowed(radius: float) -> str:
    """Write a radius; one with many digits, as floats have them, is rounded down: no more is said than was proved."""
    exact = number_in_words(radius)
    return exact if len(exact) <= 8 else f"{Decimal(shortly(radius, upper=False, digits=6)).normalize():g}"


def _name(classes: Sequence[str], index: int) -> str:
    return classes[index] if 0 <= index < len(classes) else str(index)


def _classified(c: Certificate, number: int, classes: Sequence[str]) -> Point:
    label, predicted = int(c.labels[number]), int(c.predicted[number])
    facts = f"label {_name(classes, label)}, predicted {_name(classes, predicted)}"
    if number in c.reasons:
        return Point(number, facts, "Nothing could be concluded", "open", note=c.reasons[number])
    if bool(c.certified[number]):
        verdict, tone = f"Certified: {_name(classes, label)} for every allowed change", "proved"
    elif predicted != label:
        verdict, tone = "Not classified as its label", "broken"
    elif c.attacked is not None and bool(c.attacked[number]):
        verdict, tone = "An allowed change was found that changes the class", "broken"
    else:
        verdict, tone = "Not decided: no proof was found", "open"
    upper = c.upper[number].tolist()
    shown = sorted(sorted(range(len(upper)), key=lambda k: -upper[k])[:CLASSES])
    if label not in shown and 0 <= label < len(upper):
        shown = sorted([*shown[:-1], label])
    bars = [_probability(_name(classes, k), float(c.lower[number, k]), upper[k], k == label) for k in shown]
    left = [upper[k] for k in range(len(upper)) if k not in shown]
    notes = [f"Each of the {len(left)} other classes has probability at most {_capped(max(left))}."] if left else []
    rivals = [end for k, end in enumerate(upper) if k != label]
    if tone == "proved" and float(c.lower[number, label]) <= max(rivals, default=0.0):
        notes.append(OVERLAP)
    return Point(number, facts, verdict, tone, bars, note=" ".join(notes))


def _probability(name: str, lower: float, upper: float, marked: bool = False) -> Bar:
    start, end = 100 * min(max(lower, 0.0), 1.0), 100 * min(max(upper, 0.0), 1.0)
    return Bar(name, start, max(end - start, 0.0), f"{outward(lower, upper=False)} to {_capped(upper)}", marked)


def _capped(upper: float) -> str:
    """Write an upper bound on a probability. Bounds on its float may exceed 1 by a rounding error; it does not."""
    return outward(min(upper, 1.0), upper=True)


def _radius(r: Radius, number: int, classes: Sequence[str]) -> Point:
    facts = f"label {_name(classes, int(r.labels[number]))}"
    if not bool(r.certified[number]):
        wrong = not bool(r.correct[number])
        verdict = "Not classified as its label" if wrong else "No proof was found at any radius"
        return Point(number, facts, verdict, "broken" if wrong else "open")
    radius, unproved = float(r.radius[number]), float(r.unproved[number])
    text = shortly(radius, upper=False)
    further = (
        "larger ones were not tried" if unproved == torch.inf else f"{shortly(unproved, upper=True)} was not proved"
    )
    bar = Bar("radius", 0.0, 100 * min(radius / r.largest, 1.0) if r.largest else 0.0, text, True)
    return Point(number, facts, f"Certified up to {text}", "proved", [bar], note=f"Of radii beyond it, {further}.")


def _predicted(c: RegressionCertificate, number: int, outputs: Sequence[str]) -> Point:
    if number in c.reasons:
        return Point(number, "", "Nothing could be concluded", "open", note=c.reasons[number])
    names = [_name(outputs, k) if outputs else f"output {k}" for k in range(c.lower.shape[1])]
    facts = ", ".join(f"{name} {float(value):g}" for name, value in zip(names, c.predicted[number], strict=True))
    certified = c.certified
    if certified is None:
        verdict, tone = "Bounded for every allowed change", "proved"
    elif bool(certified[number]):
        verdict, tone = f"Certified: off by at most {float(c.tolerance or 0):g}", "proved"
    else:
        verdict, tone = f"Not proved to be off by at most {float(c.tolerance or 0):g}", "open"
    answered = [index for index in range(len(c)) if index not in c.reasons]
    bars = []
    for k, name in enumerate(names):
        low, high = float(c.network_lower[answered, k].min()), float(c.network_upper[answered, k].max())
        bars += [
            _range(name, c.lower[number, k], c.upper[number, k], (low, high), c.reference[number, k], True),
            _range("each network", c.network_lower[number, k], c.network_upper[number, k], (low, high), None, False),
        ]
    mark = "target" if c.targets_given else "prediction at the point"
    return Point(number, f"predicted: {facts}", verdict, tone, bars, note=f"The line is the {mark}.")


def _range(
    name: str, lower: Tensor, upper: Tensor, scale: tuple[float, float], tick: Tensor | None, marked: bool
) -> Bar:
    low, high = scale
    start, end = (100 * min(max((float(value) - low) / ((high - low) or 1.0), 0.0), 1.0) for value in (lower, upper))
    place = None if tick is None else 100 * min(max((float(tick) - low) / ((high - low) or 1.0), 0.0), 1.0)
    text = f"{shortly(float(lower), upper=False)} to {shortly(float(upper), upper=True)}"
    return Bar(name, start, max(end - start, 0.0), text, marked, place)


def _uncertain(a: Abstention, number: int) -> Point:
    certified = bool(a.certified[number])
    verdict = f"Certified: never surer than {a.tau:g}" if certified else f"Not proved to stay below {a.tau:g}"
    confidence = float(a.confidence[number])
    entropy = f"{outward(float(a.entropy_lower[number]), False)} to {outward(float(a.entropy_upper[number]), True)}"
    bars = [
        Bar("confidence", 0.0, 100 * min(confidence, 1.0), f"at most {_capped(confidence)}", certified, 100 * a.tau)
    ]
    return Point(number, "", verdict, "proved" if certified else "open", bars, note=f"Entropy from {entropy} nats.")
