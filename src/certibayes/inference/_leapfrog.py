"""The kernel of HMC: one trajectory of leapfrog steps with every chain, and the acceptance of its end.

With momenta p ~ N(0, M), M diagonal, and steps of size h,

    p ← p - h/2 ∇U(w),    w ← w + h p / M,    p ← p - h/2 ∇U(w);

the end is accepted with probability min(1, exp(H_start - H_end)), H(w, p) = U(w) + ½ Σ p² / M.

A position holds its potential and gradient, so the end of one trajectory is the start of the next one as it is: L
steps take L gradients.

Between the ends of a trajectory any force that is a function of w alone will do in the place of -∇U: the steps still
preserve volume and lead back when they are taken backwards, so that the chain keeps its distribution, which the
potentials of the ends decide. A rough force only lets fewer ends be accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.networks import Params

DIVERGENCE = 1000.0
"""An energy error beyond this, or one that is no number, is a divergence: the integrator has left the trajectory."""

Energy = Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]
"""Potential (C,) and its gradient (C, ...) at stacked parameters."""


class Position(NamedTuple):
    """Where C chains are.

    Attributes:
        params: weights, each (C, ...).
        potential: U there, float64 (C,).
        gradient: of U there, each (C, ...).
    """

    params: dict[str, Tensor]
    potential: Tensor
    gradient: dict[str, Tensor]


class Move(NamedTuple):
    """What a trajectory led to.

    Attributes:
        position: the end where it was accepted, the start elsewhere.
        acceptance: probability of acceptance, (C,).
        accepted: (C,).
        diverged: (C,).
    """

    position: Position
    acceptance: Tensor
    accepted: Tensor
    diverged: Tensor


def move(
    energy: Energy,
    between: Energy,
    start: Position,
    mass: Params,
    size: Tensor,
    steps: int,
    generator: torch.Generator,
) -> Move:
    """Draw momenta, follow the dynamics, and accept or reject the end.

    Args:
        energy: potential and gradient.
        between: the same, as precise as may be, for the steps between the ends.
        start: where the chains are.
        mass: by parameter, without a chain dimension.
        size: of a step.
        steps: how many.
        generator: of momenta and acceptance.
    """
    momentum = {name: normal(p, generator) * mass[name].sqrt() for name, p in start.params.items()}
    end, error = trajectory(energy, between, start, momentum, mass, size, steps)
    diverged = ~(error < DIVERGENCE)
    acceptance = torch.where(diverged, 0.0, torch.exp(-error).clamp(max=1.0)).to(size)
    uniform = torch.rand(len(error), generator=generator, dtype=size.dtype, device=size.device)
    accepted = uniform < acceptance
    return Move(_chosen(accepted, end, start), acceptance, accepted, diverged)


def trajectory(
    energy: Energy, between: Energy, start: Position, momentum: Params, mass: Params, size: Tensor, steps: int
) -> tuple[Position, Tensor]:
    """Follow the dynamics by leapfrog steps.

    Args:
        energy: potential and gradient, taken at the end.
        between: the same, as precise as may be, taken before that.
        start: where the chains are.
        momentum: (C, ...).
        mass: by parameter.
        size: of a step.
        steps: how many.

    Returns:
        The end, and the energy error H_end - H_start (C,) in float64.
    """
    params, potential, gradient = start
    kinetic = _kinetic(momentum, mass)
    for step in range(1, steps + 1):
        momentum = {name: p - 0.5 * size * gradient[name] for name, p in momentum.items()}
        params = {name: w + size * momentum[name] / mass[name] for name, w in params.items()}
        potential, gradient = (energy if step == steps else between)(params)
        momentum = {name: p - 0.5 * size * gradient[name] for name, p in momentum.items()}
    error = potential - start.potential + _kinetic(momentum, mass) - kinetic
    return Position(params, potential, gradient), error


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw N(0, 1) in the shape of a tensor."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _kinetic(momentum: Params, mass: Params) -> Tensor:
    """½ Σ p² / M of every chain, (C,), in float64."""
    terms = [(p.double().square() / mass[name]).reshape(len(p), -1).sum(1) for name, p in momentum.items()]
    return 0.5 * torch.stack(terms).sum(0)


def _chosen(accepted: Tensor, end: Position, start: Position) -> Position:
    """Return the end for chains that accepted it (C,), and the start for all others."""

    def choose(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(accepted.view(-1, *[1] * (one.dim() - 1)), one, other)

    return Position(
        {name: choose(end.params[name], p) for name, p in start.params.items()},
        choose(end.potential, start.potential),
        {name: choose(end.gradient[name], g) for name, g in start.gradient.items()},
    )
