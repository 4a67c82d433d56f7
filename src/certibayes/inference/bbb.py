"""BBB: Bayes by Backprop (Blundell et al., 2015).

A mean-field Gaussian q(w) = N(m, diag(s²)), s = softplus(ρ), fitted by gradients of the evidence lower bound through
the reparameterization w = m + s ε. Per example, with N examples, prior precision δ and temperature T,

    loss = E_q[ -1/B Σ_b log p(y_b | x_b, w) ] + 1/N ( δ/2 E_q[w²] - T H(q) ),

which at T = 1 is the negative ELBO over N: KL(q || prior) is summed over weights, not averaged. The expectation of
the likelihood takes one sample; the rest is in closed form. Adam makes the steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.errors import InvalidInput
from certibayes.inference._streams import normal_like
from certibayes.inference.algorithm import Algorithm, Info, Sweep, require_rates
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks import Params
from certibayes.posteriors import DiagonalGaussian, Posterior
from certibayes.support.adam import Moments, adam_formula, corrections, zero_moments
from certibayes.support.fused import fused


class BBBState(NamedTuple):
    """State of BBB; means and ρ have the shape of the parameters, moments exist for both."""

    mean: dict[str, Tensor]
    rho: dict[str, Tensor]
    mean_moments: Moments
    rho_moments: Moments
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class BBB(Algorithm[BBBState]):
    """Bayes by Backprop.

    Attributes:
        lr: learning rate of Adam.
        betas: decay of Adam's moments.
        initial_std: standard deviation to start from; small, since uncertain weights make every interval wide.
    """

    elementwise: ClassVar[bool] = True
    learns_prior_in: ClassVar[str] = "update"

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    initial_std: float = 0.01

    def __post_init__(self) -> None:
        require_rates(self.lr, self.betas)
        if not self.initial_std > 0:
            raise InvalidInput(f"initial_std must be positive, got {self.initial_std}.")

    def init(self, target: Target, params: Params, generator: torch.Generator) -> BBBState:
        """Start at the network's parameters with standard deviation ``initial_std``."""
        rho = {name: torch.full_like(p, math.log(math.expm1(self.initial_std))) for name, p in params.items()}
        like = next(iter(params.values()))
        moments = zero_moments(params), zero_moments(params)
        return BBBState(dict(params), rho, *moments, like.new_zeros(()), like.new_full((), self.lr))

    def update(
        self, target: Target, state: BBBState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[BBBState, Info]:
        """Sample weights, and move means and standard deviations along the gradient of the bound."""
        sample, std, normal = {}, {}, {}
        for name, m in state.mean.items():
            normal[name] = normal_like(m, generator)
            sample[name], std[name] = _sample(m, state.rho[name], normal[name])
        loss, gradient = target.mean_loss_and_gradient(sample, batch, noise)
        step = state.step + 1
        constants = (*corrections(step, state.lr, *self.betas), *self.betas, target.temperature / target.data_size)
        mean, rho = {}, {}
        mean_moments, rho_moments = Moments({}, {}), Moments({}, {})
        for name, g in gradient.items():
            moments = [part[name] for part in (*state.mean_moments, *state.rho_moments)]
            weight = (state.mean[name], state.rho[name], *moments, g, std[name], normal[name], target.prior[name])
            mean[name], mean_moments.first[name], mean_moments.second[name], *others = _move(*weight, *constants)
            rho[name], rho_moments.first[name], rho_moments.second[name] = others
        return BBBState(mean, rho, mean_moments, rho_moments, step, state.lr), {"loss": loss}

    def mean_params(self, state: BBBState) -> dict[str, Tensor]:
        """See the base class: the mean."""
        return state.mean

    def standard_deviations(self, target: Target, state: BBBState) -> dict[str, Tensor]:
        """See the base class."""
        return {name: functional.softplus(rho) for name, rho in state.rho.items()}

    def finalize(self, target: Target, state: BBBState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the Gaussian."""
        return DiagonalGaussian(target.network(), state.mean, self.standard_deviations(target, state))


@fused
def _sample(m: Any, rho: Any, normal: Any) -> tuple[Any, ...]:
    std = functional.softplus(rho)
    return torch.addcmul(m, std, normal), std


@fused
def _move(  # noqa: PLR0913 - a formula
    m: Any, rho: Any, first: Any, second: Any, rho_first: Any, rho_second: Any, g: Any, std: Any, normal: Any,
    prior: Any, rate: Any, inverse_root: Any, beta1: float, beta2: float, entropy: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Make Adam's step of the mean and of ρ.

    The gradient with respect to s is that of the likelihood, of δ/2 s², and of the entropy log s; the chain rule
    through softplus gives that with respect to ρ.
    """
    adam = (rate, inverse_root, beta1, beta2)
    # ε g + δ s - T / (N s), as a quotient: fewer passes over memory than with a term of its own.
    slope = normal.mul_(g).addcmul_(std, prior).mul_(std).sub_(entropy).mul_(torch.sigmoid(rho).div_(std))
    moved = adam_formula(m, g, prior, first, second, *adam)
    return (*moved, *adam_formula(rho, slope, None, rho_first, rho_second, *adam))
