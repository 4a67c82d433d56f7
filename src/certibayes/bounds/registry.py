"""Which rules are known for which operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from certibayes.bounds._backward import Backward, Step
from certibayes.bounds._pullback import TrainingRule
from certibayes.bounds.rounding import Rounding
from certibayes.errors import UnsupportedLayer
from certibayes.networks import Operation
from certibayes.networks.operations import Weights
from certibayes.regions import Box

IntervalRule = Callable[[Any, Weights, tuple[Box, ...], Rounding], Box]
"""(operation, weights by role, boxes of the inputs, rounding) -> box of the output."""

LinearRule = Callable[[Any, Weights, Step], Backward]
"""(operation, weights by role, coefficients on the output and the boxes around it) -> coefficients on the inputs."""


@dataclass(frozen=True)
class Rules:
    """How one operation is bounded.

    Attributes:
        interval: box in, box out.
        description: a few words for the table of supported layers.
        linear: coefficients on the output in, coefficients on the inputs out; None for interval bounds only.
        reuses: whether the linear rule respects ``Step.owned`` and sets ``Backward.owned``; other rules are never given
            coefficients that they may overwrite, and theirs are never overwritten.
        separable: whether the interval rule treats center and radius apart in ideal arithmetic, as affine layers do, so
            that centers may come with more rows than radii; see ``point_and_box``.
        training: the interval rule in ideal arithmetic with its derivatives; None to let torch differentiate it.
        keeps_range: whether the output's box is far from overflow and not inverted wherever the input's is, so that it
            need not be looked at.
        radius_tells: whether the radius of the output may tell that all of it is far from overflow and not inverted, as
            in affine layers; see ``rounding.radius_within_range``.
    """

    interval: IntervalRule
    description: str = ""
    linear: LinearRule | None = None
    reuses: bool = False
    separable: bool = False
    training: TrainingRule | None = None
    keeps_range: bool = False
    radius_tells: bool = False


_rules: dict[type[Operation], Rules] = {}


def register(  # noqa: PLR0913 - public
    operation: type[Operation],
    interval: IntervalRule,
    description: str = "",
    linear: LinearRule | None = None,
    reuses: bool = False,
    separable: bool = False,
    training: TrainingRule | None = None,
    keeps_range: bool = False,
    radius_tells: bool = False,
) -> None:
    """Give an operation its rules, see ``Rules``; a later registration of the same operation wins."""
    _rules[operation] = Rules(interval, description, linear, reuses, separable, training, keeps_range, radius_tells)


def rules_for(operation: Operation) -> Rules:
    """Return the rules of an operation, or raise an error that says what is known and what to do."""
    if type(operation) not in _rules:
        known = ", ".join(sorted(kind.__name__ for kind in _rules))
        raise UnsupportedLayer(
            f"the operation {type(operation).__name__} has no bounds. Known: {known}. "
            "Add yours with certibayes.bounds.register; CONTRIBUTING.md has a skeleton to copy."
        )
    return _rules[type(operation)]


def registered() -> dict[type[Operation], Rules]:
    """Return every operation that can be bounded, with its rules."""
    return dict(_rules)
