"""Snapshot ensemble (Huang et al., 2017, "Snapshot ensembles: train 1, get M for free").

One training run. From a fraction ``start`` of it on, the learning rate goes through M cycles,

    r = lr/2 (cos(π c) + 1),

where c in [0, 1) is the place in the current cycle: a large rate leaves a mode, a falling one settles in the next. The
iterate at the end of each cycle is a member. Before ``start`` the rate is lr, while the likelihood is on its way to
the one that was asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference._draws import Draws, room_for, with_draw
from certibayes.inference._statistics import with_statistics
from certibayes.inference.algorithm import Algorithm, Info, Sweep
from certibayes.inference.map import MAP, MAPState
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks import Params
from certibayes.posteriors import Posterior, Samples
from certibayes.support.adam import Moments


class SnapshotState(NamedTuple):
    """State of a snapshot ensemble: that of MAP, and the members so far, with a leading dimension M."""

    params: dict[str, Tensor]
    moments: Moments
    members: Draws
    step: Tensor
    lr: Tensor


@dataclass(frozen=True)
class SnapshotEnsemble(Algorithm[SnapshotState]):
    """Snapshot ensemble.

    Attributes:
        lr: learning rate, at the start of each cycle and before the first.
        members: number M of cycles, and of networks.
        start: fraction of training after which the cycles begin.
        optimizer: ``"adam"`` or ``"sgd"``.
        betas: decay of the moments; SGD takes the first as momentum.
    """

    elementwise: ClassVar[bool] = True
    constant_rate: ClassVar[bool] = True
    temperature_in: ClassVar[str] = "nowhere"

    lr: float = 0.003
    members: int = 5
    start: float = 0.5
    optimizer: str = "adam"
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        if self.members < 1:
            raise InvalidInput(f"an ensemble has at least one member, got {self.members}.")
        if not 0.0 <= self.start < 1.0:
            raise InvalidInput(f"start is a fraction of training, 0 <= start < 1, got {self.start}.")
        self._descent  # noqa: B018 - checks rate, optimizer and betas

    @property
    def _descent(self) -> MAP:
        """What makes the steps."""
        return MAP(self.lr, self.optimizer, self.betas)

    @property
    def collects_after(self) -> float:
        """See the base class: all cycles are those of one likelihood."""
        return self.start

    def init(self, target: Target, params: Params, generator: torch.Generator) -> SnapshotState:
        """Start from the network's parameters, with no members."""
        _, cyclic = self._parts(target)
        if cyclic < self.members:
            raise InvalidInput(
                f"{cyclic} of {target.total_steps} steps come after start={self.start:g}, too few for {self.members} "
                "cycles. Train for more epochs, start earlier, or ask for fewer members."
            )
        begun = self._descent.init(target, params, generator)
        return SnapshotState(begun.params, begun.moments, room_for(self.members, params), begun.step, begun.lr)

    def _parts(self, target: Target) -> tuple[int, int]:
        """Return the number of steps before the cycles, and in all of them."""
        before = math.floor(self.start * target.total_steps)
        return before, target.total_steps - before

    def update(
        self, target: Target, state: SnapshotState, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[SnapshotState, Info]:
        """Make one step of MAP, at the rate of this place in the cycle."""
        before, cyclic = self._parts(target)
        # In whole numbers until the last division: cycles of unequal length end where ``collects`` says.
        place = torch.remainder((state.step - before).clamp(min=0) * self.members, cyclic) / cyclic
        rate = state.lr * 0.5 * (torch.cos(math.pi * place) + 1.0)
        now = MAPState(state.params, state.moments, state.step, rate)
        after, info = self._descent.update(target, now, batch, noise, generator)
        new = state._replace(params=after.params, moments=after.moments, step=after.step)
        return new, {**info, "rate": rate}

    def collects(self, target: Target, step: int) -> bool:
        """See the base class: at the end of every cycle."""
        before, cyclic = self._parts(target)
        done = (step - before) * self.members
        return step > before and done // cyclic > (done - self.members) // cyclic

    def collect(self, target: Target, state: SnapshotState) -> SnapshotState:
        """Keep the iterate as a member."""
        return state._replace(members=with_draw(state.members, state.params))

    def mean_params(self, state: SnapshotState) -> dict[str, Tensor]:
        """See the base class: the iterate."""
        return state.params

    def finalize(self, target: Target, state: SnapshotState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the members, in order."""
        return Samples(target.network(), with_statistics(target, state.members.values, sweep))
