"""How far proofs reach: the record of ``certified_radius``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from certibayes.certificates import reading
from certibayes.certificates._names import NORMS, ROUNDINGS
from certibayes.certificates.provenance import Provenance
from certibayes.certificates.result import Proved, require_same_words
from certibayes.certificates.showing import PROVED
from certibayes.certificates.words import domain_in_words, origin_in_words, proof_in_words, samples_in_words
from certibayes.errors import CorruptFile
from certibayes.regions import Domain

SETTINGS = ("bounds", "method", "intermediates")
PLAIN = ("radius", "certified", "correct", "labels", "largest", "tolerance", "norm", "rounding")
KEYS = ("kind", "statement", *PLAIN, "unproved", "domain", "provenance")
SCALE = "scale"
"""A key that only those records have whose radii are multiples of something."""


@dataclass(frozen=True, eq=False)
class Radius(Proved):
    """How far the proof reaches for a batch of points.

    Attributes:
        radius: largest radius that was proved, float64 (B,); 0 where none was.
        unproved: smallest radius that was tried and not proved, (B,); infinite where ``largest`` was proved.
        certified: where the label is proved at ``radius``, (B,). A point of radius 0 may be certified: then its own
            class was proved, but no radius beyond 0 that was tried.
        correct: where the point itself is classified as its label, (B,).
        labels: (B,).
        largest: largest radius that was tried.
        tolerance: ``unproved - radius`` is at most this, except where ``largest`` was proved or radius 0 was not.
        domain: as in a certificate.
        rounding: as in a certificate.
        provenance: predictor, points and settings.
        norm: in which radii are measured: ``"linf"``, ``"l2"`` or ``"l1"``.
        scale: what radii are multiples of, for each input value, (1, *shape); None where they are in the units of the
            inputs.
    """

    kind: ClassVar[str] = "radius"
    table: ClassVar[dict[str, str]] = {
        "label": "labels", "correct": "correct", "certified": "certified", "radius": "radius", "unproved": "unproved",
    }  # fmt: skip

    radius: Tensor
    unproved: Tensor
    certified: Tensor
    correct: Tensor
    labels: Tensor
    largest: float
    tolerance: float
    domain: Domain
    rounding: str
    provenance: Provenance
    norm: str = "linf"
    scale: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.radius)

    @property
    def mean(self) -> float:
        """Mean radius over all points; those without a proof count as 0."""
        return float(self.radius.mean()) if len(self) else 0.0

    @property
    def median(self) -> float:
        """Median radius over all points; the smaller of the middle two."""
        return float(self.radius.median()) if len(self) else 0.0

    def certified_at(self, eps: float) -> float:
        """Fraction of all points that are certified at ``eps``: a ball that is proved proves every ball inside it."""
        return float((self.certified & (self.radius >= eps)).double().mean()) if len(self) else 0.0

    @property
    def statement(self) -> str:
        """What was proved, in words built from this record alone."""
        return (
            f"For each point marked certified ({int(self.certified.sum())} of {len(self)}), every input"
            f"{domain_in_words(self.domain)} within {self._distance} of it is classified as the "
            f"point's label by the mean prediction of {samples_in_words(self.provenance)}. "
            f"Radii up to {self.largest!r} were tried in steps of at most {self.tolerance!r}; a larger one than stated "
            f"may hold as well. Proved {proof_in_words(self.provenance, self.rounding)}. "
            f"Nothing is said about other weight samples or other kinds of change. {origin_in_words(self.provenance)}"
        )

    @property
    def _distance(self) -> str:
        if self.scale is None:
            return f"{NORMS[self.norm]} distance radius"
        return (
            "a distance of radius times the scale given for each input value "
            f"(from {float(self.scale.min())!r} to {float(self.scale.max())!r}, 0 for what does not change)"
        )

    def __repr__(self) -> str:
        norm = "" if self.norm == "linf" else f" in {self.norm}"
        return (
            f"Radius(mean {self.mean:.4g}, median {self.median:.4g}{norm} over {len(self)} points, "
            f"{int(self.certified.sum())} of them certified, {self.bounds}, {self.method}, {self.rounding})"
        )

    def _draw(self, axes: Any) -> None:
        """Show which fraction of all points is certified at each radius."""
        radii = sorted({0.0, self.largest, *self.radius.tolist()})
        axes.step(radii, [self.certified_at(eps) for eps in radii], where="pre", color=PROVED)
        axes.set_xlim(0.0, self.largest)
        axes.set_ylim(0.0, 1.02)
        axes.set_xlabel("radius" if self.scale is None else "radius, in multiples of the scale")
        axes.set_ylabel("certified fraction")

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings; an infinite radius as null."""
        return {
            "kind": self.kind,
            "statement": self.statement,
            **{name: reading.plain(getattr(self, name)) for name in PLAIN},
            "unproved": [None if value == torch.inf else value for value in self.unproved.tolist()],
            "domain": reading.plain_domain(self.domain),
            "provenance": self.provenance.to_json(),
            **({} if self.scale is None else {SCALE: self.scale.tolist()}),
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> Radius:
        """Read ``to_json``'s answer.

        Raises:
            CorruptFile: it is incomplete, its parts do not match, or its words are not those of the record.
        """
        scaled = isinstance(record, dict) and SCALE in record
        reading.require_keys(record, (*KEYS, SCALE) if scaled else KEYS, "this record of radii")
        reading.choice(record["kind"], (Radius.kind,), "the kind")
        if not isinstance(record["unproved"], list):
            raise CorruptFile("unproved must be a list of radii.")
        radius = reading.numbers(record["radius"], "radius", 1)
        known = reading.numbers([-1.0 if value is None else value for value in record["unproved"]], "unproved", 1)
        result = Radius(
            radius=radius,
            unproved=torch.where(known == -1.0, torch.inf, known),
            certified=reading.truths(record["certified"], "certified"),
            correct=reading.truths(record["correct"], "correct"),
            labels=reading.whole_numbers(record["labels"], "labels"),
            largest=reading.number(record["largest"], "largest"),
            tolerance=reading.number(record["tolerance"], "tolerance"),
            domain=reading.domain(record["domain"], len(radius)),
            rounding=reading.choice(record["rounding"], ROUNDINGS, "rounding"),
            provenance=Provenance.from_json(record["provenance"], SETTINGS),
            norm=reading.choice(record["norm"], NORMS, "norm"),
            scale=reading.numbers(record[SCALE], SCALE) if scaled else None,
        )
        if result.scale is not None and not (
            result.norm == "linf"
            and result.scale.dim() > 1
            and len(result.scale) == 1
            and bool((result.scale >= 0).all())
        ):
            raise CorruptFile("scale must hold a number >= 0 for each input value, (1, ...), and is for the norm linf.")
        parts = (result.unproved, result.certified, result.correct, result.labels)
        if any(part.shape != radius.shape for part in parts):
            raise CorruptFile("this record's parts are not all about the same points.")
        proved = result.correct & (result.unproved >= radius) & (radius >= 0) & (radius <= result.largest)
        if bool((result.certified & ~proved).any() or (~result.certified & (radius != 0)).any()):
            raise CorruptFile("this record contradicts itself: a radius is not one that can have been proved.")
        require_same_words(record, result)
        return result
