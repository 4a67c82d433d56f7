"""What is known about a batch of points: the best bounds so far, for every network, point and rival class.

A state is never changed; every stage returns a new one. Wherever it stops, what was found up to there is in it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from certibayes.certification._pairs import NO_PAIRS, Pairs
from certibayes.certification.network_bounds import are_finite
from certibayes.certification.problem import Problem
from certibayes.certification.rules import elided_values, mean_probability_bounds, pairwise_values

EVERY = slice(None)
"""All points, which are not copied then."""


@dataclass(frozen=True)
class State:
    """What is known about B points of N networks with C classes; bounds are float64.

    Attributes:
        labels: (B,).
        threshold: see ``Problem``.
        lower: lower bounds on logits, (N, B, C); -inf where nothing is known.
        upper: upper bounds; inf where nothing is known.
        margins: lower bounds on z_y - z_c, (N, B, C).
        upper_margins: upper bounds on them.
        values: lower bounds on softmax_y - softmax_c of every network, (N, B, C); inf for the label itself.
        joint: lower bounds on their mean over networks, for one input of all of them, (B, C).
        predicted: classes of the points themselves, (B,); their labels until ``with_predictions``.
        broken: where an input was found that is not classified as the label, (B,).
        counterexamples: those inputs, and elsewhere the points, (B, ...).
        unbounded: where bounds came out infinite or NaN, so that nothing can be proved, (B,).
        pairs: what is known of single pairs of point and rival beyond bounds: linear functions, worst inputs, trees.
    """

    labels: Tensor
    threshold: float
    lower: Tensor
    upper: Tensor
    margins: Tensor
    upper_margins: Tensor
    values: Tensor
    joint: Tensor
    predicted: Tensor
    broken: Tensor
    counterexamples: Tensor
    unbounded: Tensor
    pairs: Pairs = NO_PAIRS

    @staticmethod
    def start(problem: Problem) -> State:
        """Know nothing but which points are misclassified already, if their classes are known."""
        shape = (problem.predictor.size, len(problem), problem.predictor.classes)
        infinity = torch.tensor(torch.inf, dtype=torch.float64, device=problem.labels.device)
        # One number, seen as many: what is not known takes no memory.
        nothing, anything = (-infinity).expand(shape), infinity.expand(shape)
        is_label = problem.labels[:, None] == torch.arange(shape[-1], device=problem.labels.device)
        differences = torch.where(is_label, infinity, -infinity)
        predicted = problem.labels if problem.predicted is None else problem.predicted
        broken = predicted != problem.labels
        return State(
            labels=problem.labels,
            threshold=problem.threshold,
            lower=nothing,
            upper=anything,
            margins=nothing,
            upper_margins=anything,
            values=differences.expand(shape),
            joint=differences,
            predicted=predicted,
            broken=broken,
            counterexamples=problem.x,
            unbounded=torch.zeros_like(broken),
        )

    # What follows from it

    @property
    def differences(self) -> Tensor:
        """Lower bounds on the mean of softmax_y - softmax_c over networks, (B, C)."""
        return torch.maximum(self.values.mean(0), self.joint)

    @property
    def closed(self) -> Tensor:
        """Points about which nothing can be proved, (B,)."""
        return self.broken | self.unbounded

    @property
    def open(self) -> Tensor:
        """Which rivals stand between a point and its certificate, (B, C); closed points have none."""
        return (self.differences <= self.threshold) & ~self.closed[:, None]

    @property
    def proved(self) -> Tensor:
        """Points whose label is proved, (B,)."""
        return (self.differences > self.threshold).all(-1) & ~self.closed

    @property
    def every_rival(self) -> Tensor:
        """All rivals of points that have an open one, (B, C)."""
        is_rival = self.labels[:, None] != torch.arange(self.joint.shape[-1], device=self.labels.device)
        return is_rival & self.open.any(-1, keepdim=True)

    @cached_property
    def probabilities(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds on the mean probability of every class, (B, C); 0 and 1 where nothing is known."""
        unknown = self.unbounded[:, None]
        # Where nothing is known they are NaN.
        lowest, highest = mean_probability_bounds(self.lower, self.upper)
        return lowest.masked_fill(unknown, 0.0), highest.masked_fill(unknown, 1.0)

    # What is learned

    def with_logits(self, points: Tensor | slice, lower: Tensor, upper: Tensor) -> State:
        """Record bounds on the logits of some points, (N, P, C) each, and nothing that follows from them."""
        # Where a tighter method overflows, what was known before still holds.
        lower = torch.maximum(self.lower[:, points], lower)
        upper = torch.minimum(self.upper[:, points], upper)
        known = are_finite(lower, upper).all(0)
        return replace(
            self,
            lower=_replaced(self.lower, 1, points, lower),
            upper=_replaced(self.upper, 1, points, upper),
            unbounded=_replaced(self.unbounded, 0, points, ~known),
        )

    def with_values_of_logits(self, points: Tensor | slice) -> State:
        """Draw from the logits of some points what they say about margins and probabilities of each network."""
        if bool(self.unbounded[points].any()):
            every = torch.arange(len(self.labels), device=self.labels.device)
            points = every[points][~self.unbounded[points]]
        lower, upper, labels = self.lower[:, points], self.upper[:, points], self.labels[points]
        own, infinity = labels.expand(len(upper), -1)[..., None], torch.full_like(upper, torch.inf)
        # Rounded outwards once more, for the subtraction.
        above = torch.nextafter(upper.gather(-1, own) - lower, infinity)
        below = torch.nextafter(lower.gather(-1, own) - upper, -infinity)
        found = pairwise_values(lower, upper, labels)
        return replace(
            self,
            margins=_raised(self.margins, points, below),
            upper_margins=-_raised(-self.upper_margins, points, -above),
            values=_raised(self.values, points, found),
        )

    def with_margins(self, points: Tensor, margins: Tensor) -> State:
        """Record lower bounds on all margins of some points, (N, P, C), and what they say about probabilities."""
        margins = torch.maximum(self.margins[:, points], margins)
        found = elided_values(margins, self.upper_margins[:, points], self.labels[points])
        return replace(
            self,
            margins=self.margins.index_copy(1, points, margins),
            values=_raised(self.values, points, found),
        )

    def with_differences(self, points: Tensor | slice, bounds: Tensor) -> State:
        """Record lower bounds on the mean differences of some points, (P, C)."""
        joint = torch.maximum(self.joint[points], bounds.masked_fill(self.unbounded[points][:, None], -torch.inf))
        return self._same_logits(joint=_replaced(self.joint, 0, points, joint))

    def with_joint(self, points: Tensor, rivals: Tensor, bounds: Tensor) -> State:
        """Record lower bounds on mean differences for pairs of point and rival, (P,) each, none twice."""
        # What is no number says nothing.
        bounds = torch.where(torch.isfinite(bounds), bounds, -torch.inf)
        joint = self.joint.clone()
        joint[points, rivals] = torch.maximum(joint[points, rivals], bounds)
        return replace(self, joint=joint)

    def with_predictions(self, problem: Problem) -> State:
        """Record the classes of the points themselves, if they are not known, and which are misclassified.

        Where a label is proved for the float program it is the point's class, and nothing needs to be computed.
        """
        if problem.predicted is not None:
            return self
        unknown = ~self.proved if problem.arithmetic.outward else torch.ones_like(self.broken)
        points = unknown.nonzero().squeeze(-1)
        if len(points) == 0:
            return self
        predicted = self.predicted.index_copy(0, points, problem.predictor.predict(problem.x[points], len(points)))
        return self._same_logits(predicted=predicted, broken=self.broken | (predicted != self.labels))

    def with_inputs(self, problem: Problem, points: Tensor, inputs: Tensor) -> State:
        """Let the predictor decide inputs (P, ...) that may be counterexamples, brought into the region first."""
        if len(points) == 0:
            return self
        inside = problem.region.take(points).project(inputs)
        found = problem.predictor.predict(inside) != self.labels[points]
        broken, counterexamples = self.broken.clone(), self.counterexamples.clone()
        broken[points[found]] = True
        counterexamples[points[found]] = inside[found]
        return replace(self, broken=broken, counterexamples=counterexamples)

    def _same_logits(self, **changes: Any) -> State:
        """Return the state with other things changed; probabilities are carried over if they are known.

        To bound softmax again would take longer than everything else that is done to the logits.
        """
        state = replace(self, **changes)
        if "probabilities" in self.__dict__:
            state.__dict__["probabilities"] = self.probabilities
        return state

    # Parts

    def take(self, points: Tensor) -> State:
        """Return what is known of some of the points; pairs are not taken along."""
        parts = {name: getattr(self, name)[:, points] for name in _BY_NETWORK}
        parts |= {name: getattr(self, name)[points] for name in _BY_POINT}
        return replace(self, **parts, pairs=NO_PAIRS)

    def put(self, points: Tensor, part: State) -> State:
        """Return the state with what is known of some of the points replaced."""
        parts = {name: getattr(self, name).index_copy(1, points, getattr(part, name)) for name in _BY_NETWORK}
        parts |= {name: getattr(self, name).index_copy(0, points, getattr(part, name)) for name in _BY_POINT}
        return replace(self, **parts)


_BY_NETWORK = ("lower", "upper", "margins", "upper_margins", "values")
_BY_POINT = tuple(field.name for field in fields(State) if field.name not in (*_BY_NETWORK, "threshold", "pairs"))


def points_of(wanted: Tensor) -> Tensor:
    """Return the points that have any wanted rival, (B, C) -> (P,)."""
    return wanted.any(-1).nonzero().squeeze(-1)


def _replaced(known: Tensor, dim: int, points: Tensor | slice, found: Tensor) -> Tensor:
    """Return what is known with that of some points replaced, or, by ``EVERY``, of all of them."""
    return found if isinstance(points, slice) else known.index_copy(dim, points, found)


def _raised(known: Tensor, points: Tensor | slice, found: Tensor) -> Tensor:
    """Return bounds (N, B, C) with the better of two for some points."""
    return _replaced(known, 1, points, torch.maximum(known[:, points], found))
