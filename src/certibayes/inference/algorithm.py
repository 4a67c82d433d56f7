"""What an algorithm is: three pure functions over a state of tensors.

``update`` reads nothing on the host and does not branch on data. ``fit`` owns the loop, the learning-rate
schedule, checkpoints and checks.
"""

from __future__ import annotations

import math
from dataclasses import asdict, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks import Params
from certibayes.posteriors import Posterior

State = TypeVar("State", bound=tuple[Any, ...])

Info = dict[str, Tensor]
"""What a person wants to see of a step, as 0-d tensors; "loss" is the mean negative log-likelihood."""


def require_rates(lr: float, betas: tuple[float, float]) -> None:
    """Raise unless the learning rate is not negative and the decays lie in [0, 1)."""
    if not (math.isfinite(lr) and lr >= 0):
        raise InvalidInput(f"lr must be a finite number >= 0, got {lr}.")
    if not all(0.0 <= beta < 1.0 for beta in betas):
        raise InvalidInput(f"betas are decays in [0, 1), got {betas}.")


class Algorithm(Generic[State]):
    """Base of all algorithms. Subclasses are frozen dataclasses of hyperparameters with a field ``lr``.

    A state is a NamedTuple of tensors (or dictionaries of tensors) of fixed shape with a 0-d field ``lr``,
    which ``fit`` sets before each step.
    """

    lr: float

    def init(self, target: Target, params: Params) -> State:
        """Return the state to start from, given the network's initial parameters."""
        raise NotImplementedError

    def update(
        self, target: Target, state: State, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[State, Info]:
        """Make one step."""
        raise NotImplementedError

    def point(self, state: State) -> dict[str, Tensor]:
        """Return the parameters that stand for the state in validation figures."""
        raise NotImplementedError

    def finalise(self, target: Target, state: State, data: Batch | None) -> Posterior:
        """Return the posterior; ``data`` are the training data where they are held in memory."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return name and hyperparameters, for metadata."""
        settings: dict[str, Any] = asdict(self) if is_dataclass(self) and not isinstance(self, type) else {}
        return {"algorithm": type(self).__name__, **settings}
