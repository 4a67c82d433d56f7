"""``fit``: drive any algorithm over any data, with progress, validation, checkpoints and resume."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from certibayes.bounds import rules_for
from certibayes.bounds.checks import require_finite
from certibayes.errors import Diverged, Interrupted, InvalidInput, RunExists, UnsupportedLayer
from certibayes.inference import checkpoint as checkpoints
from certibayes.inference.algorithm import Algorithm
from certibayes.inference.batches import BatchSource, Data, Placement, digest_of, source_of, split_off
from certibayes.inference.display import TrainingDisplay
from certibayes.inference.interrupt import StopRequest
from certibayes.inference.prior import GaussianPrior
from certibayes.inference.schedule import Schedule
from certibayes.inference.statistics import EXAMPLES, has_statistics, refresh_statistics
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Categorical, Likelihood
from certibayes.networks import Graph, Network, trace
from certibayes.networks.device import find_device
from certibayes.networks.seeds import derived_seed
from certibayes.posteriors import Posterior, versions

Callback = Callable[[dict[str, float]], None]
"""Called after each epoch with its record: epoch, loss, seconds and the validation figures."""

FINITE_EVERY = 50
"""Steps between checks that the loss is a number."""


def fit(
    net: nn.Module | Network,
    train: Data,
    *,
    algorithm: Algorithm[Any],
    likelihood: Likelihood | None = None,
    prior: GaussianPrior | None = None,
    epochs: int = 20,
    batch_size: int = 128,
    seed: int = 0,
    temperature: float = 1.0,
    schedule: Schedule | None = None,
    validation: float | tuple[Tensor, Tensor] | None = None,
    device: str | torch.device | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
) -> Posterior:
    """Infer a posterior over the parameters of ``net``.

    Args:
        net: any traceable module; inference starts from its parameters and leaves it untouched.
        train: (inputs, targets) tensors, a Dataset, or a DataLoader (which keeps its own batch size).
        algorithm: such as ``VOGN()`` or ``MAP()``.
        likelihood: ``Categorical()`` by default.
        prior: ``GaussianPrior()`` by default.
        epochs: passes over the data.
        batch_size: examples a step.
        seed: of every random number; the same seed on the same machine gives the same bits, also after a resume.
        temperature: 1 is Bayes' rule; recorded in the posterior.
        schedule: of the learning rate; constant by default.
        validation: a fraction of the training tensors to hold out, or data of its own.
        device: where to train; by default where the network is.
        callbacks: called after each epoch.
        progress: show a progress bar.
        checkpoint: directory for checkpoints; none are written without it.
        checkpoint_every: seconds between checkpoints.
        resume: go on from the checkpoint in that directory, if there is one.

    Raises:
        InvalidInput: data, labels or settings cannot be used.
        UnsupportedLayer: the network holds a layer without rules.
        RunExists: the checkpoint directory holds another run, or ``resume`` is false and it holds one at all.
        Diverged: the loss is not a number any more.
        Interrupted: Ctrl-C; a checkpoint was written if a directory was given.
    """
    if epochs < 1:
        raise InvalidInput(f"epochs must be at least 1, got {epochs}.")
    if not (math.isfinite(temperature) and temperature > 0):
        raise InvalidInput(f"temperature must be positive, got {temperature}.")
    likelihood = Categorical() if likelihood is None else likelihood
    prior = GaussianPrior() if prior is None else prior
    schedule = Schedule() if schedule is None else schedule
    held: Batch | None = None
    if isinstance(validation, tuple):
        held = Batch(*validation)
    elif validation is not None:
        train, held = split_off(train, validation, derived_seed(seed, "validation"))
    placement = _placement(net, device)
    source = source_of(train, batch_size, placement)
    example = source.example()
    require_finite(example.inputs, "the training inputs")
    require_finite(example.targets, "the training targets")
    network = net if isinstance(net, Network) else trace(net, example.inputs)
    network.graph.require_input(example.inputs, "the training inputs")
    _require_inferable(network.graph)
    likelihood.validate(network.graph, example)
    if held is not None:
        held = placement.place(*held, "validation")
        require_finite(held.inputs, "the validation inputs")
        require_finite(held.targets, "the validation targets")
        network.graph.require_input(held.inputs, "the validation inputs")
        likelihood.validate(network.graph, held)
    where = placement.device
    params = {name: p.to(where) for name, p in network.params.items()}
    target = Target(
        network.graph,
        {name: b.to(where) for name, b in network.buffers.items()},
        likelihood,
        prior.precisions(network.graph, params),
        source.size,
        temperature,
        source.steps,
        epochs * source.steps,
    )
    settings = {
        **algorithm.describe(),
        **likelihood.describe(),
        **prior.describe(),
        "temperature": temperature,
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "schedule": dataclasses.asdict(schedule),
        "dtype": str(placement.dtype).removeprefix("torch."),
        "data": source.fingerprint(),
        "validation": None if held is None else digest_of(held),
        "task": "regression" if example.targets.is_floating_point() else "classification",
    }
    run = _Run(algorithm, target, source, held, schedule, epochs, seed, settings, tuple(callbacks), where)
    run.directory = None if checkpoint is None else Path(checkpoint)
    run.checkpoint_every = checkpoint_every
    return run.go(params, resume, progress)


def _require_inferable(graph: Graph) -> None:
    """Raise unless every layer has bounds and every parameter is a weight of some layer."""
    for node in graph.nodes:
        rules_for(node.operation)
    used = {name for node in graph.nodes for name in node.roles.values()}
    unused = [name for name in graph.parameters if name not in used]
    if unused:
        raise UnsupportedLayer(
            f"the parameters {', '.join(unused)} are not used as weights by the forward pass, so inference cannot "
            "reach them. Remove them; for weight normalisation, remove the parametrisation first."
        )


@dataclass
class _Run:
    """One call of ``fit``: the loop, and what happens between steps."""

    algorithm: Algorithm[Any]
    target: Target
    source: BatchSource
    held: Batch | None
    schedule: Schedule
    epochs: int
    seed: int
    settings: dict[str, Any]
    callbacks: tuple[Callback, ...]
    device: torch.device
    directory: Path | None = None
    checkpoint_every: float = 60.0

    def __post_init__(self) -> None:
        self.total = self.target.total_steps
        # As JSON gives them back (lists for tuples), so that they compare equal to what a file holds.
        self.settings = json.loads(json.dumps(self.settings))
        self.identity = json.loads(json.dumps({**self.settings, "graph": self.target.graph.to_json()}))
        self.generators = {
            "likelihood": torch.Generator().manual_seed(derived_seed(self.seed, "likelihood")),
            "algorithm": torch.Generator(self.device).manual_seed(derived_seed(self.seed, "algorithm")),
        }
        self.done = checkpoints.Progress()
        self.losses: list[Tensor] = []
        self.saved = time.monotonic()

    def go(self, params: dict[str, Tensor], resume: bool, shown: bool) -> Posterior:
        """Run to the end and return the posterior."""
        self.state = self.algorithm.init(self.target, params)
        if self._has_checkpoint():
            self._restore(resume)
        elif has_statistics(self.target.graph):
            self._refresh()
        title = type(self.algorithm).__name__
        with TrainingDisplay(title, self.total, self.done.step, shown) as display, StopRequest() as stop:
            while self.done.step < self.total:
                self._epoch(display, stop)
        self._save()
        posterior = self.algorithm.finalise(self.target, self.state, self.source.data)
        posterior.metadata.update(self.settings, history=self.done.history, versions=versions())
        return posterior

    def _epoch(self, display: TrainingDisplay, stop: StopRequest) -> None:
        """Make the steps of one epoch that are still to be made."""
        started = time.monotonic()
        epoch, first = divmod(self.done.step, self.source.steps)
        for batch in self.source.epoch(derived_seed(self.seed, "epoch", epoch), skip=first):
            if epoch == 0 and self.source.data is None:
                # Data in memory were checked as a whole; what a loader yields is seen here for the first time.
                require_finite(batch.inputs, "the training inputs")
                self.target.likelihood.validate(self.target.graph, batch)
            self._step(batch)
            if len(self.losses) == FINITE_EVERY:
                self._drain(display)
            # An epoch's last step is followed by its figures; they belong into the same checkpoint.
            if self.done.step % self.source.steps:
                self._pause(display, stop)
        self._drain(display)
        if has_statistics(self.target.graph):
            self._refresh()
        self._finish_epoch(epoch, time.monotonic() - started, display)
        self._pause(display, stop)

    def _pause(self, display: TrainingDisplay, stop: StopRequest) -> None:
        """Between two steps: write a checkpoint if it is time, and stop if that was asked for."""
        due = self.directory is not None and time.monotonic() - self.saved > self.checkpoint_every
        if not (due or stop.asked):
            return
        self._drain(display)
        self._save()
        if stop.asked and self.done.step < self.total:
            raise Interrupted(
                f"stopped after {self.done.step} of {self.total} steps. "
                + (
                    f"A checkpoint is in {self.directory}; resume=True (--resume) goes on from it."
                    if self.directory is not None
                    else "No checkpoint directory was given, so nothing was kept; pass checkpoint=... next time."
                )
            )

    def _step(self, batch: Batch) -> None:
        fraction = self.done.step / self.total
        noise = self.target.likelihood.draw(fraction, batch, self.generators["likelihood"])
        lr = torch.full_like(self.state.lr, self.algorithm.lr * self.schedule(fraction))
        self.state, info = self.algorithm.update(
            self.target, self.state._replace(lr=lr), batch, noise, self.generators["algorithm"]
        )
        self.done.step += 1
        self.losses.append(info["loss"])

    def _has_checkpoint(self) -> bool:
        return self.directory is not None and (self.directory / checkpoints.FILE_NAME).exists()

    def _restore(self, resume: bool) -> None:
        assert self.directory is not None
        if not resume:
            raise RunExists(
                f"{self.directory} already holds a run. Pass resume=True (--resume) to go on with it, or choose "
                "another directory."
            )
        self.state, buffers, self.done = checkpoints.read_checkpoint(
            self.directory, self.identity, self.state, self.target.buffers, self.generators
        )
        self.target = dataclasses.replace(self.target, buffers=buffers)

    def _require_finite_state(self) -> None:
        """A loss tells of divergence one step late; the state itself must be sound before it is kept."""
        leaves = pytree.tree_leaves(self.state)
        if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves):
            raise self._diverged()

    def _diverged(self) -> Diverged:
        return Diverged(
            f"training left the finite numbers by step {self.done.step}. Lower the learning rate, ramp the radius over "
            "more of the training, or narrow the prior."
            + (f" The last checkpoint in {self.directory} is still good." if self._has_checkpoint() else "")
        )

    def _save(self) -> None:
        self._require_finite_state()
        if self.directory is not None:
            checkpoints.write_checkpoint(
                self.directory, self.identity, self.state, self.target.buffers, self.generators, self.done
            )
        self.saved = time.monotonic()

    def _refresh(self) -> None:
        buffers = refresh_statistics(
            self.target.graph,
            self.algorithm.point(self.state),
            self.target.buffers,
            self.source.inputs(EXAMPLES),
        )
        self.target = dataclasses.replace(self.target, buffers=buffers)

    def _drain(self, display: TrainingDisplay) -> None:
        """Bring losses to the host in one go, check them and show the last."""
        if not self.losses:
            return
        values = torch.stack(self.losses).double().cpu()
        if not bool(torch.isfinite(values).all()):
            raise self._diverged()
        # Added one by one, so that the sum does not depend on where a checkpoint fell.
        for value in values.tolist():
            self.done.loss_sum += value
        self.losses.clear()
        display.show(self.done.step, values[-1].item())

    def _finish_epoch(self, epoch: int, seconds: float, display: TrainingDisplay) -> None:
        record = {"epoch": float(epoch + 1), "loss": self.done.loss_sum / self.source.steps}
        self.done.loss_sum = 0.0
        if self.held is not None:
            record |= self._validate(self.held)
        self.done.history.append(record)
        display.epoch(record)
        for callback in self.callbacks:
            callback({**record, "seconds": seconds})

    @torch.no_grad()
    def _validate(self, held: Batch) -> dict[str, float]:
        """Judge the mean network on held-out data, at full radii."""
        params = self.algorithm.point(self.state)
        likelihoods, hits = [], []
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "validation noise"))
        for inputs, targets in zip(held.inputs.split(1000), held.targets.split(1000), strict=True):
            batch = Batch(inputs, targets)
            noise = self.target.likelihood.draw(1.0, batch, generator)
            likelihoods.append(self.target.log_likelihood(params, batch, noise))
            if not targets.is_floating_point():
                outputs = self.target.graph.evaluate({**self.target.buffers, **params}, inputs)
                hits.append(outputs.argmax(-1) == targets)
        record = {"validation_loss": -float(torch.cat(likelihoods).mean())}
        if hits:
            record["validation_accuracy"] = float(torch.cat(hits).float().mean())
        return record


def _placement(net: nn.Module | Network, device: str | torch.device | None) -> Placement:
    tensors = net.params.values() if isinstance(net, Network) else net.parameters()
    first = next(iter(tensors), torch.empty(0))
    return Placement(first.device if device is None else find_device(device), first.dtype)
