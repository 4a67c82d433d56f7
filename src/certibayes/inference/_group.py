"""Models of one architecture, trained as one program.

A group is a loop like any other, over a state that holds the states of all its models. What belongs to one model
alone is left to that model's own loop: its order of the data, its noise, its rate, its figures after each epoch, its
posterior.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from certibayes.errors import Diverged
from certibayes.inference import checkpoint as checkpoints
from certibayes.inference._batches import epochs_together
from certibayes.inference._display import TrainingDisplay
from certibayes.inference._flat import FLAT, is_elementwise
from certibayes.inference._many import ManyTarget, row, stacked
from certibayes.inference._streams import Streams
from certibayes.inference.loop import Loop
from certibayes.likelihoods import Batch, Noise
from certibayes.support.progress import Report
from certibayes.support.stacks import pick, stack

ON_CPU = 1_000_000
"""Weights of all models together that a CPU takes at once; with more, elementwise work waits for memory."""


class Group(Loop):
    """Training of several posteriors as one program.

    Args:
        members: a loop for each model, all with the same ``program``; after training they hold their states.
        directory: for checkpoints of all of them, if any are wanted.

    Attributes:
        failed: the errors of models that left the finite numbers, by their place. The others go on: no number of one
            model ever enters another's.
    """

    def __init__(self, members: Sequence[Loop], directory: Path | None):
        self.members = tuple(members)
        self.failed: dict[int, Diverged] = {}
        first = self.members[0]
        target = ManyTarget.of_all([member.target for member in self.members], first.params)
        self.layout = target.layout
        super().__init__(
            first.algorithm, target, first.source, None, first.schedule, first.seed, first.settings, (), first.params,
            first.device, f"{type(first.algorithm).__name__}, {len(self.members)} models", directory,
            first.checkpoint_every,
        )  # fmt: skip
        self.identity = {f"run {i}": member.identity for i, member in enumerate(self.members)}
        self.generators = {
            f"{name} {i}": generator
            for i, member in enumerate(self.members)
            for name, generator in member.generators.items()
        }

    @property
    def generator(self) -> Streams:
        """The streams of all models."""
        generators = tuple(member.generators["algorithm"] for member in self.members)
        sizes = [math.prod(shape) for shape in self.layout.shapes.values()]
        # As a model alone draws: tensor by tensor on a CPU, and all at once in a captured step.
        return Streams(generators, tuple(sizes) if self.device.type == "cpu" else (sum(sizes),))

    def _order(self) -> torch.memory_format:
        """See the base class: batches of several models have one dimension more than images."""
        return torch.preserve_format

    def start(self) -> Any:
        """See the base class."""
        states = [self.layout.joined(member.start()) for member in self.members]
        self.like = states[0]
        return stacked(states)

    def train(self, resume: bool, progress: bool | Report) -> None:
        """See the base class; returns, with all of them in ``failed``, where every model diverged."""
        try:
            super().train(resume, progress)
        except Diverged:
            if not self._all_failed():
                raise
        except torch.cuda.OutOfMemoryError as error:
            error.add_note(f"{len(self.members)} models do not fit at once; take fewer: group_size.")
            raise
        for member, own in zip(self.members, self._rows(), strict=True):
            member.state = own

    def _rows(self) -> list[Any]:
        """Return each model's own state, with its weights by name."""
        return [self.layout.named(row(self.state, i, self.like)) for i in range(len(self.members))]

    def _batches(self, epoch: int, skip: int) -> Iterator[Batch]:
        sources = [member.source for member in self.members]
        return epochs_together(sources, [member.epoch_seed(epoch) for member in self.members], skip)

    def _rate(self, step: int) -> Any:
        return [[member._rate(step)] for member in self.members]

    def _noise(self, step: int, batch: Batch) -> Noise:
        """Draw each model's noise; but once for all that have one likelihood, where nothing in it is random."""
        example = Batch(*(part[:, 0] for part in batch))
        fixed: dict[int, Noise | None] = {}
        drawn = []
        for member in self.members:
            key, generator = id(member.target.likelihood), member.generators["likelihood"]
            noise = fixed.get(key)
            if noise is None:
                before = None if key in fixed else generator.get_state()
                noise = member._noise(step, example)
                if before is not None:
                    fixed[key] = noise if torch.equal(before, generator.get_state()) else None
            drawn.append(noise)
        return Noise(*(torch.stack(parts) for parts in zip(*drawn, strict=True) if parts[0] is not None))

    def _collected(self) -> Any:
        collected = [
            member.algorithm.collect(member.target, own) for member, own in zip(self.members, self._rows(), strict=True)
        ]
        return stacked([self.layout.joined(own) for own in collected])

    def _refresh(self) -> None:
        for member, own in zip(self.members, self._rows(), strict=True):
            member.state = own
            member._refresh()
        self.target = self.target.with_buffers(stack([member.target.buffers for member in self.members]))

    def _learn_prior(self) -> None:
        for member, own in zip(self.members, self._rows(), strict=True):
            member.state = own
            member._learn_prior()
        self._take_precisions()

    def _precisions(self) -> list[Tensor]:
        return [own for member in self.members for own in member._precisions()]

    def _set_precisions(self, precisions: list[Tensor]) -> None:
        if precisions:
            for member, own in zip(self.members, precisions, strict=True):
                member._set_precisions([own])
        self._take_precisions()

    def _take_precisions(self) -> None:
        """Let the program have the learned precisions of all models."""
        if self.target.groups is not None:
            each = [self.layout.join(member.target.precision) for member in self.members]
            self.target = self.target.with_precision({FLAT: torch.stack(each)})

    def _progress(self) -> dict[str, Any]:
        return {
            "step": self.done.step,
            "models": [dataclasses.asdict(member.done) for member in self.members],
            "diverged": {str(i): str(error) for i, error in self.failed.items()},
        }

    def _set_progress(self, progress: dict[str, Any]) -> None:
        self.done.step = progress["step"]
        self.failed = {int(i): Diverged(words) for i, words in progress["diverged"].items()}
        for i, (member, done) in enumerate(zip(self.members, progress["models"], strict=True)):
            member.done = checkpoints.Progress(**done)
            member.target = member.target.with_buffers(pick(self.target.buffers, i))

    def _drain(self, display: TrainingDisplay) -> None:
        """See the base class; a model whose loss is no number has failed, and the others go on."""
        self.drained = time.monotonic()
        if not self.losses:
            return
        values = torch.stack(self.losses).double().cpu()
        self.losses.clear()
        self._fail(torch.isfinite(values).all(0))
        for i, member in enumerate(self.members):
            member.done.step = self.done.step
            if i not in self.failed:
                # One by one, as a model alone adds them.
                for value in values[:, i].tolist():
                    member.done.loss_sum += value
        good = [i for i in range(len(self.members)) if i not in self.failed]
        display.show(self.done.step, float(values[-1, good].mean()))

    def _require_finite_state(self) -> None:
        leaves = [torch.isfinite(leaf).flatten(1).all(1) for leaf in pytree.tree_leaves(self.state)]
        self._fail(torch.stack(leaves).all(0))

    def _fail(self, finite: Tensor) -> None:
        """Note which models are no longer finite, (M,); raise if none is left."""
        for i, (member, fine) in enumerate(zip(self.members, finite.tolist(), strict=True)):
            if not fine and i not in self.failed:
                member.done.step = self.done.step
                self.failed[i] = member._diverged()
        if self._all_failed():
            raise self._diverged()

    def _all_failed(self) -> bool:
        return len(self.failed) == len(self.members)

    def _finish_epoch(self, epoch: int, seconds: float, display: TrainingDisplay) -> None:
        for i, (member, own) in enumerate(zip(self.members, self._rows(), strict=True)):
            if i not in self.failed:
                member.state = own
                member.info = {name: value.flatten()[i] for name, value in self.info.items()}
                member._close_epoch(epoch, seconds)


def program(loop: Loop) -> tuple[Any, ...]:
    """Return all that decides which operations a step consists of; what is not in it may differ within a group."""
    algorithm, target, source = loop.algorithm, loop.target, loop.source
    settings = {name: value for name, value in vars(algorithm).items() if name != "lr"}
    example = Batch(*(part[:1] for part in source.example()))
    noise = target.likelihood.draw(1.0, example, torch.Generator())
    return (
        type(algorithm),
        settings,
        target.likelihood.program,
        [None if part is None else part.shape for part in noise],
        loop.identity["graph"],
        [(name, p.shape, p.dtype, p.device) for name, p in loop.params.items()],
        (target.data_size, target.epoch_steps, target.total_steps, source.smallest),
        (loop.device, loop.settings.get("precision"), target.batch_norm),
        None if target.groups is None else (target.groups.every, target.groups.start),
        (target.clip, {name: float(weight) for name, weight in target.l1.items()}),
    )


def can_be_grouped(loop: Loop) -> bool:
    """Tell whether a model can be trained in one program with others."""
    algorithm = loop.algorithm
    in_memory = loop.source.data is not None
    return is_elementwise(algorithm) and in_memory and not (algorithm.full_batch or algorithm.stacked)


def grouped(loops: Sequence[Loop], group_size: int | None) -> list[list[int]]:
    """Return which loops to train together, by their places: those of one program, in the order of their first.

    Args:
        loops: one for each model.
        group_size: the most models in a group; by default all on a GPU, and as many as its caches like on a CPU.
    """
    groups: list[tuple[tuple[Any, ...] | None, list[int]]] = []
    for index, loop in enumerate(loops):
        mine = program(loop) if can_be_grouped(loop) else None
        weights = sum(p.numel() for p in loop.params.values())
        most = group_size or (max(1, ON_CPU // weights) if loop.device.type == "cpu" else len(loops))
        for theirs, places in groups:
            if mine is not None and mine == theirs and len(places) < most:
                places.append(index)
                break
        else:
            groups.append((mine, [index]))
    return [places for _, places in groups]


def trained(
    loops: Sequence[Loop], directory: Path | None, *, group_size: int | None, resume: bool, progress: bool | Report
) -> Iterator[tuple[int, Loop | Diverged]]:
    """Train all loops, and yield each with its place once it is trained, or the error if it diverged.

    Args:
        loops: one for each model, with the directories they would have alone.
        directory: for checkpoints of groups.
        group_size: see ``grouped``.
        resume: go on from checkpoints.
        progress: see ``fit``; a function is called with the steps of all units.
    """
    units = _units(loops, directory, group_size)
    # What was trained and handed over can be freed.
    del loops
    for unit, _ in units:
        unit.require_free(resume)
    overall, before = sum(unit.total for unit, _ in units), 0
    while units:
        unit, places = units.pop(0)
        yield from _outcomes(unit, places, resume, _shifted(progress, before, overall))
        before += unit.total


def _units(loops: Sequence[Loop], directory: Path | None, group_size: int | None) -> list[tuple[Loop, list[int]]]:
    """Return what is trained one after another, loops and groups of them, with their places."""
    units: list[tuple[Loop, list[int]]] = []
    groups = 0
    for places in grouped(loops, group_size):
        if len(places) == 1:
            units.append((loops[places[0]], places))
            continue
        own = None if directory is None else directory / f"group-{groups}"
        units.append((Group([loops[place] for place in places], own), places))
        groups += 1
    return units


def _outcomes(
    unit: Loop, places: list[int], resume: bool, progress: bool | Report
) -> Iterator[tuple[int, Loop | Diverged]]:
    try:
        unit.train(resume, progress)
    except Diverged as error:
        yield places[0], error
        return
    if not isinstance(unit, Group):
        yield places[0], unit
        return
    for i, (place, member) in enumerate(zip(places, unit.members, strict=True)):
        yield place, unit.failed.get(i, member)


def _shifted(progress: bool | Report, before: int, overall: int) -> bool | Report:
    """Return ``progress`` for one of several units; a bar starts anew for each, a function counts the steps of all."""
    if not callable(progress):
        return progress
    return lambda done, _: progress(before + done, overall)
