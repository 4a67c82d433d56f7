"""Judging a batch of points: bounds, then a rule; for the rule ``best``, cheap means first and costly ones last."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from certibayes.certify.batch import Batch
from certibayes.certify.input_split import FEW
from certibayes.certify.network_bounds import BOUNDS, logit_bounds
from certibayes.certify.points import Points, Settings, Verdict
from certibayes.certify.rules import MARGIN_RULES, RULES, Means, mean_probability_bounds

ALL_RULES = (*RULES, *MARGIN_RULES)


class Judge(Settings):
    """Judges batches by the bounds and the rule that were asked for."""

    def __call__(self, points: Points, seconds: float | None = None) -> Verdict:
        """Judge a batch; attacks and splitting may take so many ``seconds``, besides what the bounds take."""
        attacked = points.predicted != points.labels
        lower, upper = self._logits(points, torch.arange(len(points.x), device=points.x.device), self._first_bounds)
        means = mean_probability_bounds(lower, upper)
        if self.rule in RULES:
            return self._by_logits(points, attacked, lower, upper, means)
        batch = Batch(self, points, lower, upper)
        if self.rule == "best":
            spent = self._best(batch, seconds)
            return batch.verdict(means)._replace(spent=spent)
        every = torch.isfinite(batch.values[0])
        batch.tighten("crown" if self.bounds == "hull" else self.bounds, every)
        if self.rule == "joint":
            for some in batch.in_parts(batch.open):
                some.enclose(some.open, self.bounds)
                some.join()
        elif self.bounds == "hull":
            for some in batch.in_parts(every):
                some.enclose(torch.isfinite(some.values[0]), self.bounds)
        return batch.verdict(means)

    def _by_logits(self, points: Points, attacked: Tensor, lower: Tensor, upper: Tensor, means: Means) -> Verdict:
        """Apply a rule for logits, with tighter bounds on them for the points that are still open."""
        margin = RULES[self.rule](lower, upper, points.labels, means)
        for method in BOUNDS[BOUNDS.index(self._first_bounds) + 1 : BOUNDS.index(self.bounds) + 1]:
            part = ((margin <= 2 * self.slack) & ~attacked).nonzero().squeeze(-1)
            if len(part) == 0:
                break
            low, high = self._logits(points, part, method)
            lower[:, part] = torch.maximum(lower[:, part], low)
            upper[:, part] = torch.minimum(upper[:, part], high)
            means = mean_probability_bounds(lower, upper)
            margin = RULES[self.rule](lower, upper, points.labels, means)
        return Verdict(margin, means, attacked, points.x)

    @property
    def _first_bounds(self) -> str:
        """The bounds on logits that every point has; tighter ones are for points that these leave open."""
        return "ibp" if self.rule == "best" or self.bounds == "ibp" else "crown"

    def _logits(self, points: Points, part: Tensor, method: str) -> tuple[Tensor, Tensor]:
        """Bound the logits of some points, (N, P, C) each."""
        return logit_bounds(
            self.predictor, points.box.take(part), self.rounding, method, self.intermediates, self.memory
        )

    def _best(self, batch: Batch, seconds: float | None) -> float:
        """Go from cheap means to costly ones, and return how long attacks and splitting took."""
        spent = 0.0
        for method in BOUNDS[: min(2, BOUNDS.index(self.bounds) + 1)]:
            batch.tighten(method, batch.open)
            # The margins of the other rivals matter as well, less; too little to optimise for them.
            batch.tighten(method, torch.isfinite(batch.values[0]) & batch.open.any(-1, keepdim=True))
        if self.bounds == "hull":
            # An attack is cheaper than these bounds, which are not for points that fall to it.
            began = time.monotonic()
            batch.attack()
            spent = time.monotonic() - began
        left = int(batch.open.any(-1).sum())
        for some in batch.in_parts(batch.open):
            count = len(some.attacked)
            spent += self._closely(some, None if seconds is None else (seconds - spent) * count / left)
            left -= count
        return spent

    def _closely(self, batch: Batch, seconds: float | None) -> float:
        """Look closely at points that cheap means leave open, and return how long attacks and splitting took."""
        if self.bounds != "ibp":
            # Who gives time for splitting has patience for lines as well.
            batch.enclose(batch.open, self.bounds, gives_up=seconds is None)
            batch.join()
            if seconds is None:
                batch.enclose(batch.regained, self.bounds)
                batch.join()
        if seconds is None:
            return 0.0
        began = time.monotonic()
        until = began + seconds
        if self.bounds != "hull":
            batch.attack()
            batch.enclose(batch.open, "hull", until)
            batch.join()
        if torch.Size(self.predictor.graph.input_shape).numel() <= FEW and batch.points.box.ball is None:
            # Half of the time: what it cannot decide, splitting on activations may.
            batch.split_inputs(began + seconds / 2)
        batch.split(until)
        return time.monotonic() - began
