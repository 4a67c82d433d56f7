"""Certificates: what was proved about which points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from certibayes.certificates import reading
from certibayes.certificates._names import NORMS, ROUNDINGS
from certibayes.certificates.provenance import Provenance
from certibayes.certificates.result import Proved, require_same_words
from certibayes.certificates.showing import Intervals, of_label
from certibayes.certificates.words import (
    ball_in_words,
    briefly,
    origin_in_words,
    proof_in_words,
    reasons_in_words,
    samples_in_words,
)
from certibayes.errors import CorruptFile
from certibayes.regions import Domain

SETTINGS = ("bounds", "method", "intermediates")
PLAIN = ("eps", "norm", "rounding", "labels", "predicted", "certified", "lower", "upper", "attacked")
KEYS = ("kind", "statement", *PLAIN, "counterexamples", "reasons", "domain", "provenance")
"""The keys of a stored certificate, no more and no fewer."""


@dataclass(frozen=True, eq=False)
class Certificate(Proved):
    """What was proved for a batch of points.

    ``digest``, ``inputs_digest``, ``samples``, ``seed``, ``device``, ``dtype``, ``version``, ``bounds``, ``method`` and
    ``intermediates`` are those of its provenance.

    Attributes:
        labels: the class in question for each point, (B,).
        predicted: the class the predictor gives the point itself, (B,).
        certified: where it is proved that every input in the ball is classified as its label, (B,). It implies
            that the point itself is.
        lower: lower bounds on every class probability over the ball, float64 (B, C).
        upper: upper bounds, float64 (B, C).
        eps: radius; or a tensor of radii, one for each point (B,), or one for each input value, (1, ...) or (B, ...).
        domain: inputs are known to lie in it: a pair of numbers, or of tensors (1, ...) or (B, ...) where it differs
            by input value; None for all of space.
        rounding: ``"outward"`` if the proof holds for the float program, ``"ideal"`` if for exact arithmetic only.
        provenance: predictor, points and settings.
        norm: of the distance from the point: ``"linf"``, ``"l2"`` or ``"l1"``.
        attacked: where an input in the ball was found that is not classified as the label, (B,); None where none was
            looked for.
        counterexamples: those inputs, (B, ...); elsewhere the points themselves, or NaN in a certificate that was
            read from a file, which does not hold the points.
        reasons: why nothing could be concluded about a point, by its number; empty for most certificates.
        spent: seconds of the budget that attacks and splitting took; None where there was no budget. Not stored.
        harder: what would try harder on points that stay open. Not stored.
    """

    kind: ClassVar[str] = "certificate"
    table: ClassVar[dict[str, str]] = {
        "label": "labels", "predicted": "predicted", "certified": "certified", "attacked": "attacked",
        "unknown": "_unknown", "lower": "lower", "upper": "upper",
    }  # fmt: skip

    labels: Tensor
    predicted: Tensor
    certified: Tensor
    lower: Tensor
    upper: Tensor
    eps: float | Tensor
    domain: Domain
    rounding: str
    provenance: Provenance
    norm: str = "linf"
    attacked: Tensor | None = None
    counterexamples: Tensor | None = None
    reasons: Mapping[int, str] = field(default_factory=dict)
    spent: float | None = None
    harder: str = ""

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.labels)

    @property
    def certified_fraction(self) -> float:
        """Fraction of all points that are certified: a lower bound on robust accuracy."""
        return float(self.certified.double().mean()) if len(self) else 0.0

    @property
    def unknown(self) -> Tensor:
        """Where neither a proof nor a counterexample was found, (B,)."""
        return ~self.certified if self.attacked is None else ~(self.certified | self.attacked)

    @property
    def open(self) -> Tensor:
        """Points that may still be proved by other means: correct, and neither certified nor attacked, (B,)."""
        answered = torch.zeros_like(self.certified)
        answered[list(self.reasons)] = True
        return self.unknown & (self.predicted == self.labels) & ~answered

    @property
    def hint(self) -> str:
        """What would try harder, where points stay open; else nothing."""
        count = int(self.open.sum())
        if not count or not self.harder:
            return ""
        return f"{count} point{'s stay' if count != 1 else ' stays'} open. To try harder: {self.harder}."

    @property
    def accuracy(self) -> float:
        """Fraction of points that are predicted as their label."""
        return float((self.predicted == self.labels).double().mean()) if len(self) else 0.0

    @property
    def statement(self) -> str:
        """What was proved, in words built from this record alone."""
        return statement(self)

    @property
    def _unknown(self) -> Tensor | None:
        """The third answer, where the second was looked for."""
        return None if self.attacked is None else self.unknown

    def _intervals(self) -> Intervals:
        ends = of_label(self.lower, self.upper, self.labels)
        return Intervals(*ends, "probability of the label", self.certified)

    def __repr__(self) -> str:
        count, unanswered = int(self.certified.sum()), len(self.reasons)
        points = f"{unanswered} point{'' if unanswered == 1 else 's'}"
        return (
            f"Certificate({count} of {len(self)} points certified at {briefly(self.eps, self.norm)}, {self.bounds}, "
            f"{self.method}, {self.rounding})"
            + (f" {self.hint}" if self.hint else "")
            + (f" Nothing could be concluded about {points}: see reasons." if unanswered else "")
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything but the time it took as plain lists, numbers and strings."""
        return {
            "kind": self.kind,
            "statement": self.statement,
            **{name: reading.plain(getattr(self, name)) for name in PLAIN},
            "counterexamples": self._counterexamples,
            "reasons": reading.plain(self.reasons),
            "domain": reading.plain_domain(self.domain),
            "provenance": self.provenance.to_json(),
        }

    @property
    def _counterexamples(self) -> dict[str, Any] | None:
        """The counterexamples of attacked points, by number; the others are points, which are not stored."""
        if self.attacked is None or self.counterexamples is None:
            return None
        return {
            str(index): self.counterexamples[index].tolist() for index in self.attacked.nonzero().flatten().tolist()
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> Certificate:
        """Read ``to_json``'s answer.

        Raises:
            CorruptFile: it is incomplete, its parts do not match, or its words are not those of the record.
        """
        certificate = parse(record)
        if found := contradictions(certificate):
            raise CorruptFile(f"this certificate contradicts itself: {'; '.join(found)}.")
        require_same_words(record, certificate)
        return certificate


def statement(certificate: Certificate) -> str:
    """Say what a certificate proves; a pure function of the record."""
    c = certificate
    attacked = (
        ""
        if c.attacked is None
        else f"For each of the {int(c.attacked.sum())} points marked attacked, its counterexample is an input of that "
        "ball that the predictor gives another class. "
    )
    return (
        f"{reasons_in_words(c.reasons)}For each point marked certified ({int(c.certified.sum())} of {len(c)}), "
        f"{ball_in_words(c.eps, c.norm, c.domain)} is classified as the point's label by the mean prediction of "
        f"{samples_in_words(c.provenance)}. "
        f"For every {'other ' if c.reasons else ''}point, marked or not, all class probabilities "
        f"(predictor.probabilities) over that ball lie between lower and upper. {attacked}"
        f"Proved {proof_in_words(c.provenance, c.rounding)}. "
        "Nothing is said about other weight samples, other radii or other kinds of change. "
        f"{origin_in_words(c.provenance)}"
    )


def parse(record: Any) -> Certificate:
    """Read a stored certificate, whether or not it contradicts itself and whatever its statement says.

    Raises:
        CorruptFile: a key is missing or unknown, or a value is not what its name promises.
    """
    reading.require_keys(record, KEYS, "this certificate")
    reading.choice(record["kind"], (Certificate.kind,), "the kind")
    reading.text(record["statement"], "the statement")
    labels = reading.whole_numbers(record["labels"], "labels")
    points = len(labels)
    lower, upper = (reading.numbers(record[end], end, 2) for end in ("lower", "upper"))
    attacked = None if record["attacked"] is None else reading.truths(record["attacked"], "attacked")
    certificate = Certificate(
        labels=labels,
        predicted=reading.whole_numbers(record["predicted"], "predicted"),
        certified=reading.truths(record["certified"], "certified"),
        lower=lower if points else lower.view(0, 0),
        upper=upper if points else upper.view(0, 0),
        eps=reading.radii(record["eps"], points),
        domain=reading.domain(record["domain"], points),
        rounding=reading.choice(record["rounding"], ROUNDINGS, "rounding"),
        provenance=Provenance.from_json(record["provenance"], SETTINGS),
        norm=reading.choice(record["norm"], NORMS, "norm"),
        attacked=attacked,
        counterexamples=_read_counterexamples(record["counterexamples"], attacked),
        reasons={
            index: reading.text(reason, "a reason")
            for index, reason in reading.by_point(record["reasons"], points, "reasons").items()
        },
    )
    given = (certificate.predicted, certificate.certified, attacked, lower, upper)
    if any(part is not None and len(part) != points for part in given) or lower.shape != upper.shape:
        raise CorruptFile(f"this certificate's parts are not all about the same {points} points and classes.")
    return certificate


def contradictions(certificate: Certificate) -> list[str]:
    """Return what in a certificate contradicts itself."""
    c = certificate
    none = torch.zeros(len(c), dtype=torch.bool)
    attacked = none if c.attacked is None else c.attacked.cpu()
    certified = c.certified.cpu()
    unanswered = none.index_fill(0, torch.tensor(sorted(c.reasons), dtype=torch.int64), True)
    linear = c.bounds != "ibp"
    found = {
        "points are certified and yet not predicted as their label": certified & (c.predicted != c.labels).cpu(),
        "points are both certified and attacked": certified & attacked,
        "points are certified although there is a reason why nothing could be concluded": certified & unanswered,
        "lower bounds exceed upper bounds": (c.lower > c.upper).cpu().any(-1),
        "bounds lie outside what probabilities can be": ((c.lower < 0) | (c.upper > 1.01)).cpu().any(-1),
        "points were attacked, which only the method best does": attacked & torch.tensor(c.method != "best"),
        "radii differ within a point, which only the norm linf allows": torch.tensor(
            isinstance(c.eps, Tensor) and c.eps.dim() > 1 and c.norm != "linf"
        ),
        f"the method {c.method} does not go with {c.bounds} bounds": torch.tensor(c.method == "joint" and not linear),
        f"{c.intermediates} intermediates do not go with {c.bounds} bounds": torch.tensor(
            c.intermediates != "ibp" and not linear
        ),
    }
    return [words for words, where in found.items() if bool(where.any())]


def _read_counterexamples(value: Any, attacked: Tensor | None) -> Tensor | None:
    """Return the counterexamples of attacked points, (B, ...), and NaN for all other points."""
    if attacked is None:
        if value is not None:
            raise CorruptFile("there are counterexamples, but nothing is said to be attacked.")
        return None
    found = {
        index: reading.numbers(one, "a counterexample")
        for index, one in reading.by_point(value, len(attacked), "counterexamples").items()
    }
    if sorted(found) != attacked.nonzero().flatten().tolist():
        raise CorruptFile("each attacked point needs its counterexample, and no other point has one.")
    shapes = {tuple(one.shape) for one in found.values()} or {(0,)}
    if len(shapes) > 1:
        raise CorruptFile("the counterexamples are not all of one shape.")
    inputs = torch.full((len(attacked), *shapes.pop()), torch.nan, dtype=torch.float64)
    for index, one in found.items():
        inputs[index] = one
    return inputs
