"""Bringing a stored run and its test data together."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from certibayes import data
from certibayes.bounds import Domain
from certibayes.cli.terminal import notes
from certibayes.errors import InvalidInput
from certibayes.experiments import load_run
from certibayes.posteriors import Posterior
from certibayes.prediction import Predictor


class OpenedRun(NamedTuple):
    """A predictor and the points to judge it on."""

    posterior: Posterior
    predictor: Predictor
    x: Tensor
    y: Tensor
    domain: Domain
    dataset: str


def open_run(
    run: Path,
    dataset: str | None,
    data_dir: Path | None,
    samples: int | None,
    seed: int,
    limit: int | None,
    device: str | None,
    option: str = "--dataset",
) -> OpenedRun:
    """Load a run, draw its predictor and load the test data; ``option`` is what the command calls the data set.

    A posterior that holds fewer samples than were asked for gives all it holds, and that is told on standard error.
    """
    posterior = load_run(run)
    name = dataset or posterior.metadata.get("dataset")
    if name is None:
        raise InvalidInput(f"this posterior does not say which data it was trained on; pass {option} NAME.")
    loaded = data.load(name, data_dir)
    if limit is not None and limit < 1:
        raise InvalidInput(f"--limit must be at least 1, got {limit}.")
    if samples is not None and posterior.held is not None and samples > posterior.held:
        notes.print(
            f"{run} holds {posterior.held} of the {samples} samples asked for; all of them are taken",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
        samples = posterior.held
    predictor = posterior.predictor(samples, seed=seed, device=device)
    x, y = loaded.test.inputs[:limit].to(predictor.device), loaded.test.targets[:limit].to(predictor.device)
    return OpenedRun(posterior, predictor, x, y, loaded.domain, name)
