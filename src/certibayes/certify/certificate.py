"""Certificates: what was proved about which points, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from certibayes._version import __version__
from certibayes.bounds import Domain

DISTANCES = {"linf": "l-infinity", "l2": "l2", "l1": "l1"}
"""The norms in words."""


def bounds_in_words(bounds: str, intermediates: str) -> str:
    """Say how networks were bounded, and the layers in between if not by intervals."""
    return f"{bounds} bounds" if intermediates == "ibp" else f"{bounds} bounds with {intermediates} intermediates"


@dataclass(frozen=True)
class Certificate:
    """What was proved for a batch of points.

    Attributes:
        labels: the class in question for each point, (B,).
        predicted: the class the predictor gives the point itself, (B,).
        certified: where it is proved that every input in the ball is classified as its label, (B,). It implies
            that the point itself is.
        lower: lower bounds on every class probability over the ball, float64 (B, C).
        upper: upper bounds, float64 (B, C).
        eps: radius, or a tensor of radii for each point or input value.
        domain: inputs are known to lie in it; None for all of space.
        bounds: how networks were bounded.
        rule: how the bounds of N networks were combined.
        rounding: ``"outward"`` if the proof holds for the float program, ``"ideal"`` if for exact arithmetic only.
        samples: number N of weight samples of the predictor.
        dtype: precision of the predictor.
        digest: SHA-256 of the predictor.
        inputs_digest: SHA-256 of the points, as ``tensor_digest({"inputs": x})`` computes it.
        version: of certibayes.
        attacked: where an input in the ball was found that is not classified as the label, (B,); None where none was
            looked for.
        counterexamples: those inputs, (B, ...); elsewhere the points themselves.
        norm: of the distance from the point: ``"linf"``, ``"l2"`` or ``"l1"``.
        intermediates: what linear bounds knew of the layers in between: ``"ibp"`` for intervals, or ``"crown"``.
        spent: seconds of the budget that attacks and splitting took; None where there was no budget.
    """

    labels: Tensor
    predicted: Tensor
    certified: Tensor
    lower: Tensor
    upper: Tensor
    eps: float | Tensor
    domain: Domain
    bounds: str
    rule: str
    rounding: str
    samples: int
    dtype: str
    digest: str
    inputs_digest: str
    version: str = __version__
    attacked: Tensor | None = None
    counterexamples: Tensor | None = None
    norm: str = "linf"
    intermediates: str = "ibp"
    spent: float | None = None

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
    def accuracy(self) -> float:
        """Fraction of points that are predicted as their label."""
        return float((self.predicted == self.labels).double().mean()) if len(self) else 0.0

    @property
    def statement(self) -> str:
        """What was proved, in words."""
        where = "" if self.domain is None else f" with values in [{self.domain[0]:g}, {self.domain[1]:g}]"
        program = (
            f"the {self.dtype} program that evaluates it by direct sums (no TF32, no autocast), in any batch size "
            "and on any number of threads"
            if self.rounding == "outward"
            else "the predictor in exact arithmetic; rounding of the program that runs is not accounted for"
        )
        return (
            f"For each point marked certified, every input{where} within {DISTANCES[self.norm]} distance "
            f"{self._radius} of it is classified as the point's label by the mean prediction of the {self.samples} "
            f"fixed weight sample{'s' if self.samples != 1 else ''} with digest sha256:{self.digest[:16]}. "
            f"For every point, marked or not, all class probabilities (predictor.probabilities) over that ball lie "
            "between lower and upper. "
            f"Proved by {bounds_in_words(self.bounds, self.intermediates)} and the rule {self.rule}, for {program}. "
            "Nothing is said about other weight samples, other radii or other kinds of change."
        )

    @property
    def _radius(self) -> str:
        """The radius in words."""
        if not isinstance(self.eps, Tensor):
            return repr(self.eps)
        if self.eps.numel() == 0:
            return "given"
        span = f"(from {float(self.eps.min())!r} to {float(self.eps.max())!r})"
        if self.eps.dim() == 1 and len(self.eps) == len(self):
            return f"of the radius given for that point {span}"
        return f"of the radius given for each input value {span}"

    def __repr__(self) -> str:
        count = int(self.certified.sum())
        radius = f"{self.eps:g}" if not isinstance(self.eps, Tensor) else "radii given"
        norm = "" if self.norm == "linf" else f" in {self.norm}"
        return (
            f"Certificate({count} of {len(self)} points certified at eps={radius}{norm}, {self.bounds}, {self.rule}, "
            f"{self.rounding})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings."""
        return {
            "statement": self.statement,
            "eps": self.eps.tolist() if isinstance(self.eps, Tensor) else self.eps,
            "norm": self.norm,
            "domain": None if self.domain is None else list(self.domain),
            "bounds": self.bounds,
            "intermediates": self.intermediates,
            "rule": self.rule,
            "rounding": self.rounding,
            "samples": self.samples,
            "dtype": self.dtype,
            "digest": self.digest,
            "inputs_digest": self.inputs_digest,
            "version": self.version,
            "labels": self.labels.tolist(),
            "predicted": self.predicted.tolist(),
            "certified": self.certified.tolist(),
            **({} if self.attacked is None else {"attacked": self.attacked.tolist()}),
            "lower": self.lower.tolist(),
            "upper": self.upper.tolist(),
        }
