"""Judging a batch of points: bounds, then a rule; for the rule ``best``, cheap means first and costly ones last."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.attack.pgd import PGDSettings, pgd
from certibayes.bounds import Box, Domain, ball
from certibayes.bounds.norms import into_ball
from certibayes.certify.network_bounds import BOUNDS, batch_for, logit_bounds, margin_bounds
from certibayes.certify.refine import WANTED, refine
from certibayes.certify.rules import (
    MARGIN_RULES,
    RULES,
    Means,
    elided_values,
    margin_of,
    mean_probability_bounds,
    pairwise_values,
)
from certibayes.prediction import Predictor

ALL_RULES = (*RULES, *MARGIN_RULES)

ATTACK = PGDSettings(steps=40, restarts=2)


class Points(NamedTuple):
    """A batch: inputs (B, ...), labels and predicted classes (B,), radii that broadcast, and boxes around the balls."""

    x: Tensor
    labels: Tensor
    predicted: Tensor
    radius: Tensor
    box: Box


class Verdict(NamedTuple):
    """What was found about a batch.

    Attributes:
        margin: proves a point where it exceeds 2 slack, (B,).
        means: bounds on the mean probability of every class, (B, C) each.
        attacked: where an input was found that is not classified as the label, (B,).
        inputs: those inputs, and elsewhere the points, (B, ...).
    """

    margin: Tensor
    means: Means
    attacked: Tensor
    inputs: Tensor


@dataclass(frozen=True)
class Judge:
    """Judges batches by the bounds and the rule that were asked for.

    Attributes:
        predictor: N networks.
        bounds: how they are bounded; for the rule ``best``, the tightest that may be tried.
        rule: how their bounds are combined.
        rounding: ``"outward"`` or ``"ideal"``.
        slack: what rounding of the predictor's last step can take back, half of it.
        memory: bytes for linear bounds.
        domain: of the inputs.
    """

    predictor: Predictor
    bounds: str
    rule: str
    rounding: str
    slack: float
    memory: int
    domain: Domain

    def __call__(self, points: Points, until: float | None = None) -> Verdict:
        """Judge a batch; attacks and splitting go on ``until`` then, as ``time.monotonic`` tells it."""
        attacked = points.predicted != points.labels
        in_rule = self.bounds if self.rule in RULES else "ibp"
        lower, upper = logit_bounds(self.predictor, points.box, self.rounding, in_rule)
        means = mean_probability_bounds(lower, upper)
        if self.rule in RULES:
            margin = RULES[self.rule](lower, upper, points.labels, means)
            return Verdict(margin, means, attacked, points.x)
        batch = _Batch(self, points, lower, upper)
        if self.rule == "elided":
            batch.tighten(self.bounds, torch.isfinite(batch.values[0]))
            return Verdict(margin_of(batch.values), means, attacked, points.x)
        for method in BOUNDS[: BOUNDS.index(self.bounds) + 1]:
            batch.tighten(method, batch.open)
            if method != "alpha-crown":
                # The margins of the other rivals matter as well, less; too little to optimise slopes for them.
                batch.tighten(method, torch.isfinite(batch.values[0]) & batch.open.any(-1, keepdim=True))
        if until is not None:
            batch.attack()
            for wanted in WANTED:
                batch.split(wanted, until)
        return Verdict(margin_of(batch.values), means, batch.attacked, batch.inputs)


class _Batch:
    """A batch on its way from cheap bounds to costly ones.

    Attributes:
        values: lower bounds on softmax_y - softmax_c of every network, (N, B, C).
        margins: lower bounds on z_y - z_c of every network, (N, B, C).
        upper_margins: upper bounds.
        attacked: see ``Verdict``.
        inputs: see ``Verdict``.
    """

    def __init__(self, judge: Judge, points: Points, lower: Tensor, upper: Tensor):
        self.judge, self.points = judge, points
        self.values = torch.full_like(lower, -torch.inf)
        self.margins, self.upper_margins = self.values.clone(), torch.full_like(upper, torch.inf)
        self._learn(slice(None), lower, upper)
        self.attacked, self.inputs = points.predicted != points.labels, points.x.clone()

    @property
    def open(self) -> Tensor:
        """Which rivals (B, C) stand between a point and its certificate; points that are lost have none."""
        return (self.values.mean(0) <= 2 * self.judge.slack) & ~self.attacked[:, None]

    def _learn(self, part: Tensor | slice, lower: Tensor, upper: Tensor) -> None:
        """Draw from boxes of logits of some points what they say about margins and probabilities."""
        labels = self.points.labels[part]
        own = labels.expand(len(upper), -1)[..., None]
        # Rounded outwards once more, for the subtraction.
        infinity = torch.full_like(upper, torch.inf)
        above = torch.nextafter(upper.gather(-1, own) - lower, infinity)
        below = torch.nextafter(lower.gather(-1, own) - upper, -infinity)
        self.upper_margins[:, part] = torch.minimum(self.upper_margins[:, part], above)
        self.margins[:, part] = torch.maximum(self.margins[:, part], below)
        self.values[:, part] = torch.maximum(self.values[:, part], pairwise_values(lower, upper, labels))

    def _update(self, part: Tensor) -> None:
        """Draw from better margins of some points what they say about probabilities."""
        better = elided_values(self.margins[:, part], self.upper_margins[:, part], self.points.labels[part])
        self.values[:, part] = torch.maximum(self.values[:, part], better)

    def tighten(self, method: str, wanted: Tensor) -> None:
        """Bound margins against the rivals that are wanted, (B, C), by another method."""
        points = wanted.any(-1).nonzero().squeeze(-1)
        if len(points) == 0:
            return
        quantities = int(wanted.sum(-1).max())
        predictor, box = self.judge.predictor, self.points.box
        for part in points.split(batch_for(predictor, quantities, self.judge.memory)):
            # The rivals that are wanted come first; shorter lists are filled up with others, at no extra cost.
            rivals = wanted[part].int().argsort(dim=-1, descending=True, stable=True)[:, :quantities]
            some = box.take(part)
            found = margin_bounds(predictor, some, self.points.labels[part], rivals, self.judge.rounding, method)
            place = rivals.expand(len(found), -1, -1)
            known = self.margins[:, part]
            self.margins[:, part] = known.scatter(-1, place, torch.maximum(found, known.gather(-1, place)))
            if method == "crown" or (method != "ibp" and self.judge.rule == "elided"):
                self._learn(part, *logit_bounds(predictor, some, self.judge.rounding, "crown"))
            self._update(part)

    def attack(self) -> None:
        """Look for counterexamples of open points by gradients."""
        part = self.open.any(-1).nonzero().squeeze(-1)
        # Not in l2 and l1, until pgd takes a norm; then give it box.ball.norm and drop the second condition.
        if len(part) == 0 or self.points.box.ball is not None:
            return
        generator = torch.Generator(self.points.x.device).manual_seed(0)
        radius: Tensor = self.points.radius[part].to(self.points.x.dtype)
        with torch.enable_grad():
            found = pgd(
                self.judge.predictor, self.points.x[part], self.points.labels[part], radius,
                self.judge.domain, generator, ATTACK,
            )  # fmt: skip
        self._try(part, found)

    def _try(self, part: Tensor, found: Tensor) -> None:
        """Let the predictor judge inputs that may be counterexamples, brought into ball and domain first."""
        x, radius = self.points.x[part], self.points.radius[part].to(self.points.x.dtype)
        lower, upper = ball(x, radius, self.judge.domain)
        inside = torch.maximum(torch.minimum(found, torch.maximum(upper, x)), torch.minimum(lower, x))
        if self.points.box.ball is not None:
            inside = into_ball(inside, x, self.points.radius[part], self.points.box.ball.norm)
        broken = self.judge.predictor.predict(inside) != self.points.labels[part]
        self.attacked[part[broken]] = True
        self.inputs[part[broken]] = inside[broken]

    def split(self, wanted: float, until: float) -> None:
        """Bound margins of open points by branch and bound, and try the inputs it comes upon."""
        pairs = self.open.nonzero()
        if len(pairs) == 0 or time.monotonic() >= until:
            return
        point, rival = pairs.T
        box = self.points.box.take(point)
        found = refine(
            self.judge.predictor, box, self.points.labels[point], rival, self.margins[:, point, rival],
            self.judge.rounding, wanted, until,
        )  # fmt: skip
        self.margins[:, point, rival] = torch.maximum(self.margins[:, point, rival], found.margins)
        self._update(point.unique())
        for inputs in found.inputs:
            still = self.open.any(-1)[point]
            if bool(still.any()):
                self._try(point[still], inputs[still])
