"""VOGN: variational online Gauss-Newton (Khan et al., 2018; Osawa et al., 2019).

A mean-field Gaussian q(w) = N(m, diag(s²)) fitted by natural gradients. With N examples, prior precision δ,
temperature T and the mean h of squared per-example gradients (the Gauss-Newton curvature) at a sample w ~ q,

    h̄ ← β₂ h̄ + (1 - β₂) h,        g̃ ← β₁ g̃ + (1 - β₁) (g + δ/N m),
    m ← m - lr g̃ / (1 - β₁ᵗ) / (h̄ + δ/N),
    s² = T / (N h̄ + δ).

Where the likelihood has kinks, the curvature k of these joins h̄ in both; see ``inference._kink``.

The squares are per example, h = 1/B Σ_b (∇ℓ_b)², not the square of the mean gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference._kink import PRECISE, refreshed
from certibayes.inference._meanfield import curvature_for_std, sample_weights, standard_deviations
from certibayes.inference.algorithm import Algorithm, Info, Sweep, require_rates
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks import Params
from certibayes.posteriors import DiagonalGaussian, Posterior
from certibayes.support.adam import corrected_rate
from certibayes.support.fused import fused


class VOGNState(NamedTuple):
    """State of VOGN; everything but the last two has the shape of the parameters.

    Where there are no kinks, ``slopes``, the running mean of the loss's derivative with respect to |w|, and ``kinks``,
    their curvature, are empty. Where the weights of two classes have a kink, ``slopes`` has an entry more, ``PAIRS``.
    """

    mean: dict[str, Tensor]
    momentum: dict[str, Tensor]
    curvature: dict[str, Tensor]
    slopes: dict[str, Tensor]
    kinks: dict[str, Tensor]
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class VOGN(Algorithm[VOGNState]):
    """Variational online Gauss-Newton.

    Attributes:
        lr: step of the natural gradient.
        betas: decay of momentum and curvature.
        initial_std: standard deviation to start from; small, since uncertain weights make every interval wide. It only
            sets the initial curvature, which is learned from then on.
        kinks: whether the curvature of |w| counts, where the likelihood has bounds. Without it weights near 0 are far
            too wide for these, as in the paper's algorithm.
    """

    elementwise: ClassVar[bool] = True
    learns_prior_in: ClassVar[str] = "update"
    per_example: ClassVar[bool] = True
    robust_temperature: ClassVar[float] = 0.01
    refresh_every: ClassVar[int] = 20

    lr: float = 0.003
    betas: tuple[float, float] = (0.9, 0.99)
    initial_std: float = 0.01
    kinks: bool = True

    def __post_init__(self) -> None:
        require_rates(self.lr, self.betas)
        if not self.initial_std > 0:
            raise InvalidInput(f"initial_std must be positive, got {self.initial_std}.")

    def init(self, target: Target, params: Params, generator: torch.Generator) -> VOGNState:
        """Start at the network's parameters, with ``initial_std`` or, where it is smaller, the prior's std."""
        curvature = curvature_for_std(target, params, self.initial_std)
        like = next(iter(params.values()))
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        slopes = target.zero_slopes(params) if self.kinks else {}
        kinks = zeros if slopes else {}
        step, lr = like.new_zeros(()), like.new_full((), self.lr)
        return VOGNState(dict(params), zeros, curvature, slopes, kinks, step, lr)

    def update(
        self, target: Target, state: VOGNState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[VOGNState, Info]:
        """Sample weights, and move mean and curvature."""
        step = state.step + 1
        sample = sample_weights(target, state.mean, state.curvature, state.kinks, generator)
        values, gradient, squares, magnitudes = target.gradients(sample, batch, noise)
        # Gradients are of the log-likelihood; the loss is its negative.
        weight = (self.betas[1] - 1) / len(batch.inputs)
        slopes = {
            name: _running_sum(slope, magnitudes[name], self.betas[1], weight)[0]
            for name, slope in state.slopes.items()
        }
        (rate,) = corrected_rate(step, state.lr, self.betas[0])
        mean, momentum, curvature = {}, {}, {}
        for name, m in state.mean.items():
            mean[name], momentum[name], curvature[name] = _move(
                m,
                state.momentum[name],
                state.curvature[name],
                state.kinks.get(name),
                gradient[name],
                squares[name],
                target.prior[name],
                rate,
                *self.betas,
                len(batch.inputs),
            )
        state = VOGNState(mean, momentum, curvature, slopes, state.kinks, step, state.lr)
        return state, {"loss": -values.mean(0)}

    def refresh(self, target: Target, state: VOGNState) -> VOGNState:
        """See the base class: the curvature of the kinks."""
        return refreshed(target, state, state.curvature)

    def mean_params(self, state: VOGNState) -> dict[str, Tensor]:
        """See the base class: the mean."""
        return state.mean

    def standard_deviations(self, target: Target, state: VOGNState) -> dict[str, Tensor]:
        """See the base class."""
        return standard_deviations(target, state.curvature, state.kinks)

    def finalize(self, target: Target, state: VOGNState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the Gaussian."""
        state = refreshed(target, state, state.curvature, PRECISE)
        return DiagonalGaussian(target.network(), state.mean, self.standard_deviations(target, state))


@fused
def _running_sum(total: Any, value: Any, decay: float, weight: float) -> tuple[Any, ...]:
    return ((total * decay).add_(value, alpha=weight),)


@fused
def _move(  # noqa: PLR0913 - a formula
    m: Any,
    v: Any,
    h: Any,
    kink: Any,
    g: Any,
    squares: Any,
    prior: Any,
    rate: Any,
    beta1: float,
    beta2: float,
    size: int,
) -> tuple[Any, ...]:
    # Gradients are of the log-likelihood; the loss is its negative.
    v = (m * prior).sub_(g, alpha=1 / size).lerp_(v, beta1)
    h = (h * beta2).add_(squares, alpha=(1 - beta2) / size)
    precision = h + prior
    return torch.addcdiv(m, v * rate, precision if kink is None else precision.add_(kink), value=-1), v, h
