"""IVON: improved variational online Newton (Shen et al., 2024).

"Variational learning is effective for large deep networks", ICML 2024.

A mean-field Gaussian q(w) = N(m, diag(s²)) fitted by natural gradients, whose curvature h comes from the
reparameterization trick instead of squared gradients. With N examples, prior precision δ, temperature T and the
gradient g of the mean loss at a sample w = m + s ε,

    ĥ = g ε / s,        h ← β₂ h + (1 - β₂) ĥ + ½ (1 - β₂)² (h - ĥ)² / (h + δ/N),
    v ← β₁ v + (1 - β₁) g,
    m ← m - lr ( v / (1 - β₁ᵗ) + δ/N m ) / (h + δ/N),
    s² = T / (N h + δ).

The quadratic term (a Riemannian correction) keeps h + δ/N positive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference._meanfield import curvature_for_std, sample_weights, standard_deviations
from certibayes.inference.algorithm import Algorithm, Info, Sweep, require_rates
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks import Params
from certibayes.posteriors import DiagonalGaussian, Posterior
from certibayes.support.fused import fused


class IVONState(NamedTuple):
    """State of IVON; everything but the last two has the shape of the parameters."""

    mean: dict[str, Tensor]
    momentum: dict[str, Tensor]
    hessian: dict[str, Tensor]
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class IVON(Algorithm[IVONState]):
    """Improved variational online Newton.

    Attributes:
        lr: step of the natural gradient.
        betas: decay of momentum and curvature; the estimate of the curvature is noisy, so the second is close to 1.
        initial_std: standard deviation to start from at temperature 1; at another it is sqrt(T) times that.
    """

    elementwise: ClassVar[bool] = True
    learns_prior_in: ClassVar[str] = "update"

    lr: float = 0.8
    betas: tuple[float, float] = (0.9, 0.9998)
    initial_std: float = 0.01

    def __post_init__(self) -> None:
        require_rates(self.lr, self.betas)
        if not self.initial_std > 0:
            raise InvalidInput(f"initial_std must be positive, got {self.initial_std}.")

    def init(self, target: Target, params: Params, generator: torch.Generator) -> IVONState:
        """Start at the network's parameters, with ``initial_std`` sqrt(T) or, where it is smaller, the prior's std."""
        like = next(iter(params.values()))
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        # The estimate of the curvature is averaged for long, so the first steps are as long as its start makes
        # them; it must not depend on the temperature, or a rate that is right at one would be wrong at another.
        hessian = curvature_for_std(target, params, self.initial_std * math.sqrt(target.temperature))
        return IVONState(dict(params), zeros, hessian, like.new_zeros(()), like.new_full((), self.lr))

    def update(
        self, target: Target, state: IVONState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[IVONState, Info]:
        """Sample weights, and move mean and curvature."""
        step = state.step + 1
        sample = sample_weights(target, state.mean, state.hessian, {}, generator)
        loss, gradient = target.mean_loss_and_gradient(sample, batch, noise)
        correction = 1 - self.betas[0] ** step
        mean, momentum, hessian = {}, {}, {}
        for name, m in state.mean.items():
            mean[name], momentum[name], hessian[name] = _move(
                m,
                state.momentum[name],
                state.hessian[name],
                gradient[name],
                sample[name],
                target.prior[name],
                correction,
                state.lr,
                *self.betas,
                target.data_size / target.temperature,
            )
        return IVONState(mean, momentum, hessian, step, state.lr), {"loss": loss}

    def mean_params(self, state: IVONState) -> dict[str, Tensor]:
        """See the base class: the mean."""
        return state.mean

    def standard_deviations(self, target: Target, state: IVONState) -> dict[str, Tensor]:
        """See the base class."""
        return standard_deviations(target, state.hessian, {})

    def finalize(self, target: Target, state: IVONState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the Gaussian."""
        return DiagonalGaussian(target.network(), state.mean, self.standard_deviations(target, state))


@fused
def _move(  # noqa: PLR0913 - a formula
    m: Any, v: Any, h: Any, g: Any, w: Any, prior: Any, correction: Any, lr: Any, beta1: float, beta2: float, n: float
) -> tuple[Any, ...]:
    precision = h + prior
    # g ε / s with ε = (w - m) / s, and 1 / s² = n (h + δ/N) with n = N / T.
    estimate = (w - m).mul_(g).mul_(precision).mul_(n)
    riemannian = (h - estimate).square_().div_(precision).mul_(0.5 * (1 - beta2) ** 2)
    h = torch.lerp(estimate, h, beta2).add_(riemannian)
    v = torch.lerp(g, v, beta1)
    direction = (v / correction).addcmul_(m, prior).div_(h + prior)
    return torch.addcmul(m, direction, lr, value=-1), v, h
