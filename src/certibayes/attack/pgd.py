"""Projected gradient descent (Madry et al., 2018): the worst input that was found, which may not be the worst.

Written for any callable that maps inputs to log-probabilities, so the same code attacks a single network during
training and a posterior predictive afterwards. Every iterate is projected onto ball and domain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Domain, ball
from certibayes.errors import InvalidInput

LogProbabilities = Callable[[Tensor], Tensor]
"""Inputs (B, ...) -> log-probabilities (B, C)."""


def label_scores(scores: Tensor, y: Tensor) -> Tensor:
    """Pick each example's own column out of (B, C)."""
    return scores.gather(-1, y[:, None]).squeeze(-1)


def cross_entropy_loss(log_probabilities: Tensor, y: Tensor) -> Tensor:
    """-log p(y), per example."""
    return -label_scores(log_probabilities, y)


def margin_loss(log_probabilities: Tensor, y: Tensor) -> Tensor:
    """Log-probability of the best rival minus that of the label, per example; positive once the attack succeeds."""
    is_label = y[:, None] == torch.arange(log_probabilities.shape[-1], device=y.device)
    rivals = log_probabilities.masked_fill(is_label, -torch.inf).amax(-1)
    return rivals - label_scores(log_probabilities, y)


LOSSES = {"cross-entropy": cross_entropy_loss, "margin": margin_loss}


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
        losses: taken in turn by the restarts.
    """

    steps: int = 40
    restarts: int = 4
    step_size: float | None = None
    losses: tuple[str, ...] = ("margin", "cross-entropy")


def pgd(
    log_probabilities: LogProbabilities,
    x: Tensor,
    y: Tensor,
    eps: float | Tensor,
    domain: Domain,
    generator: torch.Generator,
    settings: PGDSettings = PGDSettings(),  # noqa: B008 - an immutable tuple
) -> Tensor:
    """Attack a batch and return, for each input, the iterate with the largest margin loss, (B, ...).

    Args:
        log_probabilities: the predictor.
        x: inputs (B, ...), inside the domain.
        y: labels (B,), which the attack tries to leave.
        eps: l-infinity radius, or radii that broadcast against ``x``.
        domain: smallest and largest value of an input, or None.
        generator: of the random starts, on the device of ``x``.
        settings: see there.
    """
    if settings.steps < 1 or settings.restarts < 1:
        raise InvalidInput(f"steps and restarts must be at least 1, got {settings.steps}, {settings.restarts}.")
    lower, upper = ball(x, eps, domain)
    # Where x sits on the border of its domain, x - eps may round past it; x itself is always allowed.
    lower, upper = torch.minimum(lower, x), torch.maximum(upper, x)
    relative = settings.step_size if settings.step_size is not None else 2.5 / settings.steps
    step_size = eps * relative if isinstance(eps, Tensor) else x.new_full((1,) * x.dim(), eps * relative)
    step_size = step_size.expand(len(x), *step_size.shape[1:])
    best = x.clone()
    with torch.no_grad():
        best_margin = margin_loss(log_probabilities(x), y)
    for restart in range(settings.restarts):
        standing = (best_margin <= 0).nonzero().squeeze(-1)
        if standing.numel() == 0:
            break
        low, high = lower[standing], upper[standing]
        start = x[standing]
        if restart > 0:
            noise = torch.rand(low.shape, generator=generator, dtype=low.dtype, device=low.device)
            start = low + noise * (high - low)
        loss = LOSSES[settings.losses[restart % len(settings.losses)]]
        _climb(log_probabilities, loss, start, y, lower, upper, settings.steps, step_size, standing, best, best_margin)
    return best


def _climb(
    log_probabilities: LogProbabilities,
    loss: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    y: Tensor,
    lower: Tensor,
    upper: Tensor,
    steps: int,
    step_size: Tensor,
    standing: Tensor,
    best: Tensor,
    best_margin: Tensor,
) -> None:
    """Climb from ``start`` for the points ``standing``, keeping in ``best`` the iterate with the largest margin.

    A point that has fallen is not attacked further, so weak networks cost little.
    """
    x = torch.clamp(start, lower[standing], upper[standing])
    for step in range(steps + 1):
        x = x.detach().requires_grad_(step < steps)
        outputs = log_probabilities(x)
        with torch.no_grad():
            margin = margin_loss(outputs, y[standing])
            better = margin > best_margin[standing]
            best[standing[better]] = x.detach()[better]
            best_margin[standing[better]] = margin[better]
        if step == steps:
            return
        (gradient,) = torch.autograd.grad(loss(outputs, y[standing]).sum(), x)
        with torch.no_grad():
            alive = best_margin[standing] <= 0
            standing = standing[alive]
            if standing.numel() == 0:
                return
            moved = x[alive] + step_size[standing] * gradient[alive].sign()
            x = torch.clamp(moved, lower[standing], upper[standing])
