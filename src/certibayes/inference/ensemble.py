"""Deep ensemble (Lakshminarayanan et al., 2017): several networks, each from a start of its own.

    w_m* = argmax  Σ_i log p(y_i | x_i, w) + log p(w),        m = 1, ..., M,

by Adam, all members at once. Every member sees the same batches; they differ by where they started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.inference._statistics import has_statistics
from certibayes.inference.algorithm import Algorithm, Info, Sweep, require_rates
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks import Params
from certibayes.posteriors import Posterior, Samples
from certibayes.support.adam import Moments, adam_step, zero_moments
from certibayes.support.stacks import map_samples


class EnsembleState(NamedTuple):
    """State of an ensemble; parameters and moments have a leading dimension M."""

    params: dict[str, Tensor]
    moments: Moments
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class DeepEnsemble(Algorithm[EnsembleState]):
    """Deep ensemble.

    Attributes:
        lr: learning rate of Adam.
        members: number M of networks.
        betas: decay of Adam's moments.
    """

    temperature_in: ClassVar[str] = "nowhere"

    elementwise: ClassVar[bool] = True
    stacked: ClassVar[bool] = True

    lr: float = 0.003
    members: int = 5
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        require_rates(self.lr, self.betas)
        if self.members < 1:
            raise InvalidInput(f"an ensemble has at least one member, got {self.members}.")

    def init(self, target: Target, params: Params, generator: torch.Generator) -> EnsembleState:
        """Start one member from the network's parameters, the others from draws of the same mean and variance.

        A traced network does not know how its module draws its weights; mean and variance of each tensor say
        enough.
        """
        if has_statistics(target.graph):
            raise UnsupportedLayer(
                "batch norm statistics differ from member to member, which this ensemble does not keep apart. Train "
                "MAP with fit_many, a run for each member, and combine them with Samples."
            )
        stacked = {}
        for name, p in params.items():
            others = torch.randn((self.members - 1, *p.shape), generator=generator, dtype=p.dtype, device=p.device)
            stacked[name] = torch.cat([p[None], p.mean() + p.std(correction=0) * others])
        like = next(iter(params.values()))
        return EnsembleState(stacked, zero_moments(stacked), like.new_zeros(()), like.new_full((), self.lr))

    def update(
        self, target: Target, state: EnsembleState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[EnsembleState, Info]:
        """Make one step of Adam with every member."""
        losses, gradient = map_samples(lambda member: target.mean_loss_and_gradient(member, batch, noise), state.params)
        gradient = {name: torch.addcmul(g, state.params[name], target.prior[name]) for name, g in gradient.items()}
        step = state.step + 1
        params, moments = adam_step(state.params, gradient, state.moments, step, state.lr, self.betas)
        return EnsembleState(params, moments, step, state.lr), {"loss": losses.mean()}

    def mean_params(self, state: EnsembleState) -> dict[str, Tensor]:
        """See the base class: the first member."""
        return {name: p[0] for name, p in state.params.items()}

    def finalize(self, target: Target, state: EnsembleState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the members."""
        return Samples(target.network(), state.params)
