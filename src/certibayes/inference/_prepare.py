"""From the arguments of ``fit`` to a run: everything is checked here, before the first step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from certibayes.data import Augmentation, DataSet, as_augmentations
from certibayes.data.points import features_of
from certibayes.errors import InvalidInput
from certibayes.inference._augmented import augmented
from certibayes.inference._batches import (
    BatchSource,
    Data,
    Pair,
    Placement,
    digest_of,
    held_out,
    source_of,
    validation_pair,
    whole,
)
from certibayes.inference._border import (
    callbacks_of,
    directory_of,
    instance_of,
    placement_of,
    require_batch,
    require_clip,
    require_inferable,
    require_learnable,
    require_precision,
    seed_of,
)
from certibayes.inference._partly import PartlyRandom, random_parameters, require_partly
from certibayes.inference._run import Run
from certibayes.inference._statistics import batch_norm_mode
from certibayes.inference.algorithm import Algorithm
from certibayes.inference.learned_prior import Groups, LearnedPrior
from certibayes.inference.loop import Callback
from certibayes.inference.map import MAP
from certibayes.inference.names import as_algorithm
from certibayes.inference.prior import GaussianPrior
from certibayes.inference.schedule import Schedule
from certibayes.inference.target import Target
from certibayes.inference.temperature import HELD_OUT, candidates_of, default_temperature
from certibayes.likelihoods import Batch, Categorical, Likelihood, as_likelihood
from certibayes.networks import Network, trace
from certibayes.prediction import domain_of_all
from certibayes.regions import Domain, domain_to_json
from certibayes.support.checks import require_finite, whole_number


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of ``fit``, which says what they mean, as they were given."""

    net: nn.Module | Network
    train: Data
    algorithm: Algorithm[Any] | str
    likelihood: Likelihood | str | None = None
    prior: GaussianPrior | None = None
    epochs: int = 20
    batch_size: int = 128
    seed: int = 0
    temperature: float | str | Sequence[float] | None = None
    schedule: Schedule | None = None
    clip: float | None = None
    validation: float | Pair | None = None
    augment: Augmentation | Sequence[Augmentation] | str | None = None
    stochastic: str | Sequence[str] | None = None
    map_lr: float = MAP.lr
    device: str | torch.device | None = None
    precision: str = "highest"
    batch_norm: str | None = None
    callbacks: Iterable[Callback] = ()
    checkpoint: str | Path | None = None
    checkpoint_every: float = 60.0


class Known:
    """Data and networks that earlier runs of one call have brought to the device and traced.

    By identity, and with the objects themselves, so that none of them is forgotten and its identity given to another.
    """

    def __init__(self) -> None:
        self.sources: dict[tuple[Any, ...], tuple[Data, BatchSource]] = {}
        self.networks: dict[int, tuple[nn.Module, Network]] = {}

    def source(self, train: Data, batch_size: int, placement: Placement, at_once: bool) -> BatchSource:
        """Return where batches of ``train`` come from, all of it ``at_once`` if a step takes all data."""
        key = (id(train), batch_size, placement, at_once)
        if key not in self.sources:
            source = source_of(train, batch_size, placement)
            self.sources[key] = (train, whole(source) if at_once else source)
        return self.sources[key][1]

    def network(self, net: nn.Module | Network, inputs: Tensor) -> Network:
        """Return the network, traced."""
        if isinstance(net, Network):
            return net
        if id(net) not in self.networks:
            self.networks[id(net)] = (net, trace(net, inputs))
        return self.networks[id(net)][1]


class Training(NamedTuple):
    """Data of a run.

    Attributes:
        source: training data, augmented.
        held: validation data, if any, not checked yet.
        placement: device and dtype of both.
        domain: in which inputs lie, if anything is known of it.
        augmentations: of the source.
    """

    source: BatchSource
    held: Batch | None
    placement: Placement
    domain: Domain
    augmentations: tuple[Augmentation, ...]


class Weights(NamedTuple):
    """What becomes of the tensors of a network.

    Attributes:
        algorithm: that infers the parameters which are random, and fits the others.
        network: the network.
        params: its parameters by name, to start from.
        constants: its buffers, and parameters that stay where they are.
        precisions: 1 / prior variance of each parameter.
        l1_weights: of |w| in the prior, by parameter.
        groups: of parameters that share a learned variance.
        subset: for the metadata, which parameters are random and which are not, if not all are.
    """

    algorithm: Algorithm[Any]
    network: Network
    params: dict[str, Tensor]
    constants: dict[str, Tensor]
    precisions: dict[str, Tensor]
    l1_weights: dict[str, Tensor]
    groups: Groups | None
    subset: dict[str, Any]


def prepare(asked: Asked, known: Known) -> Run:
    """Check the arguments of ``fit`` and return the run."""
    algorithm = as_algorithm(asked.algorithm)
    likelihood = Categorical() if asked.likelihood is None else as_likelihood(asked.likelihood)
    prior = instance_of(asked.prior, GaussianPrior, "prior")
    schedule = instance_of(asked.schedule, Schedule, "schedule")
    epochs = whole_number(asked.epochs, "epochs", smallest=0 if algorithm.post_hoc else 1)
    batch_size = whole_number(asked.batch_size, "batch_size", smallest=1)
    seed = seed_of(asked.seed)
    callbacks = callbacks_of(asked.callbacks)
    directory = directory_of(asked.checkpoint, asked.checkpoint_every)
    require_precision(asked.precision)
    require_clip(asked.clip, algorithm.full_batch)
    require_partly(algorithm, asked.stochastic, asked.map_lr)
    temperature = asked.temperature
    if temperature is None:
        temperature = default_temperature(algorithm, likelihood.bounded)
    candidates = candidates_of(temperature)
    validation = HELD_OUT if len(candidates) > 1 and asked.validation is None else asked.validation
    training = _training(asked, validation, batch_size, seed, algorithm, likelihood, known)
    source, placement = training.source, training.placement
    example = source.example()
    require_finite(example.inputs, "the training inputs")
    network = known.network(asked.net, example.inputs).with_constants()
    require_inferable(network)
    require_batch(example, network.graph, likelihood, "training")
    if example.targets.is_floating_point():
        network.graph.require_all_of("a regression")
    held = training.held
    if held is not None:
        held = placement.place(*held, "validation")
        require_batch(held, network.graph, likelihood, "validation")
    weights = _weights(network, algorithm, prior, asked, placement.device)
    mode = batch_norm_mode(asked.batch_norm, weights.network.graph, algorithm, source)
    groups = weights.groups
    target = Target(
        weights.network.graph,
        weights.constants,
        likelihood,
        weights.precisions,
        source.size,
        candidates[0],
        source.steps,
        (epochs + algorithm.burn_in_epochs) * source.steps,
        mode or "constant",
        weights.l1_weights,
        asked.clip,
        groups,
    )
    settings = {
        "likelihood": likelihood.describe(),
        "prior": {**prior.describe(), **({} if groups is None else groups.describe())},
        "algorithm": algorithm.describe(),
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "clip": asked.clip,
        "schedule": dataclasses.asdict(schedule),
        "dtype": str(placement.dtype).removeprefix("torch."),
        "precision": asked.precision,
        "data": source.fingerprint(),
        "validation": None if held is None else digest_of(held),
        **({"augment": [each.describe() for each in training.augmentations]} if training.augmentations else {}),
        "task": "regression" if example.targets.is_floating_point() else "classification",
        "domain": domain_to_json(training.domain),
        **({"features": list(features)} if (features := features_of(asked.train)) else {}),
        **({"frozen": list(network.frozen)} if network.frozen else {}),
        **({"batch_norm": mode} if mode else {}),
        **({"stochastic": weights.subset} if weights.subset else {}),
    }
    # Algorithms check in ``init`` whether training has room for what they keep.
    weights.algorithm.init(target, weights.params, torch.Generator(placement.device).manual_seed(seed))
    return Run(
        weights.algorithm, target, source, held, schedule, seed, settings, callbacks, weights.params, placement.device,
        candidates, directory, asked.checkpoint_every,
    )  # fmt: skip


def _training(
    asked: Asked,
    validation: float | Pair | None,
    batch_size: int,
    seed: int,
    algorithm: Algorithm[Any],
    likelihood: Likelihood,
    known: Known,
) -> Training:
    """Return the data, what is to be held out of them, and where they lie."""
    train = asked.train
    domain = domain_of_all(getattr(likelihood, "domain", None))
    if isinstance(train, DataSet):
        domain = train.domain if domain is None else domain
        train = train.train
    held: Batch | None = None
    if isinstance(validation, (tuple, list)):
        held = validation_pair(validation)
    elif validation is not None:
        train, held = held_out(train, validation, seed)
    placement = placement_of(asked.net, asked.device)
    augmentations = as_augmentations(asked.augment)
    source = known.source(train, batch_size, placement, algorithm.full_batch)
    source = augmented(source, augmentations, domain, algorithm.full_batch)
    return Training(source, held, placement, domain, augmentations)


def _weights(
    network: Network, algorithm: Algorithm[Any], prior: GaussianPrior, asked: Asked, device: torch.device
) -> Weights:
    """Return which tensors are random, which are fitted and which stay, with the prior of those that do not."""
    params = {name: p.to(device) for name, p in network.params.items()}
    constants = {name: b.to(device) for name, b in network.buffers.items()}
    precisions = prior.precisions(network.graph, {**constants, **params})
    l1_weights = prior.l1_weights(network.graph, {**constants, **params})
    network = network.with_random(random_parameters(asked.stochastic, network.graph))
    random, fitted = network.graph.parameters, network.graph.fitted
    subset: dict[str, Any] = {}
    if fitted and algorithm.full_batch:
        # A chain has one density to sample: what is not random stays where it is.
        subset = {"random": list(random), "constant": list(fitted)}
        constants |= {name: params.pop(name) for name in fitted}
        precisions = {name: precisions[name] for name in random}
        l1_weights = {name: weight for name, weight in l1_weights.items() if name in random}
    elif fitted:
        subset = {"random": list(random), "map": list(fitted), "map_lr": asked.map_lr}
        algorithm = PartlyRandom(algorithm, asked.map_lr)
    if not isinstance(prior, LearnedPrior):
        return Weights(algorithm, network, params, constants, precisions, l1_weights, None, subset)
    if fitted:
        raise InvalidInput(
            "the variances of a LearnedPrior are those of networks that are random as a whole. Leave out stochastic or "
            "take a GaussianPrior."
        )
    groups = prior.grouped(network.graph, params)
    require_learnable(algorithm)
    return Weights(algorithm, network, params, constants, groups.initial(precisions), l1_weights, groups, subset)
