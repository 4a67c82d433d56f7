"""MAP: the most probable weights, by Adam or by gradient descent with momentum.

    w* = argmax  sum_i log p(y_i | x_i, w) + log p(w)

Adam: Kingma and Ba (2015). The prior's gradient is divided by N like the likelihood's, and with Adam it passes
through the preconditioner (it is part of the objective, not decoupled decay).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference.algorithm import Algorithm, Info, require_rates
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks import Params
from certibayes.posteriors import Point, Posterior


class MAPState(NamedTuple):
    """State of MAP; moments have the shape of the parameters."""

    params: dict[str, Tensor]
    first: dict[str, Tensor]
    second: dict[str, Tensor]
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class MAP(Algorithm[MAPState]):
    """Maximum a posteriori.

    Attributes:
        lr: learning rate.
        optimizer: ``"adam"`` or ``"sgd"``.
        betas: decay of the moments; SGD takes the first as momentum.
        eps: added to the root of the second moment.
    """

    lr: float = 1e-3
    optimizer: str = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        require_rates(self.lr, self.betas)
        if self.optimizer not in ("adam", "sgd"):
            raise InvalidInput(f'optimizer must be "adam" or "sgd", got {self.optimizer!r}.')

    def init(self, target: Target, params: Params) -> MAPState:
        """Start from the network's parameters."""
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        like = next(iter(params.values()))
        second = {name: torch.zeros_like(p) for name, p in params.items()} if self.optimizer == "adam" else {}
        return MAPState(dict(params), zeros, second, like.new_zeros(()), like.new_full((), self.lr))

    def update(
        self, target: Target, state: MAPState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[MAPState, Info]:
        """Make one step of Adam or SGD on the mean loss."""
        loss, gradient = target.mean_loss_and_gradient(state.params, batch, noise)
        for name, precision in target.precision.items():
            gradient[name] = gradient[name] + precision / target.data_size * state.params[name]
        step = state.step + 1
        change = self._adam if self.optimizer == "adam" else self._sgd
        return change(state, gradient, step), {"loss": loss}

    def _adam(self, state: MAPState, gradient: dict[str, Tensor], step: Tensor) -> MAPState:
        beta1, beta2 = self.betas
        correction1, correction2 = 1 - beta1**step, torch.sqrt(1 - beta2**step)
        params, first, second = {}, {}, {}
        for name, g in gradient.items():
            first[name] = torch.lerp(state.first[name], g, 1 - beta1)
            second[name] = (state.second[name] * beta2).addcmul_(g, g, value=1 - beta2)
            denominator = second[name].sqrt().div_(correction2).add_(self.eps)
            params[name] = state.params[name] - (first[name] / denominator).mul_(state.lr / correction1)
        return MAPState(params, first, second, step, state.lr)

    def _sgd(self, state: MAPState, gradient: dict[str, Tensor], step: Tensor) -> MAPState:
        momentum = self.betas[0]
        first = {name: momentum * state.first[name] + g for name, g in gradient.items()}
        params = {name: state.params[name] - state.lr * first[name] for name in gradient}
        return MAPState(params, first, {}, step, state.lr)

    def point(self, state: MAPState) -> dict[str, Tensor]:
        """See the base class."""
        return state.params

    def finalise(self, target: Target, state: MAPState, data: Batch | None) -> Posterior:
        """Return the point."""
        return Point(target.network(), state.params)
