"""What a stored certificate claims, as the independent checker reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from certibayes.certify.arithmetic import Array, Program
from certibayes.errors import CorruptFile

FLOATS: dict[str, type[np.floating[Any]]] = {"float32": np.float32, "float64": np.float64}


@dataclass(frozen=True)
class Claim:
    """What a certificate claims, read from its file.

    Attributes:
        digest: SHA-256 of the predictor.
        inputs_digest: SHA-256 of the points.
        samples: number of weight samples.
        dtype: precision of the predictor.
        rounding: ``"outward"`` or ``"ideal"``.
        eps: radius, a number, one for each point, or an array that broadcasts to the points.
        domain: values that inputs can take.
        labels: (B,).
        predicted: (B,).
        certified: (B,).
        lower: (B, C).
        upper: (B, C).
        norm: of the distance from a point; certificates that do not name one mean l-infinity.
    """

    digest: str
    inputs_digest: str
    samples: int
    dtype: str
    rounding: str
    eps: Array
    domain: tuple[float, float] | None
    labels: Any
    predicted: Any
    certified: Any
    lower: Array
    upper: Array
    norm: str = "linf"

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Claim:
        """Read ``Certificate.to_json``'s answer.

        Raises:
            CorruptFile: it is incomplete, or its parts do not fit together.
        """
        try:
            domain = record["domain"]
            claim = Claim(
                digest=str(record["digest"]),
                inputs_digest=str(record["inputs_digest"]),
                samples=int(record["samples"]),
                dtype=str(record["dtype"]),
                rounding=str(record["rounding"]),
                eps=np.asarray(record["eps"], dtype=np.float64),
                domain=None if domain is None else (float(domain[0]), float(domain[1])),
                labels=_integers(record["labels"]),
                predicted=_integers(record["predicted"]),
                certified=_truths(record["certified"]),
                lower=np.asarray(record["lower"], dtype=np.float64),
                upper=np.asarray(record["upper"], dtype=np.float64),
                norm=str(record.get("norm", "linf")),
            )
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise CorruptFile(f"this is not a certificate, or it is incomplete ({error!r}).") from error
        count = len(claim.labels)
        sound = (
            claim.norm in ("linf", "l2", "l1")
            and claim.rounding in ("outward", "ideal")
            and claim.dtype in FLOATS
            and claim.predicted.shape == claim.certified.shape == (count,)
            and claim.lower.shape == claim.upper.shape
            and len(claim.lower) == count
            and all(bool(np.isfinite(part).all()) for part in (claim.lower, claim.upper, claim.eps))
            and bool((claim.eps >= 0).all())
            and (claim.domain is None or claim.domain[0] < claim.domain[1])
        )
        if not sound:
            raise CorruptFile("this certificate's parts do not fit together, so it claims nothing that can be checked.")
        return claim

    @property
    def program(self) -> Program:
        """The arithmetic that the claim is about."""
        if self.rounding == "ideal":
            return Program(0.0, float(np.finfo(np.float64).tiny))
        return self.float_program

    @property
    def float_program(self) -> Program:
        """The arithmetic in which the predictor runs."""
        info = np.finfo(FLOATS[self.dtype])
        return Program(float(info.eps) / 2, float(info.tiny))


def read_certificate(path: Path) -> dict[str, Any]:
    """Read a certificate's JSON; ``path`` may be the directory that holds ``certificate.json``."""
    file = path / "certificate.json" if path.is_dir() else path
    try:
        record = json.loads(file.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no certificate at {file}.") from None
    except ValueError as error:
        raise CorruptFile(f"{file} is not valid JSON ({error}).") from error
    if not isinstance(record, dict):
        raise CorruptFile(f"{file} does not hold a certificate.")
    return record


def _integers(values: Any) -> Any:
    found = np.asarray(values, dtype=np.int64)
    if found.ndim != 1 or not np.array_equal(found, np.asarray(values)):
        raise ValueError("classes must be whole numbers")
    return found


def _truths(values: Any) -> Any:
    if not all(isinstance(value, bool) for value in values):
        raise ValueError("certified must be true or false")
    return np.asarray(values, dtype=bool)
