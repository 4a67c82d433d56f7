"""The training loop: steps, and what happens between them: checks, figures, checkpoints, Ctrl-C."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from certibayes.errors import Diverged, Interrupted, RunExists
from certibayes.inference import checkpoint as checkpoints
from certibayes.inference._batches import BatchSource
from certibayes.inference._capture import TOGETHER, CapturedUpdate, Step
from certibayes.inference._display import TrainingDisplay
from certibayes.inference._interrupt import StopRequest
from certibayes.inference._statistics import AT_END, BETWEEN_EPOCHS, refreshed, require_several
from certibayes.inference._sweep import FullSweep
from certibayes.inference._validation import validation_figures
from certibayes.inference.algorithm import Algorithm, Info
from certibayes.inference.schedule import Schedule
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.networks.batch_norm import EXAMPLES, has_statistics
from certibayes.networks.operations import Conv2d
from certibayes.posteriors import Posterior, versions
from certibayes.support.arithmetic import repeatable_kernels
from certibayes.support.checks import require_finite
from certibayes.support.progress import Report
from certibayes.support.seeds import derived_seed

Callback = Callable[[dict[str, float]], None]
"""Called after each epoch with its record: epoch, loss, what the algorithm reports, validation figures, seconds."""

FINITE_EVERY = 50
"""Steps between checks that the loss is a number."""

SECONDS_AHEAD = 0.25
"""Seconds that a GPU is left alone between such checks, which wait for it."""


@dataclass
class Loop:
    """Training of one posterior at one temperature.

    Attributes:
        algorithm: what makes the steps.
        target: what is inferred.
        source: training data.
        held: validation data, if any.
        schedule: of the learning rate.
        seed: of every random number.
        settings: for the posterior's metadata, and to tell this run from others when it is resumed.
        callbacks: called after each epoch.
        params: the network's, to start from.
        device: where to compute.
        title: for the progress bar.
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
    title: str = "training"
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
        self.info: Info = {}
        self.fixed_noise: Noise | None = None
        self.ahead: list[tuple[Tensor, Noise]] = []
        self.waiting: list[Step] = []
        self.captured: CapturedUpdate | None = None
        if self.device.type == "cuda" and not self.algorithm.full_batch:
            self.captured = CapturedUpdate(self.algorithm, self.generator, self._order())
        self.saved = self.drained = time.monotonic()

    def _order(self) -> torch.memory_format:
        """Return the order in memory in which a captured step takes its inputs."""
        convolves = any(isinstance(node.operation, Conv2d) for node in self.target.graph.nodes)
        rounded = self.settings.get("precision", "highest") != "highest"
        return torch.channels_last if convolves and rounded else torch.preserve_format

    @property
    def generator(self) -> Any:
        """What the algorithm's steps draw from: a generator, or the streams of several models."""
        return self.generators["algorithm"]

    def require_free(self, resume: bool) -> None:
        """Raise if the directory holds a checkpoint that is not to be resumed."""
        if self._has_checkpoint() and not resume:
            raise RunExists(
                f"{self.directory} already holds a run. Pass resume=True (--resume) to go on with it, or choose "
                "another directory."
            )

    def start(self) -> Any:
        """Return the state to start from."""
        return self.algorithm.init(self.target, self.params, self.generator)

    def train(self, resume: bool, progress: bool | Report) -> None:
        """Make all steps that are still to be made."""
        self.require_free(resume)
        self.state = self.start()
        if self._has_checkpoint():
            self._restore()
        elif has_statistics(self.target.graph) and self.total:
            self._refresh()
        with (
            TrainingDisplay(self.title, self.total, self.done.step, progress) as display,
            StopRequest() as stop,
            repeatable_kernels(self.settings.get("precision", "highest")),
        ):
            while self.done.step < self.total:
                self._epoch(display, stop)
        self._save()

    def posterior(self, temperature: float | None = None) -> Posterior:
        """Return the posterior; at another temperature only where that enters at the end alone."""
        target, settings = self.target, self.settings
        if temperature is not None:
            target = dataclasses.replace(target, temperature=temperature)
            settings = {**settings, "temperature": temperature}
        # A seed's purpose is part of its stream: respelled, the same seed would give another posterior.
        generator = torch.Generator(self.device).manual_seed(derived_seed(self.seed, "finalise"))
        sweep = FullSweep(target, self.source, self.seed)
        posterior = self.algorithm.finalize(target, self.state, sweep, generator)
        posterior.metadata.update(settings, history=self.done.history, versions=versions())
        if target.groups is not None:
            if self.algorithm.learns_prior_in == "update":
                posterior.prior_variances = target.groups.variances(target.precision)
            count = target.groups.at_floor(posterior.prior_variances)
            posterior.metadata["prior"] = {**settings["prior"], "at_floor": count}
        if posterior.statistics_vary:
            posterior.keep_statistics(self.source.inputs(EXAMPLES))
        return posterior

    def _epoch(self, display: TrainingDisplay, stop: StopRequest) -> None:
        """Make the steps of one epoch that are still to be made."""
        started = time.monotonic()
        epoch, first = divmod(self.done.step, self.source.steps)
        for batch in self._batches(epoch, first):
            if self.target.batch_norm == "batch":
                require_several(len(batch.inputs))
            if epoch == 0 and self.source.data is None:
                # Data in memory were checked as a whole; what a loader yields is seen here for the first time.
                require_finite(batch.inputs, "the training inputs")
                self.target.likelihood.validate(self.target.graph, batch)
            self._step(batch)
            if len(self.losses) >= FINITE_EVERY and self._may_wait():
                self._drain(display)
            # An epoch's last step is followed by its figures; they belong into the same checkpoint. While noise was
            # drawn ahead, its generator is further than the steps are.
            if self.done.step % self.source.steps and not self.ahead:
                self._pause(display, stop)
        if self.captured is not None:
            # While the GPU is still at work; what follows waits for it.
            self.source.prepare(self.epoch_seed(epoch + 1))
        self._drain(display)
        if has_statistics(self.target.graph) and not self.algorithm.full_batch:
            self._refresh()
        self._finish_epoch(epoch, time.monotonic() - started, display)
        self._pause(display, stop)

    def _may_wait(self) -> bool:
        """Tell whether losses may be read: always on a CPU, and on a GPU now and then."""
        return self.captured is None or time.monotonic() - self.drained > SECONDS_AHEAD

    def _batches(self, epoch: int, skip: int) -> Iterator[Batch]:
        return self.source.epoch(self.epoch_seed(epoch), skip=skip)

    def epoch_seed(self, epoch: int) -> int:
        """Return the seed of an epoch's order."""
        return derived_seed(self.seed, "epoch", epoch)

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

    def _settle(self) -> None:
        """Leave out what a curriculum no longer adds to the loss: the same steps in less time."""
        likelihood = self.target.likelihood.settled(self.done.step / self.total)
        if likelihood is not self.target.likelihood:
            self.target = dataclasses.replace(self.target, likelihood=likelihood)
            if self.captured is not None:
                self.captured = CapturedUpdate(self.algorithm, self.generator, self._order())

    def _step(self, batch: Batch) -> None:
        if not self.waiting:
            self._settle()
        rate, noise = self._rate_and_noise(batch)
        self.waiting.append(Step(batch, noise, rate))
        self.done.step += 1
        collects = self.algorithm.collects(self.target, self.done.step)
        learns, refreshes = self._learns_prior(), self._refreshes_state()
        # A GPU makes several steps at a time; nothing waits where a checkpoint may be written, which is where no noise
        # is drawn ahead.
        if collects or learns or refreshes or not self.ahead or len(self.waiting) == TOGETHER:
            self._make_steps()
        if refreshes:
            self.state = self.algorithm.refresh(self.target, self.state)
        if learns:
            self._learn_prior()
        if collects:
            self.state = self._collected()

    def _make_steps(self) -> None:
        """Make the steps that wait."""
        if self.captured is not None:
            self.state, self.info, losses = self.captured(self.target, self.state, self.waiting)
            self.losses += losses.unbind()
        else:
            for batch, noise, rate in self.waiting:
                state = self.state._replace(lr=rate)
                self.state, self.info = self.algorithm.update(self.target, state, batch, noise, self.generator)
                self.losses.append(self.info["loss"])
        self.waiting.clear()

    def _refreshes_state(self) -> bool:
        every = self.algorithm.refresh_every
        return every > 0 and self.done.step % self.source.steps % every == 0

    def _learns_prior(self) -> bool:
        """Tell whether variances of the prior are to be learned now."""
        groups = self.target.groups
        if groups is None or self.algorithm.learns_prior_in != "update":
            return False
        return groups.due(self.done.step, self.source.steps, self.total)

    def _learn_prior(self) -> None:
        assert self.target.groups is not None
        mean, std = self.algorithm.mean_params(self.state), self.algorithm.standard_deviations(self.target, self.state)
        self.target = self.target.with_precision(self.target.groups.learned(mean, std))

    def _precisions(self) -> list[Tensor]:
        """Return what a checkpoint holds of a learned prior, (G,) for each model; nothing of one that is given."""
        groups = self.target.groups
        return [] if groups is None else [groups.by_group(self.target.precision)]

    def _set_precisions(self, precisions: list[Tensor]) -> None:
        if self.target.groups is not None:
            self.target = self.target.with_precision(self.target.groups.by_weight(precisions[0]))

    def _collected(self) -> Any:
        return self.algorithm.collect(self.target, self.state)

    def _rate(self, step: int) -> Any:
        return self.algorithm.lr * self.schedule(step / self.total)

    def _noise(self, step: int, batch: Batch) -> Noise:
        return self.target.likelihood.draw(step / self.total, batch, self.generators["likelihood"])

    def _rate_and_noise(self, batch: Batch) -> tuple[Tensor, Noise]:
        """Return the learning rate and the noise of the next step."""
        if self.captured is not None:
            if not self.ahead:
                self.ahead = self._draw_ahead(batch)
            return self.ahead.pop(0)
        lr = self.state.lr.new_tensor(self._rate(self.done.step))
        if not self.algorithm.full_batch:
            return lr, self._noise(self.done.step, batch)
        if self.fixed_noise is None:
            # One function of the weights for the whole run: a sampler's acceptance compares values of it.
            generator = torch.Generator().manual_seed(derived_seed(self.seed, "fixed noise"))
            self.fixed_noise = self.target.likelihood.draw(1.0, batch, generator)
        return lr, self.fixed_noise

    def _draw_ahead(self, batch: Batch) -> list[tuple[Tensor, Noise]]:
        """Return rates and noise of the next steps, brought to the GPU at once and from memory it need not wait for."""
        left = self.source.steps - self.done.step % self.source.steps
        steps = range(self.done.step, self.done.step + min(TOGETHER, left))
        here = Batch(*(torch.empty_like(part, device="cpu") for part in batch))
        drawn = [self._noise(step, here) for step in steps]
        stacked = [self._sent(torch.stack(parts)) for parts in zip(*drawn, strict=True) if parts[0] is not None]
        rates = self._sent(torch.tensor([self._rate(step) for step in steps], dtype=self.state.lr.dtype))
        noises = [Noise(*parts) for parts in zip(*stacked, strict=True)]
        return list(zip(rates, noises, strict=True))

    def _sent(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    def _has_checkpoint(self) -> bool:
        return self.directory is not None and (self.directory / checkpoints.FILE_NAME).exists()

    def _restore(self) -> None:
        assert self.directory is not None
        (self.state, precisions), buffers, progress = checkpoints.read_checkpoint(
            self.directory, self.identity, (self.state, self._precisions()), self.target.buffers, self.generators
        )
        self.target = self.target.with_buffers(buffers)
        self._set_precisions(precisions)
        self._set_progress(progress)

    def _progress(self) -> dict[str, Any]:
        """Return how far this run has come, as a checkpoint holds it."""
        return dataclasses.asdict(self.done)

    def _set_progress(self, progress: dict[str, Any]) -> None:
        self.done = checkpoints.Progress(**progress)

    def _require_finite_state(self) -> None:
        """A loss shows divergence one step late; the state itself must be sound before it is kept."""
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
            state = (self.state, self._precisions())
            checkpoints.write_checkpoint(
                self.directory, self.identity, state, self.target.buffers, self.generators, self._progress()
            )
        self.saved = time.monotonic()

    def _refresh(self) -> None:
        lasting = self.algorithm.full_batch or self.done.step == self.total
        inputs = self.source.inputs(AT_END if lasting else BETWEEN_EPOCHS)
        buffers = refreshed(self.target, self.algorithm.mean_params(self.state), inputs)
        self.target = self.target.with_buffers(buffers)

    def _drain(self, display: TrainingDisplay) -> None:
        """Bring losses to the host in one go, check them and show the last."""
        self.drained = time.monotonic()
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
        display.epoch(self._close_epoch(epoch, seconds))

    def _close_epoch(self, epoch: int, seconds: float) -> dict[str, float]:
        """Enter an epoch's figures into the history, and tell the callbacks."""
        record = {"epoch": float(epoch + 1), "loss": self.done.loss_sum / self.source.steps}
        self.done.loss_sum = 0.0
        record |= {name: float(value) for name, value in self.info.items() if name != "loss"}
        if self.held is not None:
            record |= validation_figures(self.target, self.algorithm.mean_params(self.state), self.held, self.seed)
        self.done.history.append(record)
        for callback in self.callbacks:
            callback({**record, "seconds": seconds})
        return record
