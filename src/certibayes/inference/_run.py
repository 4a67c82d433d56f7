"""One run: what ``fit`` was asked for, checked, and made into loops and then into a posterior."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from certibayes.data import Augmentation, DataSet, as_augmentations
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
from certibayes.inference._statistics import batch_norm_mode
from certibayes.inference.algorithm import Algorithm
from certibayes.inference.learned_prior import LearnedPrior
from certibayes.inference.loop import Callback, Loop
from certibayes.inference.map import MAP
from certibayes.inference.names import as_algorithm
from certibayes.inference.prior import GaussianPrior
from certibayes.inference.schedule import Schedule
from certibayes.inference.target import Target
from certibayes.inference.temperature import HELD_OUT, Search, candidates_of, default_temperature, predictive_figures
from certibayes.likelihoods import Batch, Categorical, Likelihood, as_likelihood
from certibayes.networks import Network, trace
from certibayes.posteriors import Posterior
from certibayes.prediction import domain_of_all
from certibayes.regions import domain_to_json
from certibayes.support.checks import require_finite, whole_number


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


@dataclass(frozen=True)
class Run:
    """One run, ready to be trained.

    Attributes:
        algorithm: what makes the steps.
        target: what is inferred, at the first candidate temperature.
        source: training data.
        held: validation data, if any.
        schedule: of the learning rate.
        seed: of every random number.
        settings: for the posterior's metadata, without the temperature.
        callbacks: called after each epoch.
        params: the network's, to start from.
        device: where to compute.
        candidates: temperatures to choose from; one if it is given.
        directory: for checkpoints, if any are wanted.
        checkpoint_every: seconds between checkpoints.
    """

    algorithm: Algorithm[Any]
    target: Target
    source: BatchSource
    held: Batch | None
    schedule: Schedule
    seed: int
    settings: dict[str, Any]
    callbacks: tuple[Callback, ...]
    params: dict[str, Tensor]
    device: torch.device
    candidates: tuple[float, ...]
    directory: Path | None
    checkpoint_every: float

    def loops(self) -> list[Loop]:
        """Return what is to be trained: one loop, or one for each candidate temperature if it enters in every step."""
        searched = len(self.candidates) > 1 and self.algorithm.temperature_in == "update"
        return [self._loop(temperature, searched) for temperature in self.candidates[: None if searched else 1]]

    def _loop(self, temperature: float, searched: bool) -> Loop:
        title, directory = self.settings["algorithm"]["name"], self.directory
        if searched:
            title += f", temperature {temperature:g}"
            directory = None if directory is None else directory / f"temperature-{temperature!r}"
        return Loop(
            self.algorithm,
            dataclasses.replace(self.target, temperature=temperature),
            self.source,
            self.held,
            self.schedule,
            self.seed,
            {**self.settings, "temperature": temperature},
            self.callbacks,
            self.params,
            self.device,
            title,
            directory,
            self.checkpoint_every,
        )


class Result:
    """The posterior of a run, from its loops as they come."""

    def __init__(self, run: Run):
        self.run = run
        self.found: Posterior | None = None
        self.search: Search | None = None
        if len(run.candidates) > 1:
            assert run.held is not None
            self.search = Search(run.algorithm.temperature_in, run.candidates, run.held)

    def add(self, number: int, outcome: Loop | Exception) -> None:
        """Take the loop of this number, trained, or the error that it ended with."""
        if self.search is not None:
            self.search.add(number, outcome)
            return
        if isinstance(outcome, Exception):
            raise outcome
        self.found = outcome.posterior()
        if self.run.held is not None:
            figures = predictive_figures(outcome.target, self.found, self.run.held, self.run.seed)
            self.found.metadata["held_out"] = figures

    def posterior(self) -> Posterior:
        """Return the posterior, once all loops were added."""
        if self.search is not None:
            return self.search.posterior()
        assert self.found is not None
        return self.found


def prepare(  # noqa: PLR0913 - what fit takes
    net: nn.Module | Network,
    train: Data,
    *,
    algorithm: Algorithm[Any] | str,
    likelihood: Likelihood | str | None = None,
    prior: GaussianPrior | None = None,
    epochs: int = 20,
    batch_size: int = 128,
    seed: int = 0,
    temperature: float | str | Sequence[float] | None = None,
    schedule: Schedule | None = None,
    validation: float | Pair | None = None,
    device: str | torch.device | None = None,
    precision: str = "highest",
    batch_norm: str | None = None,
    clip: float | None = None,
    augment: Augmentation | Sequence[Augmentation] | str | None = None,
    stochastic: str | Sequence[str] | None = None,
    map_lr: float = MAP.lr,
    callbacks: Iterable[Callback] = (),
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    known: Known,
) -> Run:
    """Check the arguments of ``fit``, which says what they mean, and return the run."""
    algorithm = as_algorithm(algorithm)
    likelihood = Categorical() if likelihood is None else as_likelihood(likelihood)
    prior = instance_of(prior, GaussianPrior, "prior")
    schedule = instance_of(schedule, Schedule, "schedule")
    epochs = whole_number(epochs, "epochs", smallest=0 if algorithm.post_hoc else 1)
    batch_size = whole_number(batch_size, "batch_size", smallest=1)
    seed = seed_of(seed)
    callbacks = callbacks_of(callbacks)
    directory = directory_of(checkpoint, checkpoint_every)
    require_precision(precision)
    require_clip(clip, algorithm.full_batch)
    require_partly(algorithm, stochastic, map_lr)
    if temperature is None:
        temperature = default_temperature(algorithm, likelihood.bounded)
    candidates = candidates_of(temperature)
    if len(candidates) > 1 and validation is None:
        validation = HELD_OUT
    domain = domain_of_all(getattr(likelihood, "domain", None))
    if isinstance(train, DataSet):
        domain = train.domain if domain is None else domain
        train = train.train
    held: Batch | None = None
    if isinstance(validation, (tuple, list)):
        held = validation_pair(validation)
    elif validation is not None:
        train, held = held_out(train, validation, seed)
    placement = placement_of(net, device)
    augmentations = as_augmentations(augment)
    source = known.source(train, batch_size, placement, algorithm.full_batch)
    source = augmented(source, augmentations, domain, algorithm.full_batch)
    example = source.example()
    require_finite(example.inputs, "the training inputs")
    network = known.network(net, example.inputs).with_constants()
    require_inferable(network)
    require_batch(example, network.graph, likelihood, "training")
    if held is not None:
        held = placement.place(*held, "validation")
        require_batch(held, network.graph, likelihood, "validation")
    where = placement.device
    params = {name: p.to(where) for name, p in network.params.items()}
    constants = {name: b.to(where) for name, b in network.buffers.items()}
    precisions = prior.precisions(network.graph, {**constants, **params})
    l1_weights = prior.l1_weights(network.graph, {**constants, **params})
    network = network.with_random(random_parameters(stochastic, network.graph))
    mode = batch_norm_mode(batch_norm, network.graph, algorithm, source)
    described, random, fitted = algorithm.describe(), network.graph.parameters, network.graph.fitted
    subset: dict[str, Any] = {}
    if fitted and algorithm.full_batch:
        # A chain has one density to sample: what is not random stays where it is.
        subset = {"random": list(random), "constant": list(fitted)}
        constants |= {name: params.pop(name) for name in fitted}
        precisions = {name: precisions[name] for name in random}
        l1_weights = {name: weight for name, weight in l1_weights.items() if name in random}
    elif fitted:
        subset = {"random": list(random), "map": list(fitted), "map_lr": map_lr}
        algorithm = PartlyRandom(algorithm, map_lr)
    if fitted and isinstance(prior, LearnedPrior):
        raise InvalidInput(
            "the variances of a LearnedPrior are those of networks that are random as a whole. Leave out stochastic or "
            "take a GaussianPrior."
        )
    groups = prior.grouped(network.graph, params) if isinstance(prior, LearnedPrior) else None
    if groups is not None:
        require_learnable(algorithm)
        precisions = groups.initial(precisions)
    target = Target(
        network.graph,
        constants,
        likelihood,
        precisions,
        source.size,
        candidates[0],
        source.steps,
        (epochs + algorithm.burn_in_epochs) * source.steps,
        mode or "constant",
        l1_weights,
        clip,
        groups,
    )
    settings = {
        "likelihood": likelihood.describe(),
        "prior": {**prior.describe(), **({} if groups is None else groups.describe())},
        "algorithm": described,
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "clip": clip,
        "schedule": dataclasses.asdict(schedule),
        "dtype": str(placement.dtype).removeprefix("torch."),
        "precision": precision,
        "data": source.fingerprint(),
        "validation": None if held is None else digest_of(held),
        **({"augment": [each.describe() for each in augmentations]} if augmentations else {}),
        "task": "regression" if example.targets.is_floating_point() else "classification",
        "domain": domain_to_json(domain),
        **({"frozen": list(network.frozen)} if network.frozen else {}),
        **({"batch_norm": mode} if mode else {}),
        **({"stochastic": subset} if subset else {}),
    }
    # Algorithms check in ``init`` whether training has room for what they keep.
    algorithm.init(target, params, torch.Generator(where).manual_seed(seed))
    return Run(
        algorithm, target, source, held, schedule, seed, settings, callbacks, params, where, candidates, directory,
        checkpoint_every,
    )  # fmt: skip
