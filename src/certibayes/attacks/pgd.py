"""Projected gradient descent (Madry et al., 2018): the worst input that was found, which may not be the worst.

    x_{k+1} = project( x_k + α r direction(g_k) ),    g_k = μ g_{k-1} + ∇ loss(x_k) / ‖∇ loss(x_k)‖₁,

where direction is the steepest one of the norm and μ the momentum (Dong et al., 2018; 0 by default). Written for any
callable that maps inputs to log-probabilities, so the same code attacks a single network during training and a
posterior predictive afterwards. Every iterate is projected onto ball and domain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.attacks.base import Attack, require_losses
from certibayes.attacks.losses import LOSSES
from certibayes.attacks.search import LogProbabilities, Search
from certibayes.errors import InvalidInput
from certibayes.regions import InputRegion
from certibayes.support.checks import require_count


def ascend(
    loss: Callable[[Tensor], Tensor],
    start: Tensor,
    lower: Tensor,
    upper: Tensor,
    steps: int,
    step_size: Tensor | float,
) -> Tensor:
    """Climb a per-example loss by signed gradients, staying between ``lower`` and ``upper``.

    Pure, and so usable inside ``vmap`` and ``grad``.

    Returns:
        The last iterate, (B, ...).
    """
    gradient = torch.func.grad(lambda x: loss(x).sum())
    x = torch.clamp(start, lower, upper)
    for _ in range(steps):
        x = torch.clamp(x + step_size * gradient(x).sign(), lower, upper)
    return x


@dataclass(frozen=True)
class PGD(Attack):
    """Projected gradient descent.

    Attributes:
        steps: iterations per restart.
        restarts: starts; the first is the point itself, the others are random.
        step_size: relative to the radius; None takes 2.5 / steps.
        losses: taken in turn by the restarts: ``"margin"``, ``"cross-entropy"``, ``"dlr"``; one or several.
        momentum: μ, how much of the last direction is kept, from 0 to 1.
    """

    steps: int = 40
    restarts: int = 4
    step_size: float | None = None
    losses: Sequence[str] = ("margin", "cross-entropy")
    momentum: float = 0.0

    def __post_init__(self) -> None:
        # A list would not do: attacks are compared and hashed.
        object.__setattr__(self, "losses", (self.losses,) if isinstance(self.losses, str) else tuple(self.losses))
        require_losses(*self.losses)
        require_count(self.steps, "steps")
        require_count(self.restarts, "restarts")
        if self.step_size is not None and not self.step_size > 0.0:
            raise InvalidInput(f"step_size is relative to the radius and must be positive, got {self.step_size}.")
        if not 0.0 <= self.momentum <= 1.0:
            raise InvalidInput(f"momentum must be from 0 to 1, got {self.momentum}.")

    @property
    def name(self) -> str:
        """See ``Attack``."""
        return "pgd"

    @property
    def evaluations(self) -> int:
        """See ``Attack``."""
        return self.restarts * (self.steps + 1)

    @property
    def relative_step(self) -> float:
        """The length of a step, as a fraction of the radius."""
        return self.step_size if self.step_size is not None else 2.5 / self.steps

    def run(self, search: Search, generator: torch.Generator) -> None:
        """Climb from every start in turn with the points that are not broken yet."""
        for restart in range(self.restarts):
            index = search.unbroken()
            if index.numel() == 0:
                return
            # Drawn for the whole batch: where a point starts does not depend on which others are broken.
            starts = search.region.sample(generator) if restart > 0 else search.region.center
            self._climb(search, index, starts[index], restart)

    def run_from(self, search: Search, starts: Sequence[Tensor]) -> None:
        """Climb from given inputs (B, ...) in turn, projected first, instead of the point itself and random ones."""
        for number, start in enumerate(starts):
            index = search.unbroken()
            if index.numel() == 0:
                return
            self._climb(search, index, search.region.take(index).project(start[index]), number)

    def ascend(self, loss: Callable[[Tensor], Tensor], region: InputRegion, start: Tensor) -> Tensor:
        """Climb any loss once, from ``start``, in l-infinity and without momentum; see ``ascend``.

        Args:
            loss: inputs (B, ...) -> loss (B,).
            region: where the climb may go, for B points.
            start: inputs (B, ...).

        Returns:
            The last iterate, (B, ...).
        """
        lower, upper = region.corners()
        return ascend(loss, start, lower, upper, self.steps, self.relative_step * region.radius)

    def _climb(self, search: Search, index: Tensor, x: Tensor, number: int) -> None:
        """Climb from ``x`` with the points ``index``; a broken one is left alone, so weak networks cost little."""
        loss = LOSSES[self.losses[number % len(self.losses)]]
        place = search.region.take(index)
        kept = torch.zeros_like(x) if self.momentum > 0 else None
        for _ in range(self.steps):
            _, direction = search.loss_and_gradient(index, x, loss)
            if kept is not None:
                kept = direction = self.momentum * kept + _unit(direction)
            unbroken = search.margin[index] <= 0
            if not bool(unbroken.all()):
                index, x, place = index[unbroken], x[unbroken], place.take(unbroken)
                direction, kept = direction[unbroken], None if kept is None else kept[unbroken]
                if index.numel() == 0:
                    return
            x = place.project(x + place.steepest_step(x, direction, self.relative_step))
        search.evaluate(index, x)


def pgd(
    log_probabilities: LogProbabilities,
    region: InputRegion,
    y: Tensor,
    generator: torch.Generator,
    settings: PGD = PGD(),  # noqa: B008 - frozen
    starts: Sequence[Tensor] = (),
) -> Tensor:
    """Attack a batch and return, for each input, the iterate with the largest margin loss, (B, ...).

    Args:
        log_probabilities: the predictor.
        region: where the attack may go, for B points.
        y: labels (B,), which the attack tries to leave.
        generator: of the random starts, on the device of the points.
        settings: the attack.
        starts: inputs (B, ...) to climb from, instead of the point itself and random ones.
    """
    search = Search(log_probabilities, region, y)
    if starts:
        settings.run_from(search, starts)
    else:
        settings.run(search, generator)
    return search.best


def _unit(gradient: Tensor) -> Tensor:
    """Scale each gradient to an l1 norm of 1, so that no single step outweighs the others; 0 stays 0."""
    norm = gradient.abs().flatten(1).sum(-1).view(-1, *[1] * (gradient.dim() - 1))
    return gradient / torch.where(norm > 0, norm, 1.0)
