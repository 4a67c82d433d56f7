"""A trial: how networks were drawn and bounded, and what confidence that gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from certibayes.certificates import Provenance, reading
from certibayes.certificates.result import Traced
from certibayes.certificates.words import ball_in_words, briefly, proof_in_words
from certibayes.regions import Domain
from certibayes.statistical.concentration import failure_per_statement


@dataclass(frozen=True)
class Trial(Traced):
    """How networks were drawn and bounded, and what confidence that gives.

    Attributes:
        posterior: kind of the posterior.
        confidence: probability, over the draws, that what is stated holds.
        inequality: from which it follows.
        joint: whether it holds for all points jointly, or for each by itself.
        points: number of points.
        eps: radius, or radii, as in a certificate.
        norm: of the distance from a point: ``"linf"``, ``"l2"`` or ``"l1"``.
        domain: as in a certificate.
        rounding: ``"outward"`` if bounds hold for the float program, ``"ideal"`` if for exact arithmetic only.
        provenance: the posterior's digest, number n and seed of the independent draws, the points, and how networks
            were bounded.
    """

    posterior: str
    confidence: float
    inequality: str
    joint: bool
    points: int
    eps: float | Tensor
    norm: str
    domain: Domain
    rounding: str
    provenance: Provenance

    def failure(self, statements: int) -> float:
        """Return the probability with which each of ``statements`` one-sided bounds of a point may fail."""
        return failure_per_statement(self.confidence, statements, self.points if self.joint else 1)

    @property
    def briefly(self) -> str:
        """Draws, confidence and ball in a few words, for a repr."""
        scope = "for all points jointly" if self.joint else "for each point"
        return (
            f"{self.samples} draws, confidence {self.confidence:g} {scope}, {briefly(self.eps, self.norm)}, "
            f"{self.bounds}, {self.inequality}, {self.rounding}"
        )

    def __repr__(self) -> str:
        return f"Trial({self.posterior} posterior, {self.points} points, {self.briefly})"

    @property
    def confidence_in_words(self) -> str:
        """Over what the confidence is, and for how many points at once."""
        scope = f"jointly for all {self.points} points" if self.joint else "for each point by itself"
        return (
            f"With confidence {self.confidence!r}, {scope}, over {self.samples} independent draws from the "
            f"{self.posterior} posterior with digest sha256:{self.digest[:16]} (seed {self.seed}, which must not have "
            "been chosen by its outcome)"
        )

    @property
    def ball_in_words(self) -> str:
        """Which inputs are meant."""
        return ball_in_words(self.eps, self.norm, self.domain)

    @property
    def proof_in_words(self) -> str:
        """How a single network was bounded."""
        return proof_in_words(self.provenance, self.rounding)

    @property
    def origin_in_words(self) -> str:
        """What made it, and where."""
        return f"Made by certibayes {self.version} on {self.device}."

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings."""
        values = {name: reading.plain(value) for name, value in vars(self).items() if name != "provenance"}
        return {**values, "domain": reading.plain_domain(self.domain), "provenance": self.provenance.to_json()}
