"""What is asked about a batch of points, how, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from certibayes.bounds import Box
from certibayes.certify.rules import Means
from certibayes.prediction import Predictor
from certibayes.regions import InputRegion


class Points(NamedTuple):
    """A batch of points.

    Attributes:
        region: what is asked about: the inputs around each point as the predictor reads it, (B, ...).
        labels: (B,).
        predicted: the classes that the points themselves are given, (B,).
        box: holds every input of the region, also as floats round it.
    """

    region: InputRegion
    labels: Tensor
    predicted: Tensor
    box: Box

    @property
    def x(self) -> Tensor:
        """The points themselves, (B, ...)."""
        return self.region.center

    def take(self, which: Tensor) -> Points:
        """Return some of the points."""
        region, labels, predicted, box = self
        return Points(region.take(which), labels[which], predicted[which], box.take(which))


class Verdict(NamedTuple):
    """What was found about a batch.

    Attributes:
        margin: proves a point where it exceeds 2 slack, (B,).
        means: bounds on the mean probability of every class, (B, C) each.
        attacked: where an input was found that is not classified as the label, (B,).
        inputs: those inputs, and elsewhere the points, (B, ...).
        spent: seconds that attacks and splitting took.
    """

    margin: Tensor
    means: Means
    attacked: Tensor
    inputs: Tensor
    spent: float = 0.0


@dataclass(frozen=True)
class Settings:
    """How points are judged.

    Attributes:
        predictor: N networks.
        bounds: how they are bounded; for the rule ``best``, the tightest that may be tried.
        rule: how their bounds are combined.
        rounding: ``"outward"`` or ``"ideal"``.
        slack: what rounding of the predictor's last step can take back, half of it.
        memory: bytes for linear bounds.
        intermediates: what linear bounds know of the layers in between, ``"ibp"`` or ``"crown"``.
    """

    predictor: Predictor
    bounds: str
    rule: str
    rounding: str
    slack: float
    memory: int
    intermediates: str = "ibp"
