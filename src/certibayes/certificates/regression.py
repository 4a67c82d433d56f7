"""How far predictions can move: the record of ``certify_regression``."""

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
from certibayes.certificates.showing import Intervals
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

SETTINGS = ("bounds", "intermediates")
ENDS = ("predicted", "reference", "lower", "upper", "network_lower", "network_upper")
PLAIN = ("tolerance", "eps", "norm", "rounding", "targets_given")
KEYS = ("kind", "statement", *ENDS, *PLAIN, "deviation", "certified", "reasons", "domain", "provenance")
UNKNOWN = {"lower": -torch.inf, "network_lower": -torch.inf, "upper": torch.inf, "network_upper": torch.inf}
"""What stands in a record for bounds on a point about which nothing could be concluded."""


@dataclass(frozen=True, eq=False)
class RegressionCertificate(Proved):
    """What was proved about the predictions for a batch of points.

    Attributes:
        predicted: predictive mean at the point itself, (B, outputs).
        reference: what deviations are measured from: the targets where they were given, else ``predicted``; float64.
        lower: the predictive mean is at least this over the ball, float64 (B, outputs).
        upper: at most this, float64 (B, outputs).
        network_lower: every single network's output is at least this over the ball, float64 (B, outputs).
        network_upper: at most this, float64 (B, outputs).
        tolerance: allowed deviation, or None.
        eps: as in a certificate.
        domain: as in a certificate.
        rounding: as in a certificate.
        provenance: predictor, points and settings.
        targets_given: whether the reference are targets.
        norm: of the distance from the point: ``"linf"``, ``"l2"`` or ``"l1"``.
        reasons: why nothing could be concluded about a point, by its number; its bounds are infinite.
    """

    kind: ClassVar[str] = "regression certificate"
    table: ClassVar[dict[str, str]] = {
        "reference": "reference", "predicted": "predicted", "lower": "lower", "upper": "upper",
        "network_lower": "network_lower", "network_upper": "network_upper", "deviation": "deviation",
        "certified": "certified",
    }  # fmt: skip

    predicted: Tensor
    reference: Tensor
    lower: Tensor
    upper: Tensor
    network_lower: Tensor
    network_upper: Tensor
    tolerance: float | None
    eps: float | Tensor
    domain: Domain
    rounding: str
    provenance: Provenance
    targets_given: bool
    norm: str = "linf"
    reasons: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.predicted)

    @property
    def deviation(self) -> Tensor:
        """Over the ball the predictive mean is never further than this from the reference, float64 (B, outputs)."""
        largest = torch.maximum(self.upper - self.reference, self.reference - self.lower)
        return largest * (1 + 2.0**-50)  # the subtraction rounds

    @property
    def certified(self) -> Tensor | None:
        """Where no output deviates by more than the tolerance, (B,); None without a tolerance."""
        return None if self.tolerance is None else (self.deviation <= self.tolerance).all(-1)

    @property
    def certified_fraction(self) -> float | None:
        """Fraction of all points that are certified; None without a tolerance."""
        certified = self.certified
        if certified is None:
            return None
        return float(certified.double().mean()) if len(self) else 0.0

    @property
    def statement(self) -> str:
        """What was proved, in words built from this record alone."""
        certified, marked = self.certified, ""
        if certified is not None:
            where = "the target" if self.targets_given else "the prediction at the point itself (predicted)"
            marked = (
                f"For each point marked certified ({int(certified.sum())} of {len(self)}), it is nowhere further than "
                f"{self.tolerance!r} from {where}. "
            )
        return (
            f"{reasons_in_words(self.reasons)}For every {'other ' if self.reasons else ''}point and "
            f"{ball_in_words(self.eps, self.norm, self.domain)}, the predictive mean of "
            f"{samples_in_words(self.provenance)} lies between lower and upper, and the output of each of these "
            f"networks between network_lower and network_upper. {marked}"
            f"Proved {proof_in_words(self.provenance, self.rounding)}. "
            "Nothing is said about observation noise, other weight samples, other radii or other kinds of change. "
            f"{origin_in_words(self.provenance)}"
        )

    def _intervals(self) -> Intervals:
        words = "prediction" if self.lower.shape[1] == 1 else "prediction of the first output"
        return Intervals(self.lower[:, 0], self.upper[:, 0], words, self.certified, self.predicted[:, 0])

    def __repr__(self) -> str:
        certified = self.certified
        what = "" if certified is None else f"{int(certified.sum())} of "
        within = "" if certified is None else f" certified up to {self.tolerance:g}"
        settings = f"{briefly(self.eps, self.norm)}, {self.bounds}, {self.rounding}"
        return f"RegressionCertificate({what}{len(self)} points{within} at {settings})"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings; null for points with a reason."""
        return {
            "kind": self.kind,
            "statement": self.statement,
            **{name: self._rows(getattr(self, name)) for name in (*ENDS, "deviation")},
            **{name: reading.plain(getattr(self, name)) for name in (*PLAIN, "certified", "reasons")},
            "domain": reading.plain_domain(self.domain),
            "provenance": self.provenance.to_json(),
        }

    def _rows(self, values: Tensor) -> list[list[float] | None]:
        """Return the values of every point, (B, outputs); none where nothing could be concluded."""
        return [None if index in self.reasons else row for index, row in enumerate(values.tolist())]

    @staticmethod
    def from_json(record: dict[str, Any]) -> RegressionCertificate:
        """Read ``to_json``'s answer.

        Raises:
            CorruptFile: it is incomplete, its parts do not match, or its words are not those of the record.
        """
        reading.require_keys(record, KEYS, "this certificate")
        reading.choice(record["kind"], (RegressionCertificate.kind,), "the kind")
        points = len(record["lower"]) if isinstance(record["lower"], list) else 0
        reasons = {
            index: reading.text(reason, "a reason")
            for index, reason in reading.by_point(record["reasons"], points, "reasons").items()
        }
        ends = {name: _ends(record[name], name, reasons) for name in ENDS}
        if len({end.shape for end in ends.values()}) > 1:
            raise CorruptFile("this certificate's parts are not all about the same points and outputs.")
        result = RegressionCertificate(
            **{name: end if points else end.view(0, 0) for name, end in ends.items()},
            tolerance=None if record["tolerance"] is None else reading.number(record["tolerance"], "tolerance"),
            eps=reading.radii(record["eps"], points),
            domain=reading.domain(record["domain"], points),
            rounding=reading.choice(record["rounding"], ROUNDINGS, "rounding"),
            provenance=Provenance.from_json(record["provenance"], SETTINGS),
            targets_given=reading.truth(record["targets_given"], "targets_given"),
            norm=reading.choice(record["norm"], NORMS, "norm"),
            reasons=reasons,
        )
        derived = {"deviation": result._rows(result.deviation), "certified": reading.plain(result.certified)}
        if any(record[name] != value for name, value in derived.items()):
            raise CorruptFile("this certificate contradicts itself: deviations or marks do not follow from its bounds.")
        known = [index for index in range(points) if index not in reasons]
        if not result.targets_given and not torch.equal(result.reference[known], result.predicted[known]):
            raise CorruptFile("this certificate contradicts itself: it has no targets, yet a reference of its own.")
        if bool((result.lower > result.upper).any() or (result.network_lower > result.network_upper).any()):
            raise CorruptFile("this certificate contradicts itself: lower bounds exceed upper bounds.")
        require_same_words(record, result)
        return result


def _ends(value: Any, name: str, reasons: Mapping[int, str]) -> Tensor:
    """Read the values of every point, (B, outputs); unknown, or NaN, where there is a reason and nothing else."""
    rows = value if isinstance(value, list) else []
    if any((row is None) != (index in reasons) for index, row in enumerate(rows)):
        raise CorruptFile(f"{name} must have values for every point but those with a reason.")
    known = [row for row in rows if row is not None]
    # Where nothing could be concluded about any point, how many outputs there are is not known, either.
    found = reading.numbers(known, name, 2) if known else torch.zeros(0, 1, dtype=torch.float64)
    whole = torch.full((len(rows), *found.shape[1:]), UNKNOWN.get(name, torch.nan), dtype=torch.float64)
    whole[[index for index, row in enumerate(rows) if row is not None]] = found
    return whole
