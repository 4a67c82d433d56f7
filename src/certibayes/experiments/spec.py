"""A spec: everything that determines a training run, as plain values that fit on a command line and into JSON."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from torch import nn

from certibayes.data import DataSet, is_regression
from certibayes.errors import InvalidInput
from certibayes.experiments.settings import Setting, settings_of
from certibayes.inference import ALGORITHMS, MAP, Algorithm, GaussianPrior, Schedule
from certibayes.inference.temperature import HELD_OUT, default_temperature
from certibayes.likelihoods import (
    CROWNIBP,
    IBP,
    LIKELIHOODS,
    PGD,
    Adversary,
    Categorical,
    Exponential,
    Likelihood,
    LinearRamp,
    RadiusDistribution,
    Rayleigh,
    RobustCategorical,
    RobustGaussian,
    TwoPoint,
)
from certibayes.networks import BY_NAME, build
from certibayes.regions import require_radius, require_radius_within
from certibayes.support.names import nearest, unknown_name

BOUNDED = ("ibp", "crown-ibp")
"""Those that take the worst case from bounds."""

RADII = ("two-point", "rayleigh", "exponential")
SCHEDULES = ("constant", "cosine", "exponential")
RAMP = 0.5
"""Fraction of training over which the radius grows, unless iterates are collected earlier."""

START_EPOCHS = 10
"""Epochs that lead to where an algorithm starts, if it wants a start."""

VALIDATE = "validate"
"""The temperature that is chosen on held-out training images."""

CHOICES: dict[str, Collection[str]] = {
    "architecture": BY_NAME,
    "algorithm": ALGORITHMS,
    "likelihood": LIKELIHOODS,
    "radius": RADII,
    "schedule": SCHEDULES,
}
"""The names that a field of a spec may hold."""


def hyperparameters(algorithm: str) -> dict[str, Setting]:
    """Return the hyperparameters of an algorithm by name, without the learning rate, which every algorithm has."""
    return {name: setting for name, setting in settings_of(ALGORITHMS[algorithm]).items() if name != "lr"}


@dataclass(frozen=True)
class TrainSpec:
    """Settings of a training run.

    Attributes:
        dataset: name of the data set.
        architecture: name of the network.
        hidden: numbers of units in the hidden layers of an ``mlp``.
        likelihood: kind of likelihood; ``ibp`` and the costlier ``crown-ibp`` can be certified, ``pgd`` is adversarial
            training.
        eps: radius to be certified, such as 0.1 or 8/255; training uses 1.1 times that.
        lam: weight of the clean term (two-point).
        radius: distribution of the radius in the robust likelihood.
        quadrature: nodes of a continuous distribution of the radius.
        margins: fold the last layer into class margins (ibp).
        ramp: fraction of training over which the radius grows; of the start, where there is one. By default 0.5, or
            less where the algorithm collects earlier iterates (sghmc).
        noise_std: observation noise, for regression.
        variance_scale: the prior variance is this over fan_in.
        algorithm: name of the inference algorithm.
        lr: learning rate; the algorithm's own by default.
        schedule: course of the learning rate; by default cosine, or constant where the algorithm wants that.
        warmup: fraction of training over which the learning rate rises; by default 0.05, or 0 where the rate is to be
            constant.
        lr_floor: factor on the learning rate at the end of a cosine or exponential schedule.
        epochs: passes over the data; for hmc, trajectories that are kept, and its burn-in comes on top.
        batch_size: examples per step.
        temperature: 1 is Bayes' rule, colder is narrower and easier to certify; ``validate`` chooses one on held-out
            training data. By default 1, or colder where bounds (ibp, crown-ibp) could prove nothing at 1: 0.1 for
            sghmc, 0.01 for vogn, noisy-adam and laplace.
        start_epochs: epochs of gradient descent that lead to the point the algorithm starts from; by default 10 for
            hmc and 0 for the others.
        start_lr: learning rate of that gradient descent.
        validation: fraction of the training data to hold out and report on; 0 for none.
        seed: seed of network, data order and inference.
        settings: hyperparameters of the algorithm beside ``lr``, by name.
    """

    dataset: str = "digits"
    architecture: str = "mlp"
    hidden: tuple[int, ...] = (512,)
    likelihood: str = "ibp"
    eps: float = 0.1
    lam: float = 0.25
    radius: str = "two-point"
    quadrature: int = 8
    margins: bool = False
    ramp: float | None = None
    noise_std: float = 0.7
    variance_scale: float = GaussianPrior.variance_scale
    algorithm: str = "vogn"
    lr: float | None = None
    schedule: str | None = None
    warmup: float | None = None
    lr_floor: float = 0.01
    epochs: int = 20
    batch_size: int = 128
    temperature: float | str | None = None
    start_epochs: int | None = None
    start_lr: float = 0.1
    validation: float = 0.0
    seed: int = 0
    # Left out of the hash, since a dictionary has none; equal specs still have equal hashes.
    settings: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, setting in settings_of(TrainSpec).items():
            object.__setattr__(self, name, setting.check(getattr(self, name)))
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in known:
                raise InvalidInput(unknown_name(name, value, known))
        object.__setattr__(self, "settings", self._checked(self.settings))
        require_radius(self.eps)
        if not self.hidden or min(self.hidden) < 1:
            raise InvalidInput(f"hidden layers have at least 1 unit each, got {self.hidden}.")
        if self.ramp is not None and not 0.0 <= self.ramp <= 1.0:
            raise InvalidInput(f"ramp is a fraction of training, got {self.ramp}.")
        if isinstance(self.temperature, str):
            if self.temperature != VALIDATE:
                raise InvalidInput(f"temperature is a number or {VALIDATE!r}, got {self.temperature!r}.")
        elif self.temperature is not None and not (math.isfinite(self.temperature) and self.temperature > 0):
            raise InvalidInput(f"temperature must be positive, got {self.temperature}.")
        if self.epochs < (0 if self._kind.post_hoc else 1):
            raise InvalidInput(f"epochs must be at least 1, got {self.epochs}.")
        if self.start_epochs is not None and self.start_epochs < 0:
            raise InvalidInput(f"start_epochs must not be negative, got {self.start_epochs}.")
        # Wrong hyperparameters are refused now, before a run has left its first files.
        self.make_algorithm(), self.make_schedule(), self.make_radius()

    @property
    def _kind(self) -> type[Algorithm[Any]]:
        return ALGORITHMS[self.algorithm]

    def _checked(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the algorithm's hyperparameters with their proper types."""
        known = hyperparameters(self.algorithm)
        for name in settings:
            if name in settings_of(TrainSpec):
                raise InvalidInput(f"{name} is a setting of its own, not one of the hyperparameters in settings.")
            if name not in known:
                listed = ", ".join(["lr", *known])
                raise InvalidInput(
                    f"{self.algorithm} has no hyperparameter {name!r}; it has {listed}{nearest(name, known)}."
                )
        return {name: known[name].check(value) for name, value in settings.items()}

    def to_json(self) -> dict[str, Any]:
        """Return all settings as plain values."""
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> TrainSpec:
        """Rebuild a spec; settings it does not know are an error, those it does not hold take their defaults."""
        unknown = set(record) - {field.name for field in fields(TrainSpec)}
        if unknown:
            raise InvalidInput(f"unknown settings: {', '.join(sorted(unknown))}.")
        return TrainSpec(**record)

    def resolved(self) -> TrainSpec:
        """Return the same spec with everything that was left to a default filled in."""
        algorithm, schedule = self.make_algorithm(), self.make_schedule()
        return replace(
            self,
            lr=algorithm.lr,
            schedule=schedule.kind,
            warmup=schedule.warmup,
            ramp=min(RAMP, algorithm.collects_after) if self.ramp is None else self.ramp,
            temperature=self.default_temperature() if self.temperature is None else self.temperature,
            start_epochs=START_EPOCHS * algorithm.wants_start if self.start_epochs is None else self.start_epochs,
            validation=self.validation or (HELD_OUT if self.temperature == VALIDATE else 0.0),
            settings={name: getattr(algorithm, name) for name in hyperparameters(self.algorithm)},
        )

    def network(self, data: DataSet) -> nn.Module:
        """Build the network for a data set."""
        outputs = len(data.classes) or int(data.train.targets.shape[-1])
        settings = {"hidden": self.hidden} if self.architecture == "mlp" else {}
        return build(self.architecture, tuple(data.train.inputs.shape[1:]), outputs, self.seed, **settings)

    def make_algorithm(self) -> Algorithm[Any]:
        """Make the algorithm, with its own learning rate unless another is given."""
        return self._kind(**self.settings, **({} if self.lr is None else {"lr": self.lr}))

    def make_start(self) -> MAP:
        """Make the gradient descent that finds the point to start from."""
        return MAP(self.start_lr, optimizer="sgd")

    def make_radius(self) -> RadiusDistribution:
        """Make p_eps; the standard likelihood has radius 0."""
        if self.likelihood == "standard" or self.radius == "two-point":
            return TwoPoint.for_radius(0.0 if self.likelihood == "standard" else self.eps, self.lam)
        family = Rayleigh if self.radius == "rayleigh" else Exponential
        return family.for_radius(self.eps, quadrature=self.quadrature)

    def make_likelihood(self, data: DataSet, ramped: bool = True) -> Likelihood:
        """Make the likelihood: Gaussian for regression, categorical otherwise; ``ramped`` if its radius is to grow."""
        radius = self.make_radius()
        if self.likelihood != "standard":
            require_radius_within(data.domain, self.eps)
        adversaries: dict[str, Adversary] = {"pgd": PGD(), "crown-ibp": CROWNIBP()}
        adversary = adversaries.get(self.likelihood, IBP(self.margins))
        fraction = self.resolved().ramp
        ramp = LinearRamp(0.0, fraction) if ramped and fraction else None
        if not data.classes:
            return RobustGaussian(self.noise_std, radius, adversary, data.domain, ramp)
        if self.likelihood == "standard":
            return Categorical()
        return RobustCategorical(radius, adversary, data.domain, ramp)

    @property
    def trained_radius(self) -> float | None:
        """The radius that training is for; None for the standard likelihood."""
        return None if self.likelihood == "standard" else self.eps

    def default_temperature(self) -> float:
        """Return the temperature that is taken where none is given."""
        bounded = self.likelihood in BOUNDED and not is_regression(self.dataset) and self.make_radius().clean < 1.0
        return default_temperature(self.make_algorithm(), bounded)

    def make_prior(self) -> GaussianPrior:
        """Make the prior."""
        return GaussianPrior(self.variance_scale)

    def make_schedule(self) -> Schedule:
        """Make the learning-rate schedule, as the algorithm wants it unless the spec says otherwise."""
        kind, warmup = ("constant", 0.0) if self._kind.constant_rate else ("cosine", 0.05)
        return Schedule(
            kind if self.schedule is None else self.schedule,
            self.lr_floor,
            warmup if self.warmup is None else self.warmup,
        )
