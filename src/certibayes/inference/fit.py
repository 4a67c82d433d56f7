"""``fit``: drive any algorithm over any data, with progress, validation, checkpoints and resume."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from certibayes.bounds import rules_for
from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.inference.algorithm import Algorithm
from certibayes.inference.batches import Data, Placement, digest_of, pair_of, source_of, split_off, whole
from certibayes.inference.loop import Callback, Loop
from certibayes.inference.prior import GaussianPrior
from certibayes.inference.schedule import Schedule
from certibayes.inference.target import Target
from certibayes.inference.temperature import candidates_of, default_temperature, predictive_figures, validated
from certibayes.likelihoods import Batch, Categorical, Likelihood
from certibayes.networks import Network, trace
from certibayes.networks.plain import require_plain
from certibayes.posteriors import Posterior
from certibayes.support.checks import require_finite
from certibayes.support.devices import find_device
from certibayes.support.seeds import derived_seed

HELD_OUT = 0.1
"""Fraction of the training data on which a temperature is chosen, unless another is given."""


def fit(  # noqa: PLR0913 - public
    net: nn.Module | Network,
    train: Data,
    *,
    algorithm: Algorithm[Any],
    likelihood: Likelihood | None = None,
    prior: GaussianPrior | None = None,
    epochs: int = 20,
    batch_size: int = 128,
    seed: int = 0,
    temperature: float | str | Sequence[float] | None = None,
    schedule: Schedule | None = None,
    validation: float | tuple[Tensor, Tensor] | None = None,
    device: str | torch.device | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    on_start: Callable[[], None] = lambda: None,
) -> Posterior:
    """Infer a posterior over the parameters of ``net``.

    Args:
        net: any traceable module; inference starts from its parameters and leaves it untouched. Parameters that are
            frozen (``requires_grad=False``) are constants: they have no prior and no spread, travel with the posterior
            as they are, and are named in its metadata, under ``"frozen"``; a frozen batch norm keeps its statistics.
        train: (inputs, targets) tensors or arrays, a Dataset, or a DataLoader (which keeps its own batch size).
        algorithm: such as ``VOGN()`` or ``MAP()``.
        likelihood: ``Categorical()`` by default.
        prior: ``GaussianPrior()`` by default.
        epochs: passes over the data; for HMC, trajectories that are kept, with burn-in on top. 0 only for methods that
            can work on a trained network.
        batch_size: examples a step.
        seed: of every random number; the same seed on the same machine gives the same bits, also after a resume.
        temperature: 1 is Bayes' rule, and the default; but where bounds judge the weights, the default is the
            algorithm's ``robust_temperature``. Recorded in the posterior. ``"validate"``, or a sequence of candidates,
            chooses the one whose predictor explains held-out training data best and reports the curve in the metadata,
            under ``"temperature_curve"``; see ``inference.temperature``.
        schedule: of the learning rate; constant by default.
        validation: a fraction of the training tensors to hold out, or data of its own. The state is judged on it after
            each epoch, and the posterior's predictor at the end (metadata ``"held_out"``). 0.1 where a temperature is
            to be chosen and nothing else is said.
        device: where to train; by default where the network is.
        callbacks: called after each epoch.
        progress: show a progress bar.
        checkpoint: directory for checkpoints; none are written without it.
        checkpoint_every: seconds between checkpoints.
        resume: go on from the checkpoint in that directory, if there is one.
        on_start: called once, when everything has been checked and before the first step; the place to write files
            that a call with wrong settings must not leave behind.

    Raises:
        InvalidInput: data, labels or settings cannot be used.
        UnsupportedLayer: the network holds a layer without rules.
        RunExists: the checkpoint directory holds another run, or ``resume`` is false and it holds one at all.
        Diverged: the loss is not a number any more.
        Interrupted: Ctrl-C; a checkpoint was written if a directory was given.
    """
    likelihood = Categorical() if likelihood is None else likelihood
    prior = GaussianPrior() if prior is None else prior
    schedule = Schedule() if schedule is None else schedule
    _require_instance(algorithm, Algorithm, "algorithm", "VOGN()")
    _require_instance(likelihood, Likelihood, "likelihood", "Categorical()")
    _require_instance(prior, GaussianPrior, "prior", "GaussianPrior()")
    _require_instance(schedule, Schedule, "schedule", "Schedule()")
    if epochs < (0 if algorithm.post_hoc else 1):
        raise InvalidInput(f"epochs must be at least 1, got {epochs}.")
    if temperature is None:
        temperature = default_temperature(algorithm, likelihood.bounded)
    candidates = candidates_of(temperature)
    if len(candidates) > 1 and validation is None:
        validation = HELD_OUT
    held: Batch | None = None
    if isinstance(validation, tuple):
        held = _validation_pair(validation)
    elif validation is not None:
        train, held = split_off(train, validation, derived_seed(seed, "validation"))
    placement = _placement(net, device)
    source = source_of(train, batch_size, placement)
    if algorithm.full_batch:
        source = whole(source)
    example = source.example()
    require_finite(example.inputs, "the training inputs")
    require_finite(example.targets, "the training targets")
    network = (net if isinstance(net, Network) else trace(net, example.inputs)).with_constants()
    network.graph.require_input(example.inputs, "the training inputs")
    _require_inferable(network)
    likelihood.validate(network.graph, example)
    if held is not None:
        held = placement.place(*held, "validation")
        require_finite(held.inputs, "the validation inputs")
        require_finite(held.targets, "the validation targets")
        network.graph.require_input(held.inputs, "the validation inputs")
        likelihood.validate(network.graph, held)
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
        "data": source.fingerprint(),
        "validation": None if held is None else digest_of(held),
        "task": "regression" if example.targets.is_floating_point() else "classification",
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
            tuple(callbacks),
            where,
            directory,
            checkpoint_every,
        )
        loop.train(params, resume, progress, title)
        return loop

    # Algorithms check in ``init`` whether training has room for what they keep.
    algorithm.init(target, params, torch.Generator(where).manual_seed(seed))
    on_start()
    directory = None if checkpoint is None else Path(checkpoint)
    name = type(algorithm).__name__
    if len(candidates) == 1:
        loop = trained(candidates[0], directory, name)
        posterior = loop.posterior()
        if held is not None:
            posterior.metadata["held_out"] = predictive_figures(loop.target, posterior, held, seed)
        return posterior
    assert held is not None
    return validated(algorithm.temperature_in, candidates, trained, held, directory, name)


def _require_instance(value: object, kind: type, what: str, example: str) -> None:
    """Raise unless ``value`` is an instance of ``kind``; a class in its place is a common slip."""
    if isinstance(value, kind):
        return
    if isinstance(value, type) and issubclass(value, kind):
        raise InvalidInput(f"{what} is the class {value.__name__}; pass an instance: {value.__name__}().")
    raise InvalidInput(f"{what} must be a certibayes {kind.__name__} such as {example}, not {value!r}.")


def _validation_pair(validation: Sequence[Any]) -> Batch:
    if len(validation) != 2:
        raise InvalidInput(f"validation is a fraction or a pair (inputs, targets), got {len(validation)} parts.")
    inputs, targets = validation
    return pair_of(inputs, targets, "validation")


def _require_inferable(network: Network) -> None:
    """Raise unless every layer has bounds and there are parameters, each a weight of some layer."""
    graph = network.graph
    for node in graph.nodes:
        rules_for(node.operation)
    if not graph.parameters:
        raise InvalidInput(
            "all parameters of the network are frozen (requires_grad=False), so there is nothing to infer. Free some, "
            "such as net[-1].requires_grad_(True); for a fixed network take certibayes.Point(net)."
            if network.frozen
            else "the network has no parameters, so there is nothing to infer."
        )
    if not network.params:
        raise InvalidInput("the network comes without weights to start from. Pass the module, or what trace returned.")
    used = {name for node in graph.nodes for name in node.roles.values()}
    unused = [name for name in graph.parameters if name not in used]
    if unused:
        raise UnsupportedLayer(
            f"the parameters {', '.join(unused)} are not used as weights by the forward pass, so inference cannot "
            "reach them. Remove them, or freeze them: requires_grad_(False)."
        )


def _placement(net: nn.Module | Network, device: str | torch.device | None) -> Placement:
    if not isinstance(net, Network):
        require_plain(net, ())
    tensors = net.params.values() if isinstance(net, Network) else net.parameters()
    first = next((t for t in tensors if t.is_floating_point()), torch.empty(0))
    return Placement(first.device if device is None else find_device(device), first.dtype)
