"""Certified uncertainty: the record of ``certify_abstention``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from certibayes.certificates import reading
from certibayes.certificates.certificate import Certificate
from certibayes.certificates.result import Stated, require_same_words
from certibayes.certificates.showing import Intervals
from certibayes.certificates.words import briefly
from certibayes.errors import CorruptFile

PLAIN = ("certified", "confidence", "entropy_lower", "entropy_upper", "tau")
KEYS = ("kind", "statement", *PLAIN, "certificate")


@dataclass(frozen=True, eq=False)
class Abstention(Stated):
    """Certified uncertainty of a batch of points.

    Attributes:
        certified: where it is proved that no input of the ball is classified with confidence above ``tau``, (B,).
        confidence: upper bounds on the confidence over the ball, float64 (B,).
        entropy_lower: lower bounds on the entropy of the mean prediction over the ball, in nats, float64 (B,).
        entropy_upper: upper bounds, float64 (B,).
        tau: the confidence below which a prediction is withheld.
        certificate: where the bounds come from.
    """

    kind: ClassVar[str] = "abstention"
    table: ClassVar[dict[str, str]] = {
        "certified": "certified", "confidence": "confidence", "entropy_lower": "entropy_lower",
        "entropy_upper": "entropy_upper",
    }  # fmt: skip

    certified: Tensor
    confidence: Tensor
    entropy_lower: Tensor
    entropy_upper: Tensor
    tau: float
    certificate: Certificate

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.certified)

    @property
    def statement(self) -> str:
        """What was proved, in words built from this record alone."""
        return (
            f"For each point marked certified ({int(self.certified.sum())} of {len(self)}), no input of its ball is "
            f"classified with confidence above {self.tau!r}; "
            "for every point, marked or not, the confidence over its ball is at most confidence, and the entropy of "
            "the mean prediction, in nats, lies between entropy_lower and entropy_upper. Balls, predictor and "
            f"arithmetic are those of this certificate: {self.certificate.statement}"
        )

    def _intervals(self) -> Intervals:
        return Intervals(self.entropy_lower, self.entropy_upper, "entropy, in nats", self.certified)

    def __repr__(self) -> str:
        c = self.certificate
        return (
            f"Abstention({int(self.certified.sum())} of {len(self)} points abstain below confidence {self.tau:g} at "
            f"{briefly(c.eps, c.norm)}, {c.bounds}, {c.method}, {c.rounding})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings."""
        return {
            "kind": self.kind,
            "statement": self.statement,
            **{name: reading.plain(getattr(self, name)) for name in PLAIN},
            "certificate": self.certificate.to_json(),
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> Abstention:
        """Read ``to_json``'s answer.

        Raises:
            CorruptFile: it is incomplete, its parts do not match, or its words are not those of the record.
        """
        reading.require_keys(record, KEYS, "this record of certified uncertainty")
        reading.choice(record["kind"], (Abstention.kind,), "the kind")
        certificate = Certificate.from_json(record["certificate"])
        names = ("confidence", "entropy_lower", "entropy_upper")
        confidence, lowest, highest = (reading.numbers(record[name], name, 1) for name in names)
        certified, tau = reading.truths(record["certified"], "certified"), reading.number(record["tau"], "tau")
        if any(len(part) != len(certificate) for part in (certified, confidence, lowest, highest)):
            raise CorruptFile("this record's parts are not all about the same points.")
        largest = certificate.upper.amax(-1) if len(certificate) else confidence
        if not (torch.equal(confidence, largest) and torch.equal(certified, confidence <= tau)):
            raise CorruptFile("this record contradicts itself: confidence or marks do not follow from its bounds.")
        result = Abstention(certified, confidence, lowest, highest, tau, certificate)
        require_same_words(record, result)
        return result
