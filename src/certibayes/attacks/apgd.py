"""Auto-PGD (Croce & Hein, 2020, "Reliable evaluation of adversarial robustness"): PGD that finds its own step size.

    z_{k+1} = project( x_k + η_k direction(∇ f(x_k)) )
    x_{k+1} = project( x_k + α (z_{k+1} - x_k) + (1 - α) (x_k - x_{k-1}) ),    α = 0.75, and 1 in the first step.

The step size starts at η = 2 r (r for l1). At checkpoints w_j = ⌈p_j N⌉ of N steps, with p_0 = 0, p_1 = 0.22 and
p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06), it is halved, and the climb goes on from the best iterate, if since
the last checkpoint

    1. fewer than ρ = 0.75 of the steps made the loss larger, or
    2. neither the step size nor the largest loss has changed.

Each point has its own step size. The loss f is cross-entropy or the difference of logits ratio (``losses.dlr_loss``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.attacks.base import Attack, require_losses
from certibayes.attacks.losses import LOSSES
from certibayes.attacks.search import Search
from certibayes.errors import InvalidInput
from certibayes.support.checks import require_count


@dataclass(frozen=True)
class AutoPGD(Attack):
    """Auto-PGD: as PGD, without a step size to choose.

    Attributes:
        loss: ``"cross-entropy"`` (the paper's APGD-CE), ``"dlr"`` (APGD-DLR) or ``"margin"``.
        steps: iterations per restart, N.
        restarts: starts; the first is the point itself, the others are random.
        alpha: α, the weight of the new step against the last movement.
        rho: ρ, the fraction of steps that must help for a step size to stay.
    """

    loss: str = "cross-entropy"
    steps: int = 40
    restarts: int = 4
    alpha: float = 0.75
    rho: float = 0.75

    def __post_init__(self) -> None:
        require_losses(self.loss)
        require_count(self.steps, "steps")
        require_count(self.restarts, "restarts")
        for value, name in ((self.alpha, "alpha"), (self.rho, "rho")):
            if not 0.0 <= value <= 1.0:
                raise InvalidInput(f"{name} must be from 0 to 1, got {value}.")

    @property
    def name(self) -> str:
        """See ``Attack``."""
        return "apgd-ce" if self.loss == "cross-entropy" else f"apgd-{self.loss}"

    @property
    def evaluations(self) -> int:
        """See ``Attack``."""
        return self.restarts * (self.steps + 1)

    def run(self, search: Search, generator: torch.Generator) -> None:
        """Climb from every start in turn with the points that are not broken yet."""
        for restart in range(self.restarts):
            index = search.unbroken()
            if index.numel() == 0:
                return
            starts = search.region.sample(generator) if restart > 0 else search.region.center
            _climb(search, index, starts[index], self)


def checkpoints(steps: int) -> list[int]:
    """Return the steps after which the step size may be halved, 0 first."""
    fractions = [0.0, 0.22]
    while fractions[-1] < 1.0:
        fractions.append(fractions[-1] + max(fractions[-1] - fractions[-2] - 0.03, 0.06))
    return sorted({math.ceil(round(fraction * steps, 9)) for fraction in fractions if fraction <= 1.0})


class _Climb(NamedTuple):
    """The state of a climb; every tensor has one row per point.

    Attributes:
        points: their indices in the batch.
        x: the iterate.
        previous: the one before.
        value: loss of the iterate.
        gradient: there.
        top: the iterate with the largest loss of this climb.
        top_value: its loss.
        top_gradient: its gradient.
        step_size: relative to the radius, (B, 1, ...).
        helped: steps since the last checkpoint that made the loss larger.
        old_step_size: step size at the last checkpoint.
        old_value: largest loss at the last checkpoint.
    """

    points: Tensor
    x: Tensor
    previous: Tensor
    value: Tensor
    gradient: Tensor
    top: Tensor
    top_value: Tensor
    top_gradient: Tensor
    step_size: Tensor
    helped: Tensor
    old_step_size: Tensor
    old_value: Tensor


def _climb(search: Search, index: Tensor, x: Tensor, settings: AutoPGD) -> None:
    """Climb from ``x`` with the points ``index``; those that are broken are left alone."""
    loss = LOSSES[settings.loss]
    place = search.region.take(index)
    value, gradient = search.loss_and_gradient(index, x, loss)
    step_size = x.new_full((len(x),), 1.0 if place.norm == "l1" else 2.0, dtype=torch.float64)
    step_size = step_size.view(-1, *[1] * (x.dim() - 1))
    none = torch.zeros_like(value)
    at = _Climb(index, x, x, value, gradient, x, value, gradient, step_size, none, step_size.clone(), value)
    at_checkpoints = checkpoints(settings.steps)
    last = 0
    for k in range(1, settings.steps + 1):
        unbroken = search.margin[at.points] <= 0
        if not bool(unbroken.all()):
            at, place = _Climb(*(tensor[unbroken] for tensor in at)), place.take(unbroken)
            if at.points.numel() == 0:
                return
        moved = place.project(at.x + place.steepest_step(at.x, at.gradient, at.step_size))
        if k > 1:
            alpha = settings.alpha
            moved = place.project(at.x + alpha * (moved - at.x) + (1.0 - alpha) * (at.x - at.previous))
        if k == settings.steps:
            search.evaluate(at.points, moved)
            return
        value, gradient = search.loss_and_gradient(at.points, moved, loss)
        at = _stepped(at, moved, value, gradient)
        if k in at_checkpoints:
            at = _adapted(at, k - last, settings.rho)
            last = k


def _stepped(at: _Climb, x: Tensor, value: Tensor, gradient: Tensor) -> _Climb:
    """Move on to ``x`` and remember the best."""
    better = value > at.top_value
    wide = better.view(-1, *[1] * (x.dim() - 1))
    return at._replace(
        x=x,
        previous=at.x,
        value=value,
        gradient=gradient,
        top=torch.where(wide, x, at.top),
        top_value=torch.where(better, value, at.top_value),
        top_gradient=torch.where(wide, gradient, at.top_gradient),
        helped=at.helped + (value > at.value),
    )


def _adapted(at: _Climb, steps: int, rho: float) -> _Climb:
    """Halve the step size, and go back to the best iterate, where the last ``steps`` steps have not helped."""
    stuck = (at.step_size == at.old_step_size).flatten() & (at.top_value == at.old_value)
    halve = (at.helped < rho * steps) | stuck
    wide = halve.view_as(at.step_size)
    return at._replace(
        x=torch.where(wide, at.top, at.x),
        value=torch.where(halve, at.top_value, at.value),
        gradient=torch.where(wide, at.top_gradient, at.gradient),
        step_size=torch.where(wide, at.step_size / 2, at.step_size),
        helped=torch.zeros_like(at.helped),
        old_step_size=at.step_size,
        old_value=at.top_value,
    )
