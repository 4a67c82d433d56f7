"""Projected gradient descent (Madry et al., 2018): the worst input that was found, which may not be the worst.

    x_{k+1} = project( x_k + α r direction(g_k) ),    g_k = μ g_{k-1} + ∇ loss(x_k) / ‖∇ loss(x_k)‖₁,

where direction is the steepest one of the norm and μ the momentum (Dong et al., 2018; 0 by default). Written for any
callable that maps inputs to log-probabilities, so the same code attacks a single network during training and a
posterior predictive afterwards. Every iterate is projected onto ball and domain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.attack.losses import LOSSES, Loss
from certibayes.attack.search import LogProbabilities, Search
from certibayes.errors import InvalidInput
from certibayes.regions import InputRegion


def ascend(
    loss: Callable[[Tensor], Tensor],
    start: Tensor,
    lower: Tensor,
    upper: Tensor,
    steps: int,
    step_size: Tensor | float,
) -> Tensor:
    """Climb a per-example loss by signed gradients, staying between ``lower`` and ``upper``.

    Pure, hence usable inside ``vmap`` and ``grad``.

    Returns:
        The last iterate, (B, ...).
    """
    gradient = torch.func.grad(lambda x: loss(x).sum())
    x = torch.clamp(start, lower, upper)
    for _ in range(steps):
        x = torch.clamp(x + step_size * gradient(x).sign(), lower, upper)
    return x


class PGDSettings(NamedTuple):
    """Settings of the attack.

    Attributes:
        steps: iterations a restart.
        restarts: random starts; the first one starts at the input itself.
        step_size: relative to eps; None takes 2.5 / steps.
        losses: taken in turn by the restarts: ``"margin"``, ``"cross-entropy"``, ``"dlr"``.
        momentum: how much of the last direction is kept, from 0 to 1.
    """

    steps: int = 40
    restarts: int = 4
    step_size: float | None = None
    losses: tuple[str, ...] = ("margin", "cross-entropy")
    momentum: float = 0.0

    def require(self) -> None:
        """Raise if there is nothing to do, or no such loss."""
        if self.steps < 1 or self.restarts < 1:
            raise InvalidInput(f"steps and restarts must be at least 1, got {self.steps}, {self.restarts}.")
        if not self.losses or any(name not in LOSSES for name in self.losses):
            raise InvalidInput(f"losses must be some of {', '.join(LOSSES)}, got {self.losses}.")
        if not 0.0 <= self.momentum <= 1.0:
            raise InvalidInput(f"momentum must be from 0 to 1, got {self.momentum}.")


def pgd(
    log_probabilities: LogProbabilities,
    region: InputRegion,
    y: Tensor,
    generator: torch.Generator,
    settings: PGDSettings = PGDSettings(),  # noqa: B008 - an immutable tuple
    starts: Sequence[Tensor] = (),
) -> Tensor:
    """Attack a batch and return, for each input, the iterate with the largest margin loss, (B, ...).

    Args:
        log_probabilities: the predictor.
        region: where the attack may go, for B points.
        y: labels (B,), which the attack tries to leave.
        generator: of the random starts, on the device of the points.
        settings: see there.
        starts: inputs (B, ...) to climb from, instead of the point itself and random ones.
    """
    search = Search(log_probabilities, region, y)
    if starts:
        settings.require()
        for number, start in enumerate(starts):
            index = search.standing()
            if index.numel() > 0:
                begin = search.region.take(index).project(start[index])
                _climb(search, index, begin, LOSSES[settings.losses[number % len(settings.losses)]], settings)
    else:
        projected_gradient(search, settings, generator)
    return search.best


def projected_gradient(search: Search, settings: PGDSettings, generator: torch.Generator) -> None:
    """Climb from every start in turn with the points that still stand."""
    settings.require()
    for restart in range(settings.restarts):
        index = search.standing()
        if index.numel() == 0:
            return
        # Drawn for the whole batch: where a point starts does not depend on which others have fallen.
        starts = search.region.sample(generator) if restart > 0 else search.region.center
        loss = LOSSES[settings.losses[restart % len(settings.losses)]]
        _climb(search, index, starts[index], loss, settings)


def _climb(search: Search, index: Tensor, x: Tensor, loss: Loss, settings: PGDSettings) -> None:
    """Climb from ``x`` with the points ``index``; one that has fallen is left alone, so weak networks cost little."""
    share = settings.step_size if settings.step_size is not None else 2.5 / settings.steps
    place = search.region.take(index)
    kept = torch.zeros_like(x) if settings.momentum > 0 else None
    for _ in range(settings.steps):
        _, direction = search.climb(index, x, loss)
        if kept is not None:
            kept = direction = settings.momentum * kept + _unit(direction)
        alive = search.margin[index] <= 0
        if not bool(alive.all()):
            index, x, direction, place = index[alive], x[alive], direction[alive], place.take(alive)
            kept = None if kept is None else kept[alive]
            if index.numel() == 0:
                return
        x = place.project(x + place.steepest_step(x, direction, share))
    search.look(index, x)


def _unit(gradient: Tensor) -> Tensor:
    """Scale each gradient to an l1 norm of 1, so that no single step outweighs the others; 0 stays 0."""
    size = gradient.abs().flatten(1).sum(-1).view(-1, *[1] * (gradient.dim() - 1))
    return gradient / torch.where(size > 0, size, 1.0)
