"""SGHMC with cyclical steps (Chen et al., 2014; Zhang et al., 2020, "Cyclical stochastic gradient MCMC").

Hamiltonian dynamics with gradients of mini-batches and friction α in the place of an acceptance test. With N examples,
prior precision δ, temperature T, the gradient g of a batch's mean loss and ξ ~ N(0, 1),

    p ← (1 - α) p - sqrt(r) (g + δ/N w) + sqrt(2 α T / N) ξ,        w ← w + sqrt(r) p,
    r = lr/2 (cos(π c) + 1),

where c in [0, 1) is the place in the current cycle. Each cycle first explores without ξ, like gradient descent, then
samples; large rates at its start carry the chain to another mode, small ones at its end describe that mode. The bias of
the sampler goes to 0 with the rate.

At a constant rate this is the papers' v = sqrt(r) p. When r falls, v must shrink with it: left as it is, it belongs to
a larger rate, is too fast, and widens the draws until friction has worn it down. The law of p does not depend on r.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference._draws import Draws, room_for, with_draw
from certibayes.inference._statistics import with_statistics
from certibayes.inference._streams import normal_like
from certibayes.inference.algorithm import Algorithm, Info, Sweep, require_rates
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks import Params
from certibayes.posteriors import Posterior, Samples
from certibayes.support.fused import fused


class SGHMCState(NamedTuple):
    """State of SGHMC."""

    params: dict[str, Tensor]
    momentum: dict[str, Tensor]
    draws: Draws
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class SGHMC(Algorithm[SGHMCState]):
    """Stochastic gradient Hamiltonian Monte Carlo with cyclical steps.

    Attributes:
        lr: rate at the start of each cycle.
        friction: α; 1 - α is the momentum.
        cycles: number of cycles.
        exploration: fraction of each cycle that is not sampled.
        samples: draws to keep, as many from each cycle.
        floor: smallest rate, relative to ``lr``, so that the end of a cycle still moves.
    """

    elementwise: ClassVar[bool] = True
    constant_rate: ClassVar[bool] = True
    robust_temperature: ClassVar[float] = 0.1

    lr: float = 0.1
    friction: float = 0.1
    cycles: int = 4
    exploration: float = 0.7
    samples: int = 36
    floor: float = 0.0

    def __post_init__(self) -> None:
        require_rates(self.lr, (self.exploration, 0.0))
        if not (0.0 < self.friction <= 1.0 and 0.0 <= self.floor <= 1.0):
            raise InvalidInput(f"friction and floor are fractions, got {self.friction}, {self.floor}.")
        if self.cycles < 1 or self.samples < self.cycles or self.samples % self.cycles:
            raise InvalidInput(f"samples must be a multiple of cycles, got {self.samples} and {self.cycles}.")

    @property
    def collects_after(self) -> float:
        """See the base class: the first cycle explores before it samples."""
        return self.exploration / self.cycles

    def init(self, target: Target, params: Params, generator: torch.Generator) -> SGHMCState:
        """Start from the network's parameters, at rest."""
        kept = sum(self.collects(target, step) for step in range(1, target.total_steps + 1))
        if kept < self.samples:
            raise InvalidInput(
                f"{target.total_steps} steps have room for {kept} of {self.samples} samples. Train for more epochs, or "
                "ask for fewer samples."
            )
        like = next(iter(params.values()))
        momentum = {name: torch.zeros_like(p) for name, p in params.items()}
        draws = room_for(self.samples, params)
        return SGHMCState(dict(params), momentum, draws, like.new_zeros(()), like.new_full((), self.lr))

    def _cycle(self, target: Target) -> int:
        """Steps of a cycle."""
        return max(1, math.ceil(target.total_steps / self.cycles))

    def update(
        self, target: Target, state: SGHMCState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[SGHMCState, Info]:
        """Make one step."""
        loss, gradient = target.mean_loss_and_gradient(state.params, batch, noise)
        cycle = self._cycle(target)
        place = torch.remainder(state.step, cycle) / cycle
        rate = state.lr * (self.floor + (1.0 - self.floor) * 0.5 * (torch.cos(math.pi * place) + 1.0))
        sampling = (place >= self.exploration).to(rate)
        variance = 2.0 * self.friction * target.temperature / target.data_size
        noise_std = (variance.sqrt() if isinstance(variance, Tensor) else math.sqrt(variance)) * sampling
        size = rate.sqrt()
        params, momentum = {}, {}
        for name, w in state.params.items():
            normal = normal_like(w, generator)
            params[name], momentum[name] = _move(
                w, state.momentum[name], gradient[name], target.prior[name], normal, size, noise_std, self.friction
            )
        new = state._replace(params=params, momentum=momentum, step=state.step + 1)
        return new, {"loss": loss, "rate": rate}

    def collects(self, target: Target, step: int) -> bool:
        """See the base class: evenly over the sampled part of each cycle, its last step included."""
        cycle, wanted = self._cycle(target), self.samples // self.cycles
        number, place = divmod(step - 1, cycle)
        # The last cycle may be cut short.
        length = min(cycle, target.total_steps - number * cycle)
        explored = math.ceil(self.exploration * cycle)
        sampled = length - explored
        if sampled < wanted or place < explored:
            return False
        done = place - explored
        return (done + 1) * wanted // sampled > done * wanted // sampled

    def collect(self, target: Target, state: SGHMCState) -> SGHMCState:
        """Keep the iterate."""
        return state._replace(draws=with_draw(state.draws, state.params))

    def mean_params(self, state: SGHMCState) -> dict[str, Tensor]:
        """See the base class: the iterate."""
        return state.params

    def finalize(self, target: Target, state: SGHMCState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the draws, in order."""
        stacked = with_statistics(target, state.draws.values, sweep)
        metadata = {"chains": 1, "sampler": {"step_size": float(state.lr)}}
        return Samples(target.network(), stacked, metadata=metadata)


@fused
def _move(  # noqa: PLR0913 - a formula
    w: Any, u: Any, g: Any, prior: Any, normal: Any, size: Any, noise_std: Any, friction: float
) -> tuple[Any, ...]:
    slope = torch.addcmul(g, w, prior)
    u = normal.mul_(noise_std).add_(u, alpha=1.0 - friction).sub_(slope.mul_(size))
    return w + size * u, u
