"""A spec: everything that determines a training run, as plain values that fit on a command line and into JSON."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from certibayes.data import DataSet, as_augmentations, is_regression, load, names_file
from certibayes.errors import InvalidInput
from certibayes.experiments._adversary import NAMES, make_adversary, settings_of_adversary
from certibayes.experiments._spec_network import build_network
from certibayes.experiments._spec_ramp import make_ramp, ramp_shape, ramps_of
from certibayes.experiments.columns import read_names, scale_of, with_domain
from certibayes.experiments.factory import FORM, names_factory
from certibayes.experiments.settings import Setting, settings_of
from certibayes.inference import ALGORITHMS, MAP, Algorithm, GaussianPrior, LearnedPrior, Schedule
from certibayes.inference.learned_prior import GROUPS
from certibayes.inference.target import BATCH_NORM
from certibayes.inference.temperature import HELD_OUT, default_temperature
from certibayes.likelihoods import (
    LIKELIHOODS,
    MULTIPLIER,
    Adversary,
    Categorical,
    Curriculum,
    Exponential,
    Likelihood,
    RadiusDistribution,
    Ramp,
    Rayleigh,
    RobustCategorical,
    RobustGaussian,
    TwoPoint,
)
from certibayes.networks import BY_NAME, INITIALIZATIONS, NORMED
from certibayes.regions import require_radius, require_radius_within
from certibayes.support.arithmetic import PRECISIONS
from certibayes.support.names import nearest, unknown_name

RADII = ("two-point", "rayleigh", "exponential")
SCHEDULES = ("constant", "cosine", "exponential")
RAMPS = ("smooth", "linear")
START_EPOCHS = 10
"""Epochs that lead to where an algorithm starts, if it wants a start."""

VALIDATE = "validate"
"""The temperature that is chosen on held-out training images."""

CHOICES: dict[str, Collection[str]] = {
    "architecture": BY_NAME,
    "algorithm": ALGORITHMS,
    "likelihood": LIKELIHOODS,
    "init": INITIALIZATIONS,
    "radius": RADII,
    "ramp_shape": RAMPS,
    "schedule": SCHEDULES,
    "precision": PRECISIONS,
    "batch_norm": BATCH_NORM,
    "learned_prior": GROUPS,
}
"""The names that a field of a spec may hold."""


def hyperparameters(algorithm: str) -> dict[str, Setting]:
    """Return the hyperparameters of an algorithm by name, without the learning rate, which every algorithm has."""
    return {name: setting for name, setting in settings_of(ALGORITHMS[algorithm]).items() if name != "lr"}


@dataclass(frozen=True)
class TrainSpec:
    """Settings of a training run.

    Attributes:
        dataset: name of the data set, or a file of your own (.csv, .npz, .pt).
        target: the column, or array, of that file that is to be predicted; by default one called target, label or y.
        task: ``classification`` or ``regression``, where the targets of that file leave it open.
        domain: values that inputs can take, for a file: 0,1 for all, or by name, such as age=0:120,bmi=10:70.
        scale: what radii are multiples of: ``std`` for each column's standard deviation, ``units`` for the units of the
            inputs, or a radius by name, such as bmi=1.5,bp=5, for columns that change; by default ``std`` for a table
            in units of its own, else ``units``.
        fixed: columns that do not change, with commas.
        architecture: name of the network, or a function of your own that returns one, as package.module:factory or
            path/to/file.py:factory.
        hidden: numbers of units in the hidden layers of an ``mlp``.
        channels: channels of the first layer of ``cnn5``, ``cnn7`` or ``resnet-small``, and all others in proportion;
            by default 64, or 16 for ``resnet-small``.
        normalize: put the normalization of the data's channels, or of a table's columns, in front; by default for
            ``cnn5``, ``cnn7`` and ``resnet-small``, and for a table in units of its own.
        init: initialization of the weights; by default ``interval``, for interval bounds, for ``cnn5``, ``cnn7`` and
            ``resnet-small``, and torch's own for all others.
        likelihood: kind of likelihood; ``ibp`` and the costlier ``crown-ibp`` can be certified, ``pgd`` is adversarial
            training; ``sabr``, ``cc-ibp``, ``mtl-ibp`` and ``exp-ibp`` lie between attack and bound.
        eps: radius to be certified, such as 0.1 or 8/255.
        multiplier: training uses so many times that radius.
        first_multiplier: the same while the radius grows; it comes to ``multiplier`` while lam rises. By default the
            same (two-point).
        lam: weight of the clean term (two-point).
        radius: distribution of the radius in the robust likelihood.
        quadrature: nodes of a continuous distribution of the radius.
        margins: fold the last layer into class margins (ibp).
        ramp: fraction of training over which the radius grows; of the start, where there is one. By default 0.35, or
            0.5 where lam does not rise after it, and less where the algorithm collects earlier iterates (sghmc).
        ramp_start: fraction of training at radius 0 before that, a warm-up.
        ramp_shape: how the radius grows; by default ``smooth``, as a fourth power for the first quarter and then
            linearly, or ``linear`` where lam does not rise after it.
        lam_ramp: fraction of training after the ramp over which lam rises from 0, so that training does not give the
            worst case up; 0 for a lam that is constant. By default 0.15, or in proportion to a ramp that is shorter
            for the algorithm's sake; 0 for any radius but two-point, and for regression.
        tightness: weight of a regularizer that keeps bounds tight while the radius grows (two-point); 0.5 in the
            literature.
        balance: weight of a regularizer that keeps active and inactive units in balance meanwhile; likewise.
        alpha: weight of the bound beside the attack, from 0 to 1 (cc-ibp, mtl-ibp, exp-ibp); by default 0.5.
        box_fraction: radius of the box around the attacked input, as a fraction of the ball's (sabr); by default 0.4.
        attack_steps: steps of the attack (pgd, sabr, cc-ibp, mtl-ibp, exp-ibp); by default 10 for pgd, 8 for sabr, else
            1.
        attack_step_size: length of such a step, relative to the radius; by default 0.25, or 10 where there is only one
            step.
        attack_scale: radius of the attack, relative to that of the bound (cc-ibp, mtl-ibp, exp-ibp); by default 1.
        noise_std: observation noise, for regression; in standard deviations of the target for a table in units of its
            own.
        variance_scale: the prior variance is this over fan_in.
        learned_prior: groups of weights whose variances are learned instead: ``inputs``, ``layers`` or ``weights``; by
            default they are given.
        prior_every: steps between two updates of these.
        l1: weight of the sum of all weights' magnitudes in the mean loss, as a further part of the prior.
        algorithm: name of the inference algorithm.
        lr: learning rate; the algorithm's own by default.
        schedule: course of the learning rate; by default cosine, or constant where the algorithm wants that.
        warmup: fraction of training over which the learning rate rises; by default 0.05, or 0 where the rate is to be
            constant.
        lr_floor: factor on the learning rate at the end of a cosine or exponential schedule.
        lr_end: fraction of training at which that end is reached; the rate then stays, as SWAG wants it.
        clip: largest norm of the gradient; none for any.
        stochastic: parameters that are random: ``last`` for the last layer, the name of a module such as ``4``, a
            pattern such as ``*.weight``, or several of these with commas; all by default. The others are fitted by MAP.
        map_lr: learning rate of Adam for those.
        epochs: passes over the data; for hmc, trajectories that are kept, and its burn-in comes on top.
        batch_size: examples per step.
        precision: ``highest``; or, for faster training, ``high`` if products on a GPU may round their factors to TF32,
            and ``medium`` if convolutions there and matrix products on a CPU may round theirs to bfloat16.
        batch_norm: where the statistics of batch norm come from in training: ``batch``, from the step's own clean
            inputs, the default; or ``constant``, refreshed between epochs, as vogn and hmc need it.
        temperature: 1 is Bayes' rule, colder is narrower and easier to certify; ``validate`` chooses one on held-out
            training data. By default 1, or colder where bounds (any likelihood but standard and pgd) could prove
            nothing at 1: 0.1 for sghmc, 0.01 for vogn and noisy-adam.
        start_epochs: epochs of gradient descent that lead to the point the algorithm starts from; by default 10 for
            hmc and 0 for the others.
        start_lr: learning rate of that gradient descent.
        validation: fraction of the training data to hold out and report on; 0 for none.
        augment: how training images are changed at random, such as ``flip,crop:2`` for mirrored images, moved by up to
            2 pixels; by default not at all.
        seed: seed of network, data order and inference.
        settings: hyperparameters of the algorithm beside ``lr``, by name.
    """

    dataset: str = "digits"
    target: str | None = None
    task: str | None = None
    domain: str | None = None
    scale: str | None = None
    fixed: str | None = None
    architecture: str = "mlp"
    hidden: tuple[int, ...] = (512,)
    channels: int | None = None
    normalize: bool | None = None
    init: str | None = None
    likelihood: str = "ibp"
    eps: float = 0.1
    multiplier: float = MULTIPLIER
    first_multiplier: float | None = None
    lam: float = 0.25
    radius: str = "two-point"
    quadrature: int = 8
    margins: bool = False
    alpha: float | None = None
    box_fraction: float | None = None
    attack_steps: int | None = None
    attack_step_size: float | None = None
    attack_scale: float | None = None
    ramp: float | None = None
    ramp_start: float = 0.0
    ramp_shape: str | None = None
    lam_ramp: float | None = None
    tightness: float = 0.0
    balance: float = 0.0
    noise_std: float = 0.7
    variance_scale: float = GaussianPrior.variance_scale
    learned_prior: str | None = None
    prior_every: int = LearnedPrior.every
    l1: float = 0.0
    algorithm: str = "vogn"
    lr: float | None = None
    schedule: str | None = None
    warmup: float | None = None
    lr_floor: float = 0.01
    lr_end: float = 1.0
    clip: float | None = None
    stochastic: str | None = None
    map_lr: float = MAP.lr
    epochs: int = 20
    batch_size: int = 128
    precision: str = PRECISIONS[0]
    batch_norm: str | None = None
    temperature: float | str | None = None
    start_epochs: int | None = None
    start_lr: float = 0.1
    validation: float = 0.0
    augment: str | None = None
    seed: int = 0
    # Left out of the hash, since a dictionary has none; equal specs still have equal hashes.
    settings: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, setting in settings_of(TrainSpec).items():
            object.__setattr__(self, name, setting.check(getattr(self, name)))
        for name, known in CHOICES.items():
            value = getattr(self, name)
            own = name == "architecture" and names_factory(value)
            if value is not None and value not in known and not own:
                more = f" One of your own is {FORM}." if name == "architecture" else ""
                raise InvalidInput(unknown_name(name, value, known) + more)
        object.__setattr__(self, "settings", self._checked(self.settings))
        if names_file(self.dataset) and self.task is None:
            # What targets say by themselves is found once, and then belongs to the settings.
            object.__setattr__(self, "task", self.load_data().task)
        require_radius(self.eps)
        if not self.hidden or min(self.hidden) < 1:
            raise InvalidInput(f"hidden layers have at least 1 unit each, got {self.hidden}.")
        if self.channels is not None and self.architecture not in NORMED:
            raise InvalidInput(
                f"channels is for {', '.join(NORMED)}, and {self.architecture} has its own"
                + ("; its units are hidden." if self.architecture == "mlp" else ".")
            )
        for name in ("multiplier", "first_multiplier"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"{name} is a factor on the radius, a positive number, got {value}.")
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
        self.make_algorithm(), self.make_schedule(), self.make_radius(), self.make_ramp(), self.make_prior()
        self.make_adversary()
        as_augmentations(self.augment)

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
        ramp, lam_ramp = ramps_of(self)
        normed = self.architecture in NORMED
        return replace(
            self,
            # A table in units of its own is normalized as well, which only the data tell.
            normalize=(normed or None) if self.normalize is None else self.normalize,
            init=INITIALIZATIONS[0 if normed else 1] if self.init is None else self.init,
            first_multiplier=self.multiplier if self.first_multiplier is None else self.first_multiplier,
            **settings_of_adversary(self.make_adversary()),
            lr=algorithm.lr,
            schedule=schedule.kind,
            warmup=schedule.warmup,
            ramp=ramp,
            ramp_shape=ramp_shape(self, lam_ramp),
            lam_ramp=lam_ramp,
            temperature=self.default_temperature() if self.temperature is None else self.temperature,
            start_epochs=START_EPOCHS * algorithm.wants_start if self.start_epochs is None else self.start_epochs,
            validation=self.validation or (HELD_OUT if self.temperature == VALIDATE else 0.0),
            settings={name: getattr(algorithm, name) for name in hyperparameters(self.algorithm)},
        )

    @property
    def regression(self) -> bool:
        """Whether targets are numbers, and not classes."""
        return self.task == "regression" if names_file(self.dataset) else is_regression(self.dataset)

    def load_data(self, data_dir: str | Path | None = None) -> DataSet:
        """Read the data set."""
        return with_domain(load(self.dataset, data_dir, target=self.target, task=self.task), self.domain)

    def network(self, data: DataSet) -> nn.Module:
        """Build the network for a data set; see ``experiments._spec_network``."""
        return build_network(self, data)

    def make_algorithm(self) -> Algorithm[Any]:
        """Make the algorithm, with its own learning rate unless another is given."""
        return self._kind(**self.settings, **({} if self.lr is None else {"lr": self.lr}))

    def make_start(self) -> MAP:
        """Make the gradient descent that finds the point to start from."""
        return MAP(self.start_lr, optimizer="sgd")

    def make_radius(self) -> RadiusDistribution:
        """Make p_eps; the standard likelihood has radius 0."""
        if self.likelihood == "standard" or self.radius == "two-point":
            return TwoPoint.for_radius(0.0 if self.likelihood == "standard" else self.eps, self.lam, self.multiplier)
        family = Rayleigh if self.radius == "rayleigh" else Exponential
        return family.for_radius(self.eps, self.multiplier, quadrature=self.quadrature)

    def make_ramp(self) -> Curriculum | Ramp | None:
        """Make the way to the likelihood: a curriculum, or a ramp where that says all."""
        return make_ramp(self)

    def make_adversary(self) -> Adversary:
        """Make the adversary, with its own settings unless others are given."""
        given = {name: getattr(self, name) for name in NAMES if getattr(self, name) is not None}
        return make_adversary(self.likelihood, self.margins, given)

    def make_likelihood(self, data: DataSet, ramped: bool = True) -> Likelihood:
        """Make the likelihood: Gaussian for regression, categorical otherwise; ``ramped`` if its radius is to grow."""
        radius, scale = self.make_radius(), self.make_scale(data)
        if self.likelihood != "standard":
            require_radius_within(data.domain, self.eps if scale is None else self.eps * scale)
        adversary = self.make_adversary()
        ramp = self.make_ramp() if ramped else None
        if not data.classes:
            noise = self.noise_std
            if data.own_units and self.normalize is not False:
                noise *= max(data.column_statistics("targets")[1]) or 1.0
            return RobustGaussian(noise, radius, adversary, data.domain, ramp, scale=scale)
        if self.likelihood == "standard":
            return Categorical()
        return RobustCategorical(radius, adversary, data.domain, ramp, scale=scale)

    def make_scale(self, data: DataSet) -> Tensor | None:
        """Return what radii are multiples of, (1, d); None where they are in the units of the inputs."""
        return scale_of(data, self.scale, read_names(self.fixed))

    @property
    def trained_radius(self) -> float | None:
        """The radius that training is for; None for the standard likelihood."""
        return None if self.likelihood == "standard" else self.eps

    def default_temperature(self) -> float:
        """Return the temperature that is taken where none is given."""
        uses_bounds = self.make_adversary().uses_bounds and not self.regression
        return default_temperature(self.make_algorithm(), uses_bounds and self.make_radius().clean < 1.0)

    def make_prior(self) -> GaussianPrior:
        """Make the prior."""
        if self.learned_prior is not None:
            return LearnedPrior(self.variance_scale, l1=self.l1, groups=self.learned_prior, every=self.prior_every)
        return GaussianPrior(self.variance_scale, l1=self.l1)

    def make_schedule(self) -> Schedule:
        """Make the learning-rate schedule, as the algorithm wants it unless the spec says otherwise."""
        kind, warmup = ("constant", 0.0) if self._kind.constant_rate else ("cosine", 0.05)
        return Schedule(
            kind if self.schedule is None else self.schedule,
            self.lr_floor,
            warmup if self.warmup is None else self.warmup,
            self.lr_end,
        )
