"""``fit``: drive any algorithm over any data, with progress, validation, checkpoints and resume."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from certibayes.data import Augmentation, DataSet, as_augmentations
from certibayes.inference._augmented import augmented
from certibayes.inference._batches import Data, Pair, digest_of, source_of, split_off, validation_pair, whole
from certibayes.inference._border import (
    callbacks_of,
    directory_of,
    instance_of,
    placement_of,
    require_batch,
    require_inferable,
    require_precision,
    require_progress,
    seed_of,
)
from certibayes.inference.algorithm import Algorithm
from certibayes.inference.loop import Callback, Loop
from certibayes.inference.names import as_algorithm
from certibayes.inference.prior import GaussianPrior
from certibayes.inference.schedule import Schedule
from certibayes.inference.target import Target
from certibayes.inference.temperature import candidates_of, default_temperature, predictive_figures, validated
from certibayes.likelihoods import Batch, Categorical, Likelihood, as_likelihood
from certibayes.networks import Network, trace
from certibayes.posteriors import Posterior
from certibayes.prediction import domain_of_all
from certibayes.regions import domain_to_json
from certibayes.support.checks import require_finite, whole_number
from certibayes.support.progress import Report
from certibayes.support.seeds import derived_seed

HELD_OUT = 0.1
"""Fraction of the training data on which a temperature is chosen, unless another is given."""


def fit(  # noqa: PLR0913 - public
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
    augment: Augmentation | Sequence[Augmentation] | str | None = None,
    device: str | torch.device | None = None,
    precision: str = "highest",
    callbacks: Iterable[Callback] = (),
    progress: bool | Report = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    on_start: Callable[[], None] = lambda: None,
) -> Posterior:
    """Infer a posterior over the parameters of ``net``.

    Args:
        net: any traceable module; inference starts from its parameters and leaves it untouched. Parameters that are
            frozen (``requires_grad=False``) are constants: they have no prior and do not vary, are part of the
            posterior as they are, and are named in its metadata, under ``"frozen"``; a frozen batch norm keeps its
            statistics.
        train: (inputs, targets) as tensors, arrays or lists; what ``certibayes.data.load`` returned, of which the
            training split is taken; a torch Dataset; or a DataLoader (which keeps its own batch size).
        algorithm: such as ``VOGN()``, or a name such as ``"vogn"`` for one with its defaults; see
            ``inference.ALGORITHMS``.
        likelihood: ``Categorical()`` by default.
        prior: ``GaussianPrior()`` by default.
        epochs: passes over the data; for HMC, trajectories that are kept, with burn-in on top. 0 only for methods that
            can work on a trained network.
        batch_size: examples per step.
        seed: of every random number; the same seed on the same machine gives the same bits, also after a resume.
        temperature: 1 is Bayes' rule, and the default; but where the likelihood depends on bounds, the default is the
            algorithm's ``robust_temperature``. Recorded in the posterior. ``"validate"``, or a sequence of candidates,
            chooses the one whose predictor explains held-out training data best and reports the curve in the metadata,
            under ``"temperature_curve"``; see ``inference.temperature``.
        schedule: of the learning rate; constant by default.
        validation: a fraction of the training tensors to hold out, or data of its own. The state is evaluated on it
            after each epoch, and the posterior's predictor at the end (metadata ``"held_out"``). 0.1 where a
            temperature is to be chosen and nothing else is said.
        augment: how training images are changed at random: ``certibayes.data.RandomFlip()``,
            ``certibayes.data.RandomCrop(padding=2)``, a list of them, or ``"flip,crop:2"``. Every batch is changed
            anew; validation, statistics of batch norm and curvature at the end are about the images as they are, and
            the number N of examples stays theirs. Not for methods that take all data at once (HMC).
        device: where to train; by default where the network is.
        precision: ``"highest"``, or ``"high"`` if products on a GPU may round their factors to TF32, which is faster.
            For training alone: predictors and certificates never do.
        callbacks: called after each epoch.
        progress: True for a bar on standard error, False for nothing, or a function of (steps made, steps in all).
        checkpoint: directory for checkpoints; none are written without it.
        checkpoint_every: seconds between checkpoints.
        resume: go on from the checkpoint in that directory, if there is one.
        on_start: called once, when everything has been checked and before the first step; the place to write files
            that a call with wrong settings must not leave behind.

    Returns:
        The posterior. Its domain, which certificates take over, is that of the likelihood or else of the data set.

    Raises:
        InvalidInput: data, labels or settings cannot be used.
        UnsupportedLayer: the network holds a layer without rules.
        RunExists: the checkpoint directory holds another run, or ``resume`` is false and it holds one at all.
        Diverged: the loss is not a number any more.
        Interrupted: Ctrl-C; a checkpoint was written if a directory was given.
    """
    algorithm = as_algorithm(algorithm)
    likelihood = Categorical() if likelihood is None else as_likelihood(likelihood)
    prior = instance_of(prior, GaussianPrior, "prior")
    schedule = instance_of(schedule, Schedule, "schedule")
    epochs = whole_number(epochs, "epochs", smallest=0 if algorithm.post_hoc else 1)
    batch_size = whole_number(batch_size, "batch_size", smallest=1)
    seed = seed_of(seed)
    callbacks = callbacks_of(callbacks)
    directory = directory_of(checkpoint, checkpoint_every)
    require_progress(progress)
    require_precision(precision)
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
        train, held = split_off(train, validation, derived_seed(seed, "validation"))
    placement = placement_of(net, device)
    source = source_of(train, batch_size, placement)
    augmentations = as_augmentations(augment)
    source = augmented(source, augmentations, domain, algorithm.full_batch)
    if algorithm.full_batch:
        source = whole(source)
    example = source.example()
    require_finite(example.inputs, "the training inputs")
    network = (net if isinstance(net, Network) else trace(net, example.inputs)).with_constants()
    require_inferable(network)
    require_batch(example, network.graph, likelihood, "training")
    if held is not None:
        held = placement.place(*held, "validation")
        require_batch(held, network.graph, likelihood, "validation")
    where = placement.device
    params = {name: p.to(where) for name, p in network.params.items()}
    constants = {name: b.to(where) for name, b in network.buffers.items()}
    target = Target(
        network.graph,
        constants,
        likelihood,
        prior.precisions(network.graph, {**constants, **params}),
        source.size,
        candidates[0],
        source.steps,
        (epochs + algorithm.burn_in_epochs) * source.steps,
    )
    settings = {
        "likelihood": likelihood.describe(),
        "prior": prior.describe(),
        "algorithm": algorithm.describe(),
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "schedule": dataclasses.asdict(schedule),
        "dtype": str(placement.dtype).removeprefix("torch."),
        "precision": precision,
        "data": source.fingerprint(),
        "validation": None if held is None else digest_of(held),
        **({"augment": [each.describe() for each in augmentations]} if augmentations else {}),
        "task": "regression" if example.targets.is_floating_point() else "classification",
        "domain": domain_to_json(domain),
        **({"frozen": list(network.frozen)} if network.frozen else {}),
    }

    def trained(temperature: float, directory: Path | None, title: str) -> Loop:
        loop = Loop(
            algorithm,
            dataclasses.replace(target, temperature=temperature),
            source,
            held,
            schedule,
            seed,
            {**settings, "temperature": temperature},
            callbacks,
            where,
            directory,
            checkpoint_every,
        )
        loop.train(params, resume, progress, title)
        return loop

    # Algorithms check in ``init`` whether training has room for what they keep.
    algorithm.init(target, params, torch.Generator(where).manual_seed(seed))
    on_start()
    name = type(algorithm).__name__
    if len(candidates) == 1:
        loop = trained(candidates[0], directory, name)
        posterior = loop.posterior()
        if held is not None:
            posterior.metadata["held_out"] = predictive_figures(loop.target, posterior, held, seed)
        return posterior
    assert held is not None
    return validated(algorithm.temperature_in, candidates, trained, held, directory, name)
