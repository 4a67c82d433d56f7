"""Runs that are trained together: one program and one checkpoint for all, a directory for each.

The directory of the group holds ``started.json``, with the specs of all its runs, and their checkpoint. It is there as
long as one of them has no posterior.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from certibayes.errors import Diverged, InvalidInput
from certibayes.experiments.own_data import described_data
from certibayes.experiments.run import (
    CHECKPOINT_EVERY,
    METRICS,
    RECORD,
    STARTED,
    MetricsFile,
    claim,
    own_arguments,
    read_record,
    store,
    training_set,
    write_record,
)
from certibayes.experiments.spec import TrainSpec
from certibayes.inference import fit_many
from certibayes.posteriors import versions

DIVERGED = "diverged.json"
"""The record of a run that left the finite numbers."""


def train_many(
    specs: Mapping[str, TrainSpec],
    out: Path,
    group: Path,
    *,
    data_dir: str | Path | None = None,
    device: str | None = None,
    checkpoint_every: float = CHECKPOINT_EVERY,
) -> bool:
    """Train runs of one data set and architecture together and store each in ``out / name``.

    What was started with the same specs is continued from its checkpoint, with the same bits. Runs that are finished
    already stay as they are.

    Args:
        specs: by name.
        out: where the runs go.
        group: directory of what they have in common while they are trained.
        data_dir: where data sets lie.
        device: where to compute.
        checkpoint_every: seconds between checkpoints.

    Returns:
        Whether training was continued.
    """
    specs = {name: spec.resolved() for name, spec in specs.items()}
    first = next(iter(specs.values()))
    for name, spec in specs.items():
        if (spec.dataset, spec.precision) != (first.dataset, first.precision) or spec.start_epochs:
            raise InvalidInput(f"{name} cannot be trained with others: it has a start, other data or precision.")
    resume = _was_started(specs, group)
    dataset = training_set(first, data_dir)
    runs = [
        {**own_arguments(spec, dataset), "callbacks": (MetricsFile(out / name / METRICS),)}
        for name, spec in specs.items()
    ]

    def start() -> None:
        # Once fit_many has checked everything; before that nothing is touched.
        if not resume:
            shutil.rmtree(group, ignore_errors=True)
            record = {"specs": {name: spec.to_json() for name, spec in specs.items()}, "versions": versions()}
            write_record(group / STARTED, record)
        for name, spec in specs.items():
            if not is_trained(out / name):
                claim(out / name, spec)

    posteriors = fit_many(
        None, dataset.train, runs, device=device, precision=first.precision, progress=False,
        checkpoint=group / "checkpoint", checkpoint_every=checkpoint_every, resume=resume, on_start=start,
        return_exceptions=True,
    )  # fmt: skip
    for (name, spec), posterior in zip(specs.items(), posteriors, strict=True):
        if is_trained(out / name):
            continue
        if isinstance(posterior, Diverged):
            store_divergence(out / name, spec, posterior)
            continue
        posterior.metadata |= {"dataset": spec.dataset, **described_data(spec, dataset)}
        store(out / name, spec, posterior)
    shutil.rmtree(group)
    return resume


def _was_started(specs: Mapping[str, TrainSpec], group: Path) -> bool:
    """Tell whether the group's directory holds an unfinished training of these specs."""
    if not (group / STARTED).exists():
        return False
    stored = read_record(group)["specs"]
    return {name: TrainSpec.from_json(record) for name, record in stored.items()} == specs


def is_trained(out: Path) -> bool:
    """Tell whether a run has ended, with a posterior or by divergence."""
    return ((out / RECORD).exists() or (out / DIVERGED).exists()) and not (out / STARTED).exists()


def store_divergence(out: Path, spec: TrainSpec, error: Diverged) -> None:
    """Keep that a run diverged, so that it is not tried again and again."""
    write_record(out / DIVERGED, {"spec": spec.resolved().to_json(), "diverged": str(error), "versions": versions()})
    (out / STARTED).unlink(missing_ok=True)
