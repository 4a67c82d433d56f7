"""HMC: Hamiltonian Monte Carlo (Duane et al., 1987; Neal, 2011).

Weights w are given momenta p ~ N(0, M), M diagonal, and follow the dynamics of

    H(w, p) = U(w) + ½ Σ p² / M,        U(w) = -1/T ( Σ_i log p(y_i | x_i, w) + log p(w) ),

by L leapfrog steps of size h over all data,

    p ← p - h/2 ∇U(w),    w ← w + h p / M,    p ← p - h/2 ∇U(w);

the end is accepted with probability min(1, exp(H_start - H_end)), otherwise the chain stays, and counts, where it is.
During burn-in h may be learned by dual averaging (Hoffman and Gelman, 2014, sec. 3.2).

U must be one smooth function: bounds take sqrt(w² + τ²) for |w|, and radii and attack starts are drawn once a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference.algorithm import Algorithm, Info, Sweep, require_rates
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks import Params
from certibayes.posteriors import Posterior, Samples
from certibayes.support.stacks import map_samples

DIVERGENCE = 1000.0
"""An energy error beyond this, or one that is no number, is a divergence: the integrator has left the trajectory."""

Energy = Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]
"""Potential (C,) and its gradient (C, ...) at stacked parameters."""


class Adaptation(NamedTuple):
    """Dual averaging of the log of a factor on the step size; 0-d tensors."""

    log_factor: Tensor
    log_mean: Tensor
    error: Tensor


class HMCState(NamedTuple):
    """State of HMC with C chains; parameters are (C, ...), samples (draws, C, ...).

    Attributes:
        params: where the chains are.
        mass: by parameter, without a chain dimension.
        samples: what was kept so far.
        adaptation: of the step size.
        kept: number of draws kept.
        acceptance: sum of acceptance probabilities after burn-in, over all chains.
        accepted: moves accepted after burn-in, over all chains.
        divergences: after burn-in, over all chains.
        step: trajectories made.
        lr: step size before adaptation.
    """

    params: dict[str, Tensor]
    mass: dict[str, Tensor]
    samples: dict[str, Tensor]
    adaptation: Adaptation
    kept: Tensor
    acceptance: Tensor
    accepted: Tensor
    divergences: Tensor
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class HMC(Algorithm[HMCState]):
    """Hamiltonian Monte Carlo. An epoch is a trajectory that is kept, with one draw of each chain; burn-in is extra.

    Attributes:
        lr: step size of the leapfrog integrator, in units of the masses.
        leapfrog: steps of a trajectory.
        burn_in: trajectories that are made first and not kept, beside those that ``epochs`` asks for.
        burn_in_leapfrog: steps of those; None for as many as later.
        chains: chains that run at once.
        target_acceptance: mean acceptance that burn-in adapts the step size to; None keeps ``lr``.
        mass: of every weight, or "prior" for each layer's prior precision, or "fisher" for the diagonal of the
            posterior precision at the start (from squared gradients), which evens out narrow and wide directions.
        initial: "given" starts from the network's parameters, "prior" every chain from a draw of its own.
        smoothing: τ in sqrt(w² + τ²), which stands for |w| in the bounds that are sampled.
        chunk: examples at a time, to bound memory; None for 1,000 on a CPU and 10,000 on a GPU.
    """

    full_batch: ClassVar[bool] = True
    constant_rate: ClassVar[bool] = True

    lr: float = 1e-3
    leapfrog: int = 10
    burn_in: int = 10
    burn_in_leapfrog: int | None = None
    chains: int = 1
    target_acceptance: float | None = 0.8
    mass: float | str = 1.0
    initial: str = "given"
    smoothing: float = 1e-3
    chunk: int | None = None

    def __post_init__(self) -> None:
        require_rates(self.lr, (0.0, 0.0))
        steps = self.leapfrog if self.burn_in_leapfrog is None else min(self.leapfrog, self.burn_in_leapfrog)
        if min(steps, self.chains, 1 if self.chunk is None else self.chunk) < 1 or self.burn_in < 0:
            raise InvalidInput("leapfrog, chains and chunk are at least 1, and burn_in is at least 0.")
        if self.initial not in ("given", "prior"):
            raise InvalidInput(f'initial must be "given" or "prior", got {self.initial!r}.')
        if self.target_acceptance is not None and not 0.0 < self.target_acceptance < 1.0:
            raise InvalidInput(f"target_acceptance is a probability, got {self.target_acceptance}.")
        named = self.mass in ("prior", "fisher")
        if not (named if isinstance(self.mass, str) else math.isfinite(self.mass) and self.mass > 0):
            raise InvalidInput(f'mass must be positive, "prior" or "fisher", got {self.mass!r}.')
        if not (math.isfinite(self.smoothing) and self.smoothing >= 0):
            raise InvalidInput(f"smoothing must be a finite number >= 0, got {self.smoothing}.")

    @property
    def burn_in_epochs(self) -> int:
        """See the base class: an epoch is a trajectory."""
        return self.burn_in

    @property
    def wants_start(self) -> bool:
        """See the base class: from random weights a chain spends its life on the way to typical ones."""
        return self.initial == "given"

    def init(self, target: Target, params: Params, generator: torch.Generator) -> HMCState:
        """Place every chain at the network's parameters, or at its own draw from the prior."""
        draws = target.total_steps - self.burn_in
        start = {name: p.expand(self.chains, *p.shape).clone() for name, p in params.items()}
        if self.initial == "prior":
            start = {name: _normal(p, generator) * target.precision[name].rsqrt() for name, p in start.items()}
        scale = self.mass if isinstance(self.mass, float | int) else 1.0
        mass = {name: torch.full_like(p, scale) for name, p in params.items()}
        if self.mass == "prior":
            mass = {name: m * target.precision[name] for name, m in mass.items()}
        samples = {name: p.new_zeros(draws, self.chains, *p.shape) for name, p in params.items()}
        like = next(iter(params.values()))
        zero = like.new_zeros(())
        return HMCState(
            start, mass, samples, Adaptation(zero, zero, zero), zero, zero, zero, zero, zero,
            like.new_full((), self.lr),
        )  # fmt: skip

    def update(
        self, target: Target, state: HMCState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[HMCState, Info]:
        """Make one trajectory with every chain, and accept or reject its end."""
        target = target.smoothed(self.smoothing)
        # The one look on the host; a trajectory over all data takes far longer than that.
        made = int(state.step)
        burning = made < self.burn_in
        if made == 0 and self.mass == "fisher":
            state = state._replace(mass=_posterior_precision(target, state.params, batch, noise))

        chunk = self.chunk or (10_000 if batch.inputs.is_cuda else 1_000)

        def energy(params: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            return map_samples(lambda one: target.potential_and_gradient(one, batch, noise, chunk), params)

        adaptation = state.adaptation
        size = state.lr * torch.exp(adaptation.log_factor if burning else adaptation.log_mean)
        steps = self.burn_in_leapfrog if burning and self.burn_in_leapfrog else self.leapfrog
        momentum = {name: _normal(p, generator) * state.mass[name].sqrt() for name, p in state.params.items()}
        proposal, error, potential = trajectory(energy, state.params, momentum, state.mass, size, steps)
        diverged = ~(error < DIVERGENCE)
        acceptance = torch.where(diverged, 0.0, torch.exp(-error).clamp(max=1.0)).to(size)
        uniform = torch.rand(self.chains, generator=generator, dtype=size.dtype, device=size.device)
        accept = uniform < acceptance
        params = {name: torch.where(_chainwise(accept, p), proposal[name], p) for name, p in state.params.items()}
        loss = torch.where(accept, potential.end, potential.start).mean() * target.temperature / target.data_size
        info = {
            "loss": loss,
            "acceptance": acceptance.mean(),
            "divergences": diverged.sum().to(size),
            "step_size": size,
        }
        if burning and self.target_acceptance is not None:
            adaptation = _adapted(adaptation, acceptance.mean(), made + 1, self.target_acceptance)
        counted = 0.0 if burning else 1.0
        return state._replace(
            params=params,
            adaptation=adaptation,
            acceptance=state.acceptance + counted * acceptance.sum(),
            accepted=state.accepted + counted * accept.sum(),
            divergences=state.divergences + counted * diverged.sum(),
            step=state.step + 1,
        ), info

    def collects(self, target: Target, step: int) -> bool:
        """See the base class: every trajectory after burn-in, moved or not."""
        return step > self.burn_in

    def collect(self, target: Target, state: HMCState) -> HMCState:
        """Copy where the chains are into the next free place."""
        place = state.kept.long()[None]
        samples = {name: s.index_copy(0, place, state.params[name][None]) for name, s in state.samples.items()}
        return state._replace(samples=samples, kept=state.kept + 1)

    def mean_params(self, state: HMCState) -> dict[str, Tensor]:
        """See the base class: where the first chain is."""
        return {name: p[0] for name, p in state.params.items()}

    def finalize(self, target: Target, state: HMCState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the draws, chain by chain."""
        stacked = {name: s.transpose(0, 1).flatten(0, 1) for name, s in state.samples.items()}
        proposed = int(state.kept) * self.chains
        sampler = {
            "acceptance": float(state.acceptance) / proposed,
            "accepted": int(state.accepted),
            "proposed": proposed,
            "divergences": int(state.divergences),
            "step_size": float(state.lr * torch.exp(state.adaptation.log_mean)),
        }
        return Samples(target.network(), stacked, metadata={"chains": self.chains, "sampler": sampler})


class Ends(NamedTuple):
    """A value (C,) at both ends of a trajectory."""

    start: Tensor
    end: Tensor


def trajectory(
    energy: Energy,
    params: dict[str, Tensor],
    momentum: dict[str, Tensor],
    mass: Params,
    size: Tensor,
    steps: int,
) -> tuple[dict[str, Tensor], Tensor, Ends]:
    """Follow the dynamics by leapfrog steps.

    Args:
        energy: potential and gradient.
        params: (C, ...).
        momentum: (C, ...).
        mass: by parameter.
        size: of a step.
        steps: how many.

    Returns:
        The parameters at the end, the energy error H_end - H_start (C,) in float64, and the potential at both ends.
    """
    potential, gradient = energy(params)
    start = potential
    kinetic = _kinetic(momentum, mass)
    for _ in range(steps):
        momentum = {name: p - 0.5 * size * gradient[name] for name, p in momentum.items()}
        params = {name: w + size * momentum[name] / mass[name] for name, w in params.items()}
        potential, gradient = energy(params)
        momentum = {name: p - 0.5 * size * gradient[name] for name, p in momentum.items()}
    error = potential - start + _kinetic(momentum, mass) - kinetic
    return params, error, Ends(start, potential)


def _kinetic(momentum: Params, mass: Params) -> Tensor:
    """½ Σ p² / M of every chain, (C,), in float64."""
    terms = [(p.double().square() / mass[name]).reshape(len(p), -1).sum(1) for name, p in momentum.items()]
    return 0.5 * torch.stack(terms).sum(0)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _chainwise(accept: Tensor, like: Tensor) -> Tensor:
    """Give (C,) as many dimensions as ``like`` (C, ...)."""
    return accept.view(-1, *[1] * (like.dim() - 1))


def _adapted(state: Adaptation, acceptance: Tensor, made: int, wanted: float) -> Adaptation:
    """Make one step of dual averaging, with the constants of the paper: γ = 0.05, t₀ = 10, κ = 0.75."""
    error = torch.lerp(state.error, wanted - acceptance, 1 / (made + 10))
    # The paper shrinks towards ten times the first step size, since too small a step costs more than too large a one.
    log_factor = math.log(10.0) - math.sqrt(made) / 0.05 * error
    return Adaptation(log_factor, torch.lerp(state.log_mean, log_factor, made**-0.75), error)


def _posterior_precision(target: Target, params: Params, batch: Batch, noise: Noise) -> dict[str, Tensor]:
    """Diagonal of the posterior precision at the first chain's start: (squared gradients + prior precision) / T."""
    point = {name: p[0] for name, p in params.items()}
    total = {name: torch.zeros_like(p) + target.precision[name] for name, p in point.items()}
    for start in range(0, len(batch.inputs), 500):
        part = Batch(*(tensor[start : start + 500] for tensor in batch))
        starts = None if noise.starts is None else noise.starts[start : start + 500]
        squares = target.gradients(point, part, noise._replace(starts=starts)).squares
        total = {name: t + squares[name] for name, t in total.items()}
    return {name: t / target.temperature for name, t in total.items()}
