"""MAP: the most probable weights, by Adam or by gradient descent with momentum.

    w* = argmax  sum_i log p(y_i | x_i, w) + log p(w)

Adam: Kingma and Ba (2015). The prior's gradient is divided by N like the likelihood's, and with Adam it passes
through the preconditioner (it is part of the objective, not decoupled decay).
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
from certibayes.posteriors import Point, Posterior
from certibayes.support.adam import Moments, adam_step, zero_moments
from certibayes.support.descent import momentum_step


class MAPState(NamedTuple):
    """State of MAP; SGD keeps its momentum in the first moment and has no second."""

    params: dict[str, Tensor]
    moments: Moments
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class MAP(Algorithm[MAPState]):
    """Maximum a posteriori.

    Attributes:
        lr: learning rate.
        optimizer: ``"adam"`` or ``"sgd"``.
        betas: decay of the moments; SGD takes the first as momentum.
    """

    elementwise: ClassVar[bool] = True
    temperature_in: ClassVar[str] = "nowhere"

    lr: float = 0.003
    optimizer: str = "adam"
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        require_rates(self.lr, self.betas)
        if self.optimizer not in ("adam", "sgd"):
            raise InvalidInput(f'optimizer must be "adam" or "sgd", got {self.optimizer!r}.')

    def init(self, target: Target, params: Params, generator: torch.Generator) -> MAPState:
        """Start from the network's parameters."""
        like = next(iter(params.values()))
        moments = zero_moments(params)
        if self.optimizer == "sgd":
            moments = Moments(moments.first, {})
        return MAPState(dict(params), moments, like.new_zeros(()), like.new_full((), self.lr))

    def update(
        self, target: Target, state: MAPState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[MAPState, Info]:
        """Make one step of Adam or SGD on the mean loss."""
        loss, gradient = target.mean_loss_and_gradient(state.params, batch, noise)
        step = state.step + 1
        if self.optimizer == "adam":
            params, moments = adam_step(state.params, gradient, target.prior, state.moments, step, state.lr, self.betas)
        else:
            params, velocity = momentum_step(
                state.params, gradient, target.prior, state.moments.first, state.lr, self.betas[0]
            )
            moments = Moments(velocity, {})
        return MAPState(params, moments, step, state.lr), {"loss": loss}

    def mean_params(self, state: MAPState) -> dict[str, Tensor]:
        """See the base class."""
        return state.params

    def finalize(self, target: Target, state: MAPState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the point."""
        return Point(target.network(), state.params)
