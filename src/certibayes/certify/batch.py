"""A batch of points on its way from cheap bounds to costly ones, for rules that bound margins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import copy

import torch
from torch import Tensor

from certibayes.attack.pgd import PGDSettings, pgd
from certibayes.bounds import Box, by_name
from certibayes.certify.input_split import proved_in_parts
from certibayes.certify.joint import Others, joint_values
from certibayes.certify.network_bounds import batch_for, logit_bounds, margin_bounds
from certibayes.certify.points import Points, Settings, Verdict
from certibayes.certify.prospects import PROBES, is_hardest, is_out_of_reach
from certibayes.certify.refine import Found, Refinement, bytes_held
from certibayes.certify.rules import Means, elided_values, pairwise_values
from certibayes.certify.softmax import log_sum_of_others

ATTACK = PGDSettings(steps=40, restarts=2)

SATURATED = 4.0
"""A margin above which a network's probabilities have little to gain; no effort is spent on it."""

WANTED = (0.05, 1.0, SATURATED)
"""Margins asked for by splitting: little from every network first, then more from those that can give more, to make up
for those that cannot."""

CLIMB = PGDSettings(steps=40, restarts=1, losses=("margin",))

STARTS = 3
"""Networks whose worst inputs are climbed from."""

SMALL = 1e-9
"""Far more than float64 loses in a sum of exponentials."""


class Batch:
    """A batch on its way from cheap bounds to costly ones.

    Attributes:
        values: lower bounds on softmax_y - softmax_c of every network, (N, B, C).
        margins: lower bounds on z_y - z_c of every network, (N, B, C).
        upper_margins: upper bounds.
        together: lower bounds on their mean that hold for one input of all networks, (B, C).
        attacked: see ``Verdict``.
        inputs: see ``Verdict``.
    """

    def __init__(self, settings: Settings, points: Points, lower: Tensor, upper: Tensor):
        self.settings, self.points = settings, points
        self.values = torch.full_like(lower, -torch.inf)
        self.margins, self.upper_margins = self.values.clone(), torch.full_like(upper, torch.inf)
        self.together = self.values[0].clone()
        self._learn(slice(None), lower, upper)
        self.attacked, self.inputs = points.predicted != points.labels, points.x.clone()

    @property
    def open(self) -> Tensor:
        """Which rivals (B, C) stand between a point and its certificate; points that are lost have none."""
        return (self._means <= 2 * self.settings.slack) & ~self.attacked[:, None]

    @property
    def _means(self) -> Tensor:
        """Lower bounds on the mean of softmax_y - softmax_c over networks, (B, C)."""
        return torch.maximum(self.values.mean(0), self.together)

    def verdict(self, means: Means) -> Verdict:
        """Return what was found."""
        return Verdict(self._means.amin(-1), means, self.attacked, self.inputs)

    def in_parts(self, wanted: Tensor) -> Iterator[Batch]:
        """Yield the points with rivals that are wanted, (B, C), as batches of their own, and take in what they learn.

        What close looks hold of the points of a part takes no more than half of the memory, so that it is left for
        the work itself; it is dropped when the next part begins.
        """
        points = wanted.any(-1).nonzero().squeeze(-1)
        if len(points) == 0:
            return
        held = bytes_held(self.settings.predictor, int(wanted.sum(-1).max()))
        for part in points.split(max(1, self.settings.memory // 2 // held)):
            some = copy(self)
            some.points = self.points.take(part)
            for name in ("values", "margins", "upper_margins"):
                setattr(some, name, getattr(self, name)[:, part])
            for name in ("together", "attacked", "inputs"):
                setattr(some, name, getattr(self, name)[part])
            yield some
            for name in ("values", "margins", "upper_margins"):
                getattr(self, name)[:, part] = getattr(some, name)
            for name in ("together", "attacked", "inputs"):
                getattr(self, name)[part] = getattr(some, name)

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
        predictor, box = self.settings.predictor, self.points.box
        for part in points.split(batch_for(predictor, quantities, self.settings.memory, method)):
            # The rivals that are wanted come first; shorter lists are filled up with others, at no extra cost.
            rivals = wanted[part].int().argsort(dim=-1, descending=True, stable=True)[:, :quantities]
            some = box.take(part)
            labels, intermediates = self.points.labels[part], self.settings.intermediates
            found = margin_bounds(predictor, some, labels, rivals, self.settings.rounding, method, intermediates)
            place = rivals.expand(len(found), -1, -1)
            known = self.margins[:, part]
            self.margins[:, part] = known.scatter(-1, place, torch.maximum(found, known.gather(-1, place)))
            if method == "crown" and self.settings.rule == "best":
                self._learn(
                    part,
                    *logit_bounds(
                        predictor, some, self.settings.rounding, "crown", intermediates, self.settings.memory
                    ),
                )
            self._update(part)

    def attack(self) -> None:
        """Look for counterexamples of open points by gradients."""
        part = self.open.any(-1).nonzero().squeeze(-1)
        if len(part) == 0:
            return
        generator = torch.Generator(self.points.x.device).manual_seed(0)
        region, labels = self.points.region.take(part), self.points.labels[part]
        with torch.enable_grad():
            found = pgd(self.settings.predictor, region, labels, generator, ATTACK)
        self._try(part, found)

    def _try(self, part: Tensor, found: Tensor) -> None:
        """Let the predictor judge inputs that may be counterexamples, brought into ball and domain first."""
        inside = self.points.region.take(part).project(found)
        broken = self.settings.predictor.predict(inside) != self.points.labels[part]
        self.attacked[part[broken]] = True
        self.inputs[part[broken]] = inside[broken]

    def enclose(self, wanted: Tensor, method: str, until: float = torch.inf, gives_up: bool = False) -> None:
        """Bound margins against the rivals that are wanted, (B, C), by lines, one network after the other.

        Args:
            wanted: which rivals.
            method: how; see ``branch.METHODS``.
            until: when to stop.
            gives_up: whether points whose hardest rivals are out of reach, as far as the first networks tell, are left
                to lines that cost less.
        """
        self.point, self.rival = wanted.nonzero().T
        self.refinement = Refinement(
            self.settings.predictor, self.points.box, self.point,
            self.points.labels[self.point], self.rival, self.settings.rounding,
            self.settings.intermediates, self.settings.memory // 2,
        )  # fmt: skip
        self.smallest = torch.full_like(self.margins[:, self.point, self.rival], torch.inf)
        networks = len(self.margins)
        self.given_up = torch.zeros_like(self.point, dtype=torch.bool)
        if gives_up and method != "crown":
            before = self.values[:, self.point, self.rival]
            hardest = is_hardest(before.mean(0), self.point)
            for network in range(min(PROBES, networks)):
                self._begin(network, hardest, method, _share(until, networks))
            values, is_seen = self.values[:, self.point, self.rival], self.smallest < torch.inf
            self.given_up = hardest & is_out_of_reach(before, values, is_seen)
        within_reach = ~torch.isin(self.point, self.point[self.given_up])
        for network in range(networks):
            self._begin(network, within_reach, method, _share(until, networks - network))
            # One input for all networks may decide still; where it does not, the point's other rivals need no lines.
            self._begin(network, self.given_up, "crown", _share(until, networks - network))

    def _begin(self, network: int, wanted: Tensor, method: str, ended: Callable[[], bool]) -> None:
        """Bound margins of one network for the pairs (P,) that are wanted, where it is worth it and not done yet."""
        known, is_new = self.margins[network, self.point, self.rival], self.smallest[network] == torch.inf
        which = (wanted & is_new & self._undecided & (known < SATURATED)).nonzero().squeeze(-1)
        if len(which) > 0:
            self._take_in(self.refinement.begin(network, which, known[which], method, ended))

    @property
    def regained(self) -> Tensor:
        """Which rivals (B, C) are open of points that were given up for a harder one, which is proved by now."""
        is_open = self.open
        proved = self.point[self.given_up & ~is_open[self.point, self.rival]]
        return is_open & torch.zeros_like(self.attacked).index_fill(0, proved, True)[:, None]

    @property
    def _undecided(self) -> Tensor:
        """Which of the pairs (P,) of point and rival are worth the effort; for other rules than ``best``, all."""
        if self.settings.rule != "best":
            return torch.ones_like(self.point, dtype=torch.bool)
        return self.open[self.point, self.rival]

    @property
    def _promising(self) -> Tensor:
        """Which of the pairs (P,) of point and rival may still be proved by better margins of single networks."""
        is_seen = self.smallest < torch.inf
        # No margin can be bounded by more than the network really gives.
        most = self.margins[:, self.point].scatter(
            -1, self.rival.expand_as(is_seen)[..., None], self.smallest[..., None]
        )
        values = elided_values(most, self.upper_margins[:, self.point], self.points.labels[self.point])
        values = values.gather(-1, self.rival.expand_as(is_seen)[..., None]).squeeze(-1)
        total = torch.where(is_seen, values, torch.zeros_like(values)).sum(0)
        return self._undecided & (total > 0)

    def _take_in(self, found: Found) -> None:
        """Draw from what was found for one network what it says about probabilities, and try its worst inputs."""
        point, rival = self.point[found.which], self.rival[found.which]
        known = self.margins[found.network, point, rival]
        self.margins[found.network, point, rival] = torch.maximum(known, found.margins)
        self.smallest[found.network, found.which] = found.smallest
        self._update(point.unique())
        still = self.open[point].any(-1)
        if bool(still.any()):
            self._try(point[still], found.inputs[still])

    def join(self) -> None:
        """Bound the mean over networks for one input of all of them, where that may decide."""
        chosen = self._undecided.nonzero().squeeze(-1)
        inputs = torch.Size(self.settings.predictor.graph.input_shape).numel()
        at_once = max(1, self.settings.memory // (8 * 8 * inputs * len(self.margins)))
        for part in chosen.split(at_once):
            point, rival = self.point[part], self.rival[part]
            known = self.margins[:, point, rival]
            box, lines = self.points.box.take(point), self.refinement.lines(part, known)
            values = joint_values(lines, known, self._others(point, rival), box)
            self.together[point, rival] = torch.maximum(self.together[point, rival], values)

    def _others(self, point: Tensor, rival: Tensor) -> Others:
        """What the classes besides label and rival add to the denominators of softmax, for pairs of point and rival."""
        place = rival.expand(len(self.margins), -1)[..., None]
        is_label = self.points.labels[point, None] == torch.arange(self.margins.shape[-1], device=point.device)

        def others(margins: Tensor) -> Tensor:
            logs = log_sum_of_others((-margins[:, point]).masked_fill(is_label, -torch.inf))
            return logs.gather(-1, place).squeeze(-1).exp()

        # Rounding aside; less is safe where margins are negative, so what could overflow is cut.
        return Others(others(self.margins) * (1 + SMALL), others(self.upper_margins).clamp(max=1e6) * (1 - SMALL))

    def climb(self) -> None:
        """Attack what is still open from where single networks came closest to the rival, and from the mean of that.

        Gradients alone rarely find such places: they lie beyond units that are switched off on the way.
        """
        chosen = self._undecided.nonzero().squeeze(-1)
        if len(chosen) == 0:
            return
        point, inputs = self.point[chosen], self.refinement.inputs(chosen)
        nearest = self.smallest[:, chosen].topk(min(STARTS, len(inputs)), 0, largest=False).indices
        here = torch.arange(len(chosen), device=chosen.device)
        starts = [*(inputs[network, here] for network in nearest), inputs.mean(0)]
        with torch.enable_grad():
            found = pgd(
                self.settings.predictor, self.points.region.take(point), self.points.labels[point],
                torch.Generator(), CLIMB, starts,
            )  # fmt: skip
        self._try(point, found)

    def split_inputs(self, until: float) -> None:
        """Prove points that are still open part by part of their boxes, and try the middle of each part."""
        chosen = self.open.any(-1).nonzero().squeeze(-1)
        if len(chosen) == 0:
            return
        settings, points = self.settings, self.points

        def is_open(parts: Box, whose: Tensor) -> Tensor:
            point = chosen[whose]
            self._try(point, parts.centre)
            labels = points.labels[point]
            some = Points(points.region.take(point), labels, labels, parts)
            batch = Batch(settings, some, *logit_bounds(settings.predictor, parts, settings.rounding))
            batch.tighten("crown", batch.open)
            return batch.open.any(-1)

        proved = proved_in_parts(
            points.box.take(chosen), by_name(settings.rounding, settings.predictor.dtype), is_open,
            lambda whose: self.attacked[chosen[whose]], lambda: time.monotonic() > until,
        )  # fmt: skip
        # On each part the mean was above 2 slack against every rival; how far above was not kept.
        least = torch.nextafter(self.together.new_tensor(2 * settings.slack), self.together.new_tensor(torch.inf))
        self.together[chosen[proved]] = self.together[chosen[proved]].clamp(min=float(least))

    def split(self, until: float) -> None:
        """Split what is still open, for margins that rise from pass to pass, and attack from what comes up."""
        searches = self.refinement.searches
        self.climb()
        for wanted in WANTED:
            goes_on = True
            while goes_on and time.monotonic() < until:
                goes_on = False
                for index, searched in enumerate(searches):
                    promising = self._promising
                    aim = torch.where(promising, wanted, -torch.inf)
                    if self.refinement.split(searched, aim.double(), _share(until, len(searches) - index)):
                        goes_on = True
                        self._take_in(self.refinement.found(searched))
                if goes_on:
                    self.climb()


def _share(until: float, parts: int) -> Callable[[], bool]:
    """Tell when an equal share of the time that is left is over."""
    now = time.monotonic()
    end = now + (until - now) / parts
    return lambda: time.monotonic() > end
