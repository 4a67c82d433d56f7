"""A spec: everything that determines a training run, as plain values that fit on a command line and into JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import nn

from certibayes.bounds.checks import require_radius
from certibayes.data import DataSet
from certibayes.errors import InvalidInput
from certibayes.inference import BBB, IVON, MAP, SWAG, VOGN, Algorithm, GaussianPrior, NoisyAdam, Schedule
from certibayes.likelihoods import (
    IBP,
    PGD,
    Categorical,
    Likelihood,
    LinearRamp,
    RobustCategorical,
    RobustGaussian,
    TwoPoint,
)
from certibayes.networks import build

ALGORITHMS: dict[str, Callable[..., Algorithm[Any]]] = {
    "map": MAP,
    "vogn": VOGN,
    "noisy-adam": NoisyAdam,
    "bbb": BBB,
    "ivon": IVON,
    "swag": SWAG,
}
LIKELIHOODS = ("standard", "ibp", "pgd")


@dataclass(frozen=True)
class TrainSpec:
    """Settings of a training run.

    Attributes:
        dataset: name of the data set.
        architecture: name of the network.
        hidden: widths of the hidden layers of an ``mlp``.
        algorithm: name of the inference algorithm.
        likelihood: ``standard``, ``ibp`` or ``pgd``.
        eps: radius to be certified; training uses 1.1 times that.
        lam: weight of the clean term.
        margins: fold the last layer into class margins (ibp).
        ramp: fraction of training over which the radius grows.
        noise_std: observation noise, for regression.
        lr: learning rate; None takes the algorithm's own.
        prior_inflation: prior variance is this over fan_in.
        temperature: of the posterior.
        epochs: passes over the data.
        batch_size: examples a step.
        schedule: of the learning rate.
        warmup: fraction of training over which the learning rate rises.
        validation: fraction of the training data to hold out; 0 for none.
        seed: of network, data order and inference.
    """

    dataset: str = "digits"
    architecture: str = "mlp"
    hidden: tuple[int, ...] = (512,)
    algorithm: str = "vogn"
    likelihood: str = "ibp"
    eps: float = 0.1
    lam: float = 0.25
    margins: bool = False
    ramp: float = 0.5
    noise_std: float = 0.7
    lr: float | None = None
    prior_inflation: float = 300.0
    temperature: float = 1.0
    epochs: int = 20
    batch_size: int = 128
    schedule: str = "cosine"
    warmup: float = 0.05
    validation: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise InvalidInput(f"there is no algorithm {self.algorithm!r}; known are {', '.join(ALGORITHMS)}.")
        if self.likelihood not in LIKELIHOODS:
            raise InvalidInput(f"there is no likelihood {self.likelihood!r}; known are {', '.join(LIKELIHOODS)}.")
        require_radius(self.eps)
        if not 0.0 <= self.ramp <= 1.0:
            raise InvalidInput(f"ramp is a fraction of training, got {self.ramp}.")

    def to_json(self) -> dict[str, Any]:
        """Return all settings as plain values."""
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> TrainSpec:
        """Rebuild a spec; settings it does not know are an error."""
        known = {field.name for field in fields(TrainSpec)}
        unknown = set(record) - known
        if unknown:
            raise InvalidInput(f"unknown settings: {', '.join(sorted(unknown))}.")
        settings: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
        }
        return TrainSpec(**settings)

    def network(self, data: DataSet) -> nn.Module:
        """Build the network for a data set."""
        outputs = len(data.classes) or int(data.train.targets.shape[-1])
        settings = {"hidden": self.hidden} if self.architecture == "mlp" else {}
        return build(self.architecture, tuple(data.train.inputs.shape[1:]), outputs, self.seed, **settings)

    def make_algorithm(self) -> Algorithm[Any]:
        """Make the algorithm, with its own learning rate unless another is given."""
        return ALGORITHMS[self.algorithm](**({} if self.lr is None else {"lr": self.lr}))

    def make_likelihood(self, data: DataSet) -> Likelihood:
        """Make the likelihood: Gaussian for regression, categorical otherwise."""
        robust = self.likelihood != "standard"
        radius = TwoPoint.for_radius(self.eps if robust else 0.0, self.lam)
        adversary = PGD() if self.likelihood == "pgd" else IBP(self.margins)
        ramp = LinearRamp(0.0, self.ramp) if self.ramp > 0 else None
        if not data.classes:
            return RobustGaussian(self.noise_std, radius, adversary, data.domain, ramp)
        return RobustCategorical(radius, adversary, data.domain, ramp) if robust else Categorical()

    def make_prior(self) -> GaussianPrior:
        """Make the prior."""
        return GaussianPrior(self.prior_inflation)

    def make_schedule(self) -> Schedule:
        """Make the learning-rate schedule."""
        return Schedule(self.schedule, warmup=self.warmup)
