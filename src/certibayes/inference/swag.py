"""SWAG: stochastic weight averaging, Gaussian (Maddox et al., 2019).

Gradient descent with momentum, or Adam, at a constant rate; from a fraction ``start`` of training on, the iterate at
the end of every epoch enters running moments and, as one of the last K, a matrix of deviations D from the running mean:

    q(w) = N( m, ½ diag(s²) + D Dᵀ / (2 (K - 1)) ),        s² = mean of w² - m²,

or N(m, diag(s²)) with K = 0. The temperature T scales the covariance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference.algorithm import Algorithm, Info, Sweep, require_rates
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks import Params
from certibayes.posteriors import DiagonalGaussian, LowRankGaussian, Posterior
from certibayes.support.adam import Moments, adam_step, zero_moments
from certibayes.support.descent import momentum_step

BETA2 = 0.999
"""Adam's second beta."""


class SWAGState(NamedTuple):
    """State of SWAG; deviations have a leading dimension K, everything but the last three is by parameter.

    SGD keeps its momentum in the first moment and has no second.
    """

    params: dict[str, Tensor]
    moments: Moments
    mean: dict[str, Tensor]
    square: dict[str, Tensor]
    deviations: dict[str, Tensor]
    collected: Tensor
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class SWAG(Algorithm[SWAGState]):
    """Stochastic weight averaging, Gaussian.

    Attributes:
        lr: learning rate; leave it constant while iterates are collected: their variance is the posterior's.
        momentum: of gradient descent; Adam's first beta.
        start: fraction of training after which iterates are collected.
        rank: number K of deviations kept; 0 for a diagonal Gaussian.
        every: steps between collected iterates; None for one per epoch.
        optimizer: ``"sgd"``, as the paper has it, or ``"adam"``, with which deep networks are trained for certificates.
    """

    elementwise: ClassVar[bool] = True
    constant_rate: ClassVar[bool] = True
    temperature_in: ClassVar[str] = "finalize"

    lr: float = 0.1
    momentum: float = 0.9
    start: float = 0.5
    rank: int = 20
    every: int | None = None
    optimizer: str = "sgd"

    def __post_init__(self) -> None:
        require_rates(self.lr, (self.momentum, 0.0))
        if not (0.0 <= self.start < 1.0 and (self.rank == 0 or self.rank > 1)):
            raise InvalidInput(f"need 0 <= start < 1 and rank 0 or at least 2, got {self.start}, {self.rank}.")
        if self.every is not None and self.every < 1:
            raise InvalidInput(f"every must be at least 1, got {self.every}.")
        if self.optimizer not in ("sgd", "adam"):
            raise InvalidInput(f'optimizer must be "sgd" or "adam", got {self.optimizer!r}.')

    @property
    def collects_after(self) -> float:
        """See the base class."""
        return self.start

    def init(self, target: Target, params: Params, generator: torch.Generator) -> SWAGState:
        """Start from the network's parameters, with nothing collected."""
        expected = sum(self.collects(target, step) for step in range(1, target.total_steps + 1))
        if expected < 2:
            raise InvalidInput(
                f"SWAG would collect {expected} iterates, which have no variance. Train for more epochs, start "
                "earlier, or collect more often (every=...)."
            )
        like = next(iter(params.values()))
        mean, square = ({name: torch.zeros_like(p) for name, p in params.items()} for _ in range(2))
        moments = zero_moments(params)
        if self.optimizer == "sgd":
            moments = Moments(moments.first, {})
        deviations = {name: p.new_zeros(self.rank, *p.shape) for name, p in params.items()} if self.rank else {}
        nothing = like.new_zeros(())
        lr = like.new_full((), self.lr)
        return SWAGState(dict(params), moments, mean, square, deviations, nothing, nothing.clone(), lr)

    def update(
        self, target: Target, state: SWAGState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[SWAGState, Info]:
        """Make one step of gradient descent, or of Adam."""
        loss, gradient = target.mean_loss_and_gradient(state.params, batch, noise)
        step, moments = state.step + 1, state.moments
        if self.optimizer == "adam":
            betas = (self.momentum, BETA2)
            params, moments = adam_step(state.params, gradient, target.prior, moments, step, state.lr, betas)
        else:
            params, velocity = momentum_step(
                state.params, gradient, target.prior, moments.first, state.lr, self.momentum
            )
            moments = Moments(velocity, {})
        return state._replace(params=params, moments=moments, step=step), {"loss": loss}

    def collects(self, target: Target, step: int) -> bool:
        """See the base class: once per epoch, or every ``every`` steps, after ``start``."""
        every = target.epoch_steps if self.every is None else self.every
        return step > self.start * target.total_steps and step % every == 0

    def collect(self, target: Target, state: SWAGState) -> SWAGState:
        """Enter the iterate into the moments, and its deviation in the place of the oldest."""
        collected = state.collected + 1
        mean = {name: torch.lerp(m, state.params[name], 1 / collected) for name, m in state.mean.items()}
        square = {name: torch.lerp(s, state.params[name].square(), 1 / collected) for name, s in state.square.items()}
        deviations = {
            name: torch.cat([d[1:], (state.params[name] - mean[name])[None]]) for name, d in state.deviations.items()
        }
        return state._replace(mean=mean, square=square, deviations=deviations, collected=collected)

    def mean_params(self, state: SWAGState) -> dict[str, Tensor]:
        """See the base class: the mean once there is one, the iterate before."""
        return {name: torch.where(state.collected > 0, m, state.params[name]) for name, m in state.mean.items()}

    def finalize(self, target: Target, state: SWAGState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the Gaussian."""
        collected = int(state.collected)
        variance = {name: (s - state.mean[name].square()).clamp(min=0) for name, s in state.square.items()}
        if not self.rank:
            std = {name: (target.temperature * v).sqrt() for name, v in variance.items()}
            return DiagonalGaussian(target.network(), state.mean, std)
        std = {name: (0.5 * target.temperature * v).sqrt() for name, v in variance.items()}
        kept = min(collected, self.rank)
        scale = (target.temperature / (2 * (kept - 1))) ** 0.5
        factors = {name: scale * d[-kept:] for name, d in state.deviations.items()}
        return LowRankGaussian(target.network(), state.mean, std, factors)
