"""NoisyAdam (Zhang et al., 2018, "Noisy natural gradient as variational inference").

A mean-field Gaussian fitted by natural gradients, with Adam's running means but no square root. With N examples, prior
precision δ, temperature T, and the mean gradient g of the loss over a batch of B at a sample w ~ q,

    f ← β₂ f + (1 - β₂) B g²,        v ← β₁ v + (1 - β₁) (g + δ/N w),
    m ← m - lr v / (1 - β₁ᵗ) / (f + δ/N + damping),
    s² = T / (N f + δ).

Where the likelihood has kinks, the curvature k of these joins f in both; see ``inference._kink``.

f estimates the Fisher information of one example. The square of a batch's mean gradient is 1/B of that where gradients
average out, as they do near an optimum, so it is multiplied by B; with B = 1 it is the paper's formula to the letter.
The second moment f and the standard deviation s are different things and are kept apart.
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


class NoisyAdamState(NamedTuple):
    """State of NoisyAdam; everything but the last two has the shape of the parameters.

    Where there are no kinks, ``slopes``, the running mean of the loss's derivative with respect to |w|, and ``kinks``,
    their curvature, are empty. Where the weights of two classes have a kink, ``slopes`` has an entry more, ``PAIRS``.
    """

    mean: dict[str, Tensor]
    momentum: dict[str, Tensor]
    fisher: dict[str, Tensor]
    slopes: dict[str, Tensor]
    kinks: dict[str, Tensor]
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class NoisyAdam(Algorithm[NoisyAdamState]):
    """Noisy Adam.

    Attributes:
        lr: step of the natural gradient.
        betas: decay of momentum and Fisher information.
        damping: added to the denominator of the step, not to the precision ("extrinsic damping").
        initial_std: standard deviation to start from.
        kinks: whether the curvature of |w| counts, where the likelihood has bounds. Without it weights near 0 are far
            too wide for these, as in the paper's algorithm.
    """

    elementwise: ClassVar[bool] = True
    learns_prior_in: ClassVar[str] = "update"
    robust_temperature: ClassVar[float] = 0.01
    refresh_every: ClassVar[int] = 20

    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    damping: float = 0.0
    initial_std: float = 0.01
    kinks: bool = True

    def __post_init__(self) -> None:
        require_rates(self.lr, self.betas)
        if not (self.initial_std > 0 and self.damping >= 0):
            raise InvalidInput("initial_std must be positive and damping not negative.")

    def init(self, target: Target, params: Params, generator: torch.Generator) -> NoisyAdamState:
        """Start at the network's parameters, with ``initial_std`` or, where it is smaller, the prior's std."""
        like = next(iter(params.values()))
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        fisher = curvature_for_std(target, params, self.initial_std)
        slopes = target.zero_slopes(params) if self.kinks else {}
        kinks = zeros if slopes else {}
        step, lr = like.new_zeros(()), like.new_full((), self.lr)
        return NoisyAdamState(dict(params), zeros, fisher, slopes, kinks, step, lr)

    def update(
        self, target: Target, state: NoisyAdamState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[NoisyAdamState, Info]:
        """Sample weights, and move mean and Fisher information."""
        step = state.step + 1
        sample = sample_weights(target, state.mean, state.fisher, state.kinks, generator)
        slopes: dict[str, Tensor] = {}
        if state.slopes:
            loss, gradient, found = target.mean_loss_and_slopes(sample, batch, noise)
            slopes = {name: torch.lerp(slope, state.slopes[name], self.betas[1]) for name, slope in found.items()}
        else:
            loss, gradient = target.mean_loss_and_gradient(sample, batch, noise)
        (rate,) = corrected_rate(step, state.lr, self.betas[0])
        mean, momentum, fisher = {}, {}, {}
        for name, m in state.mean.items():
            mean[name], momentum[name], fisher[name] = _move(
                m,
                state.momentum[name],
                state.fisher[name],
                state.kinks.get(name),
                gradient[name],
                sample[name],
                target.prior[name],
                rate,
                *self.betas,
                len(batch.inputs),
                self.damping,
            )
        return NoisyAdamState(mean, momentum, fisher, slopes, state.kinks, step, state.lr), {"loss": loss}

    def refresh(self, target: Target, state: NoisyAdamState) -> NoisyAdamState:
        """See the base class: the curvature of the kinks."""
        return refreshed(target, state, state.fisher)

    def mean_params(self, state: NoisyAdamState) -> dict[str, Tensor]:
        """See the base class: the mean."""
        return state.mean

    def standard_deviations(self, target: Target, state: NoisyAdamState) -> dict[str, Tensor]:
        """See the base class."""
        return standard_deviations(target, state.fisher, state.kinks)

    def finalize(self, target: Target, state: NoisyAdamState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the Gaussian."""
        state = refreshed(target, state, state.fisher, PRECISE)
        return DiagonalGaussian(target.network(), state.mean, self.standard_deviations(target, state))


@fused
def _move(  # noqa: PLR0913 - a formula
    m: Any, v: Any, f: Any, kink: Any, g: Any, w: Any, prior: Any, rate: Any, beta1: float, beta2: float, size: int,
    damping: float,
) -> tuple[Any, ...]:  # fmt: skip
    f = (f * beta2).addcmul_(g, g, value=(1 - beta2) * size)
    v = torch.addcmul(g, w, prior).lerp_(v, beta1)
    precision = f + (prior + damping)
    return torch.addcdiv(m, v * rate, precision if kink is None else precision.add_(kink), value=-1), v, f
