"""One run, ready to be trained: its loops, and the posterior that they give."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from certibayes.inference._batches import BatchSource
from certibayes.inference.algorithm import Algorithm
from certibayes.inference.loop import Callback, Loop
from certibayes.inference.schedule import Schedule
from certibayes.inference.target import Target
from certibayes.inference.temperature import Search, predictive_figures
from certibayes.likelihoods import Batch
from certibayes.posteriors import Posterior


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
