"""What a stored certificate claims, as the independent checker reads it: numpy arrays and plain settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from certibayes.certificates import Certificate
from certibayes.checker._arithmetic import Array, Program

FLOATS: dict[str, type[np.floating[Any]]] = {"float32": np.float32, "float64": np.float64}


@dataclass(frozen=True)
class Claim:
    """What a certificate claims.

    Attributes:
        certificate: the record, for its words.
        rounding: ``"outward"`` or ``"ideal"``.
        dtype: precision of the predictor.
        norm: of the distance from a point.
        eps: radius (), radii of points (B,), or of input values (1, ...) or (B, ...).
        domain: ends of the values that inputs can take, () or shaped like ``eps``.
        labels: (B,).
        predicted: (B,).
        certified: (B,).
        attacked: (B,); nowhere, if nothing was attacked.
        counterexamples: (B, ...), NaN where there is none.
        lower: (B, C).
        upper: (B, C).
    """

    certificate: Certificate
    rounding: str
    dtype: str
    norm: str
    eps: Array
    domain: tuple[Array, Array]
    labels: Any
    predicted: Any
    certified: Any
    attacked: Any
    counterexamples: Array
    lower: Array
    upper: Array

    @staticmethod
    def of(certificate: Certificate) -> Claim:
        """Take a certificate apart."""
        c = certificate
        nowhere = np.zeros(len(c), dtype=bool)
        low, high = (-np.inf, np.inf) if c.domain is None else c.domain
        return Claim(
            certificate=c,
            rounding=c.rounding,
            dtype=c.dtype,
            norm=c.norm,
            eps=_array(c.eps),
            domain=(_array(low), _array(high)),
            labels=c.labels.cpu().numpy(),
            predicted=c.predicted.cpu().numpy(),
            certified=c.certified.cpu().numpy(),
            attacked=nowhere if c.attacked is None else c.attacked.cpu().numpy(),
            counterexamples=_array(0.0 if c.counterexamples is None else c.counterexamples),
            lower=_array(c.lower),
            upper=_array(c.upper),
        )

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


def _array(value: float | Tensor) -> Array:
    given = value.detach().cpu().double().numpy() if isinstance(value, Tensor) else value
    return np.asarray(given, dtype=np.float64)
