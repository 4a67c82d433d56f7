"""Training curves as small drawings: what was measured of one run or several, epoch by epoch, as coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WIDTH, HEIGHT = 240.0, 80.0
"""Size of the plane that lines are drawn on."""

Metrics = Sequence[Mapping[str, float]]
Series = Sequence[tuple[float, float]]
"""Epochs, and a value of each."""


class Line(NamedTuple):
    """A stretch of finite values: the number of its run, and coordinates ``x,y x,y``."""

    run: int
    points: str


@dataclass(frozen=True)
class Curve:
    """A figure over epochs, of all runs on one scale.

    Attributes:
        name: of the figure.
        lines: what is drawn.
        low: smallest value.
        high: largest one.
        last: the last one of each run that has it; not finite where training left the finite numbers.
        first_epoch: where it begins.
        last_epoch: where it ends.
    """

    name: str
    lines: list[Line]
    low: float
    high: float
    last: list[float]
    first_epoch: float
    last_epoch: float


def curves_of(*runs: Metrics) -> list[Curve]:
    """Return a curve for every figure that runs have of their epochs; none where it never was finite."""
    names = dict.fromkeys(name for metrics in runs for record in metrics for name in record if name != "epoch")
    found = (_curve(name, [_series(metrics, name) for metrics in runs]) for name in names)
    return [curve for curve in found if curve is not None]


def _series(metrics: Metrics, name: str) -> Series:
    return [(record["epoch"], record[name]) for record in metrics if name in record]


def _curve(name: str, runs: Sequence[Series]) -> Curve | None:
    everything = [pair for series in runs for pair in series]
    finite = [value for _, value in everything if math.isfinite(value)]
    if not finite:
        return None
    epochs = [epoch for epoch, _ in everything]
    plane = min(finite), max(finite), min(epochs), max(epochs)
    lines = [Line(run, points) for run, series in enumerate(runs) for points in _stretches(series, *plane)]
    low, high, first, last = plane
    return Curve(name, lines, low, high, [series[-1][1] for series in runs if series], first, last)


def _stretches(series: Series, low: float, high: float, first: float, last: float) -> list[str]:
    """Return the coordinates of each stretch of finite values."""
    found: list[list[str]] = [[]]
    for epoch, value in series:
        if not math.isfinite(value):
            found.append([])
            continue
        across = (epoch - first) / ((last - first) or 1.0)
        # Halves before they are subtracted: the range of two floats may exceed the largest one.
        up = (value / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
        found[-1].append(f"{WIDTH * across:.1f},{HEIGHT * (1 - up):.1f}")
    # A single epoch is a point; a line of one point would not be seen.
    return [" ".join(points * 2 if len(points) == 1 else points) for points in found if points]
