"""HMC: Hamiltonian Monte Carlo (Duane et al., 1987; Neal, 2011).

Weights w are given momenta p ~ N(0, M), M diagonal, and follow the dynamics of

    H(w, p) = U(w) + ½ Σ p² / M,        U(w) = -1/T ( Σ_i log p(y_i | x_i, w) + log p(w) ),

by leapfrog steps over all data; the end is accepted or rejected, and where it is rejected the chain stays, and counts,
where it is (``leapfrog``). During burn-in the size of a step may be learned (``dual_averaging``).

U must be one smooth function: bounds take sqrt(w² + τ²) for |w|, and radii and attack starts are drawn once per run.

Where ``fit`` may round factors to TF32, the steps between the ends of a trajectory do; both ends are computed in
float32, so that what is accepted, and the distribution of the chain, are those of float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference._draws import Draws, room_for, with_draw
from certibayes.inference._dual_averaging import DualAveraging, adapted
from certibayes.inference._leapfrog import Position, move, normal
from certibayes.inference._memory import examples_at_once
from certibayes.inference.algorithm import Algorithm, Info, Sweep, require_rates
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks import Params
from certibayes.posteriors import Posterior, Samples
from certibayes.support.arithmetic import repeatable_kernels
from certibayes.support.stacks import map_samples


class HMCState(NamedTuple):
    """State of HMC with C chains.

    Attributes:
        position: where the chains are, with potential and gradient there; both are 0 before the first trajectory.
        mass: by parameter, without a chain dimension.
        draws: what was kept so far, (draws, C, ...).
        adaptation: of the step size.
        acceptance: sum of acceptance probabilities after burn-in, over all chains.
        accepted: moves accepted after burn-in, over all chains.
        divergences: after burn-in, over all chains.
        step: trajectories made.
        lr: step size before adaptation.
    """

    position: Position
    mass: dict[str, Tensor]
    draws: Draws
    adaptation: DualAveraging
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
        chunk: examples at a time, to bound memory; None for 1,000 on a CPU, and on a GPU for as many as fit into a
            quarter of its memory.
    """

    full_batch: ClassVar[bool] = True
    per_example: ClassVar[bool] = True
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
        start = {name: p.expand(self.chains, *p.shape).clone() for name, p in params.items()}
        if self.initial == "prior":
            start = {name: normal(p, generator) * target.precision[name].rsqrt() for name, p in start.items()}
        # Without data nothing is known of the potential yet; the first trajectory computes it.
        unknown = {name: torch.zeros_like(p) for name, p in start.items()}
        like = next(iter(params.values()))
        position = Position(start, like.new_zeros(self.chains, dtype=torch.float64), unknown)
        scale = self.mass if isinstance(self.mass, float | int) else 1.0
        mass = {name: torch.full_like(p, scale) for name, p in params.items()}
        if self.mass == "prior":
            mass = {name: m * target.precision[name] for name, m in mass.items()}
        draws = room_for(target.total_steps - self.burn_in, start)
        zero = like.new_zeros(())
        adaptation = DualAveraging(zero, zero, zero)
        return HMCState(position, mass, draws, adaptation, zero, zero, zero, zero, like.new_full((), self.lr))

    def update(
        self, target: Target, state: HMCState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[HMCState, Info]:
        """Make one trajectory with every chain, and accept or reject its end."""
        target = target.smoothed(self.smoothing)
        chunk = self.chunk or examples_at_once(target.graph, batch.inputs, self.chains)

        def between(params: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            return map_samples(lambda one: target.potential_and_gradient(one, batch, noise, chunk), params)

        def energy(params: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            with repeatable_kernels("highest"):
                return between(params)

        # The one look on the host; a trajectory over all data takes far longer than that.
        made = int(state.step)
        burning = made < self.burn_in
        if made == 0:
            params = state.position.params
            state = state._replace(position=Position(params, *energy(params)))
            if self.mass == "fisher":
                state = state._replace(mass=_posterior_precision(target, params, batch, noise))

        adaptation = state.adaptation
        size = state.lr * torch.exp(adaptation.log_factor if burning else adaptation.log_mean)
        steps = self.burn_in_leapfrog if burning and self.burn_in_leapfrog else self.leapfrog
        position, acceptance, accepted, diverged = move(
            energy, between, state.position, state.mass, size, steps, generator
        )  # fmt: skip
        info = {
            "loss": position.potential.mean() * target.temperature / target.data_size,
            "acceptance": acceptance.mean(),
            "divergences": diverged.sum().to(size),
            "step_size": size,
        }
        if burning and self.target_acceptance is not None:
            adaptation = adapted(adaptation, acceptance.mean(), made + 1, self.target_acceptance)
        counted = 0.0 if burning else 1.0
        return state._replace(
            position=position,
            adaptation=adaptation,
            acceptance=state.acceptance + counted * acceptance.sum(),
            accepted=state.accepted + counted * accepted.sum(),
            divergences=state.divergences + counted * diverged.sum(),
            step=state.step + 1,
        ), info

    def collects(self, target: Target, step: int) -> bool:
        """See the base class: every trajectory after burn-in, moved or not."""
        return step > self.burn_in

    def collect(self, target: Target, state: HMCState) -> HMCState:
        """Keep where the chains are."""
        return state._replace(draws=with_draw(state.draws, state.position.params))

    def mean_params(self, state: HMCState) -> dict[str, Tensor]:
        """See the base class: where the first chain is."""
        return {name: p[0] for name, p in state.position.params.items()}

    def finalize(self, target: Target, state: HMCState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the draws, chain by chain."""
        stacked = {name: v.transpose(0, 1).flatten(0, 1) for name, v in state.draws.values.items()}
        proposed = int(state.draws.kept) * self.chains
        sampler = {
            "acceptance": float(state.acceptance) / proposed,
            "accepted": int(state.accepted),
            "proposed": proposed,
            "divergences": int(state.divergences),
            "step_size": float(state.lr * torch.exp(state.adaptation.log_mean)),
        }
        return Samples(target.network(), stacked, metadata={"chains": self.chains, "sampler": sampler})


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
