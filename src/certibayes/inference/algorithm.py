"""What an algorithm is: pure functions over a state of tensors.

``update`` reads nothing on the host and does not branch on data. ``fit`` owns the loop, the learning-rate
schedule, checkpoints and checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from typing import Any, ClassVar, Generic, TypeVar

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

Sweep = Iterable[tuple[Batch, Noise]]
"""All training examples in batches, each with its noise at full radius; the same again on every pass."""


def require_rates(lr: float, betas: tuple[float, float]) -> None:
    """Raise unless the learning rate is not negative and the decays lie in [0, 1)."""
    if not (math.isfinite(lr) and lr >= 0):
        raise InvalidInput(f"lr must be a finite number >= 0, got {lr}.")
    if not all(0.0 <= beta < 1.0 for beta in betas):
        raise InvalidInput(f"betas are decays in [0, 1), got {betas}.")


class Algorithm(Generic[State]):
    """Base of all algorithms. Subclasses are frozen dataclasses of hyperparameters with a field ``lr``.

    A state is a NamedTuple of tensors (or dictionaries of tensors) of fixed shape with 0-d fields ``step`` and ``lr``;
    ``fit`` sets the second before each step.
    """

    lr: float

    full_batch: ClassVar[bool] = False
    """Whether a step takes all data at once, with one noise for the whole run; then an epoch is one step."""

    per_example: ClassVar[bool] = False
    """Whether ``update`` needs the likelihood of each example by itself, so that batch norm must have constants."""

    constant_rate: ClassVar[bool] = False
    """Whether the method wants its rate left as it is, instead of annealed to nothing."""

    temperature_in: ClassVar[str] = "update"
    """Where the temperature enters: in every ``"update"``, in ``"finalize"`` alone, or ``"nowhere"``."""

    learns_prior_in: ClassVar[str] = "nowhere"
    """Where the variances of a ``LearnedPrior`` are learned: between steps (``"update"``), for which a method has
    ``standard_deviations``; in ``"finalize"``; or ``"nowhere"``, where a method has no standard deviations to learn
    from. A class that derives from another with steps of its own states it again."""

    post_hoc: ClassVar[bool] = False
    """Whether a posterior can be made of a network that is trained already, with ``epochs=0``."""

    robust_temperature: ClassVar[float] = 1.0
    """Temperature that is taken where none is given and the likelihood depends on bounds: 1, Bayes' rule, unless the
    method's weights then vary so much that nothing can be certified."""

    refresh_every: ClassVar[int] = 0
    """Steps between two calls of ``refresh``, counted within an epoch, at whose end there is one too; 0 for none. A GPU
    makes ten steps at a time; multiples of ten do not break these up."""

    elementwise: ClassVar[bool] = False
    """Whether ``update`` treats every weight alike, whatever tensor it is in: then all of them may come as one vector,
    under one name. Normal numbers are drawn by ``normal_like`` then. Stated beside ``update``; a class with an
    ``update`` of its own states it again."""

    stacked: ClassVar[bool] = False
    """Whether the state holds several networks already; then ``fit_many`` trains it apart from other runs."""

    @property
    def burn_in_epochs(self) -> int:
        """Epochs that are made before those that were asked for, and of which nothing is kept."""
        return 0

    @property
    def collects_after(self) -> float:
        """Fraction of training before the first iterate is collected; by then the radius should have grown."""
        return 1.0

    @property
    def wants_start(self) -> bool:
        """Whether the method should start from a trained network; the command line then trains one."""
        return False

    def init(self, target: Target, params: Params, generator: torch.Generator) -> State:
        """Return the state to start from, given the network's initial parameters."""
        raise NotImplementedError

    def update(
        self, target: Target, state: State, batch: Batch, noise: Noise, generator: torch.Generator
    ) -> tuple[State, Info]:
        """Make one step."""
        raise NotImplementedError

    def collects(self, target: Target, step: int) -> bool:
        """Tell whether the state after so many steps is to be collected."""
        return False

    def collect(self, target: Target, state: State) -> State:
        """Keep the current iterate; apart from ``update``, so that its cost falls on the steps that need it."""
        return state

    def refresh(self, target: Target, state: State) -> State:
        """Bring up to date what changes slowly and takes time to find; elementwise where ``update`` is."""
        return state

    def mean_params(self, state: State) -> dict[str, Tensor]:
        """Return the parameters that stand for the state in validation figures."""
        raise NotImplementedError

    def standard_deviations(self, target: Target, state: State) -> dict[str, Tensor]:
        """Return those of every weight, where the state is a Gaussian around ``mean_params``."""
        raise NotImplementedError

    def finalize(self, target: Target, state: State, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Return the posterior; ``sweep`` goes over the training data once more, where that is needed."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return name and hyperparameters, for metadata."""
        settings: dict[str, Any] = asdict(self) if is_dataclass(self) and not isinstance(self, type) else {}
        return {"name": type(self).__name__, **settings}
