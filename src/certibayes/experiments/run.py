"""A run: a directory that holds a spec, its posterior, and what was measured.

RUN/run.json                 the spec, versions and figures
RUN/spec.toml                the spec, to be read, changed and trained again
RUN/posterior.safetensors    the posterior
RUN/metrics.jsonl            figures of every epoch, a line each, from the first epoch on
RUN/checkpoint.safetensors   only while training
RUN/start/                   only while training: the point that the algorithm starts from
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from certibayes import data
from certibayes.data import DataSet, names_file
from certibayes.data.layout import get_command
from certibayes.errors import CorruptFile, InvalidInput, MissingData, RunExists
from certibayes.experiments.config import write_config
from certibayes.experiments.factory import FORM
from certibayes.experiments.own_data import described_data, own_data
from certibayes.experiments.spec import TrainSpec
from certibayes.inference import Schedule, fit
from certibayes.inference.checkpoint import FILE_NAME as CHECKPOINT
from certibayes.inference.loop import Callback
from certibayes.networks import Network
from certibayes.posteriors import FILE_NAME, Point, Posterior, load, versions
from certibayes.support.files import write_atomically

RECORD = "run.json"
STARTED = "started.json"
SPEC = "spec.toml"
START = "start"
METRICS = "metrics.jsonl"
CHECKPOINT_EVERY = 30.0
"""Seconds of training between checkpoints: what a run loses at most that is killed."""


def train(  # noqa: PLR0913 - public
    spec: TrainSpec,
    out: Path | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    checkpoint_every: float = CHECKPOINT_EVERY,
    callbacks: tuple[Callback, ...] = (),
) -> Posterior:
    """Train what ``spec`` says and, where ``out`` is given, store it there.

    Raises:
        RunExists: ``out`` already holds a run. A finished one is only replaced with ``overwrite``; an unfinished one
            only continued with ``resume``.
    """
    spec = spec.resolved()
    dataset = training_set(spec, data_dir)
    if out is not None:
        _require_free(out, resume, overwrite)
        callbacks = (*callbacks, MetricsFile(out / METRICS))
    claimed = partial(claim, out, spec) if out is not None and not resume else _nothing
    # What both stages share; above all they hold out the same images.
    common: dict[str, Any] = {
        **_common(spec),
        "precision": spec.precision,
        "device": device,
        "progress": progress,
        "checkpoint_every": checkpoint_every,
        "resume": resume,
    }
    has_start = bool(spec.start_epochs)
    # Where there is a start, the radius has grown during that.
    stage = {**own_arguments(spec, dataset, ramped=not has_start), **common}
    stage |= {"checkpoint": out, "callbacks": callbacks}
    net: nn.Module | Network = stage.pop("net")
    if has_start:
        _rehearse(net, dataset, stage)
        net = _start(spec, dataset, out, {**common, "on_start": claimed})
    posterior = fit(net, dataset.train, **stage, on_start=_nothing if has_start else claimed)
    posterior.metadata |= {"dataset": spec.dataset, **described_data(spec, dataset)}
    if has_start:
        posterior.metadata["start"] = {"epochs": spec.start_epochs, "lr": spec.start_lr}
    if out is not None:
        store(out, spec, posterior)
    return posterior


def _common(spec: TrainSpec) -> dict[str, Any]:
    return {
        "prior": spec.make_prior(),
        "batch_size": spec.batch_size,
        "clip": spec.clip,
        "seed": spec.seed,
        "validation": spec.validation or None,
        "augment": spec.augment,
    }


def own_arguments(spec: TrainSpec, dataset: DataSet, ramped: bool = True) -> dict[str, Any]:
    """Return what ``fit`` takes for a spec, as far as each run of ``fit_many`` may have its own.

    Args:
        spec: with every default filled in.
        dataset: what it is trained on.
        ramped: whether its radius is to grow.
    """
    return {
        "net": spec.network(dataset),
        "algorithm": spec.make_algorithm(),
        "likelihood": spec.make_likelihood(dataset, ramped=ramped),
        "epochs": spec.epochs,
        "temperature": spec.temperature,
        "schedule": spec.make_schedule(),
        "batch_norm": spec.batch_norm,
        "stochastic": spec.stochastic,
        "map_lr": spec.map_lr,
        **_common(spec),
    }


def training_set(spec: TrainSpec, data_dir: str | Path | None) -> DataSet:
    """Load the data that a spec is trained on, or raise unless its training part is there."""
    dataset = spec.load_data(data_dir)
    if len(dataset.train.inputs) == 0:
        raise MissingData(
            f"{spec.dataset} holds points to test on, and none to train on."
            if names_file(spec.dataset)
            else f"the training images of {spec.dataset} are missing. Get them with: "
            f"{get_command(spec.dataset, data.data_directory(data_dir))}"
        )
    return dataset


def store(out: Path, spec: TrainSpec, posterior: Posterior) -> None:
    """Store a posterior and its record; whatever moment this is stopped at, the run is unfinished or finished."""
    posterior.save(out, overwrite=True)
    # The posterior's own: where a temperature was searched, several trainings have written there.
    write_atomically(out / METRICS, "".join(map(_line, posterior.metadata["history"])).encode())
    write_record(out / RECORD, {"spec": spec.to_json(), "versions": versions()})
    write_config(out / SPEC, spec)
    (out / STARTED).unlink()
    forget_progress(out)


class MetricsFile:
    """A callback that keeps the figures of every epoch in a file, a line of JSON each.

    An epoch that is made again after a resume takes the place of what was there of it and of later ones.
    """

    def __init__(self, path: Path):
        self.path = path

    def __call__(self, record: dict[str, float]) -> None:
        """Enter an epoch."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        kept = [line + "\n" for line in lines if json.loads(line)["epoch"] < record["epoch"]]
        own = {key: value for key, value in record.items() if key != "run"}
        write_atomically(self.path, "".join([*kept, _line(own)]).encode())


def _line(record: Mapping[str, float]) -> str:
    return json.dumps(record) + "\n"


class _Rehearsed(Exception):
    """Everything was checked, and that was all that was wanted."""


def _rehearse(net: nn.Module | Network, dataset: DataSet, stage: dict[str, Any]) -> None:
    """Let ``fit`` check the second stage, so that what is wrong with it is not found after the first was trained."""

    def stop() -> None:
        raise _Rehearsed

    with contextlib.suppress(_Rehearsed):
        fit(net, dataset.train, **stage, on_start=stop)


def _nothing() -> None:
    """Leave the directory as it is."""


def _start(spec: TrainSpec, dataset: DataSet, out: Path | None, common: dict[str, Any]) -> Network:
    """Find the point that the algorithm starts from; a resumed run takes it from the directory if it is there."""
    directory = None if out is None else out / START
    if directory is not None and common["resume"] and (directory / FILE_NAME).exists():
        point = load(directory)
    else:
        point = fit(
            spec.network(dataset),
            dataset.train,
            algorithm=spec.make_start(),
            likelihood=spec.make_likelihood(dataset),
            epochs=spec.start_epochs or 0,
            schedule=Schedule("cosine", warmup=0.05),
            checkpoint=directory,
            **common,
        )
        if directory is not None:
            point.save(directory, overwrite=True)
    if not isinstance(point, Point):
        raise CorruptFile(f"{directory} does not hold the point that the run in {out} started from; use --overwrite.")
    return Network(point.graph, point.params, point.buffers)


def forget_progress(out: Path) -> None:
    """Remove what only an unfinished run needs: checkpoints, those of all temperatures tried too, and the start."""
    (out / CHECKPOINT).unlink(missing_ok=True)
    for directory in (out / START, *out.glob("temperature-*"), *out.glob("group-*")):
        (directory / CHECKPOINT).unlink(missing_ok=True)
        if directory.name == START:
            (directory / FILE_NAME).unlink(missing_ok=True)
        # Not if someone keeps other files there.
        with contextlib.suppress(OSError):
            directory.rmdir()


def started_spec(out: Path) -> TrainSpec | None:
    """Return the settings of the unfinished run in ``out``, or None if there is none."""
    return TrainSpec.from_json(read_record(out)["spec"]) if (out / STARTED).exists() else None


def _require_free(out: Path, resume: bool, overwrite: bool) -> None:
    """Raise unless the directory may be trained into."""
    started, finished = (out / STARTED).exists(), (out / FILE_NAME).exists()
    if resume:
        if not started:
            raise FileNotFoundError(
                f"there is no unfinished run in {out} to go on with"
                + (" (it is finished)." if finished else ". Leave out --resume to start one.")
            )
        return
    if started and not overwrite:
        raise RunExists(f"{out} holds an unfinished run. Go on with it (--resume), or replace it (--overwrite).")
    if finished and not overwrite:
        raise RunExists(f"{out} already holds a finished run. Choose another directory or pass --overwrite.")


def claim(out: Path, spec: TrainSpec) -> None:
    """Make the directory this run's own. A finished run stays as it is until the new posterior is there."""
    forget_progress(out)
    write_record(out / STARTED, {"spec": spec.to_json(), "versions": versions()})
    if not (out / FILE_NAME).exists():
        write_config(out / SPEC, spec)


def add_figures(out: Path, name: str, figures: dict[str, Any]) -> None:
    """Write figures under ``name`` into the run's record."""
    write_record(out / RECORD, {**read_record(out), name: figures})


def read_record(out: Path) -> dict[str, Any]:
    """Read the record of a run, finished or just started."""
    return _read(out / (STARTED if (out / STARTED).exists() else RECORD))


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{path.parent} holds no run: there is no {RECORD} in it.") from None
    except json.JSONDecodeError as error:
        raise CorruptFile(f"{path} is not valid JSON ({error}).") from error
    if not isinstance(record, dict):
        raise CorruptFile(f"{path} does not hold a run's record.")
    return record


def trained_radius(out: Path, posterior: Posterior) -> float | None:
    """Return the radius that a run was trained for, or None: the standard likelihood has none.

    Args:
        out: directory of the run.
        posterior: what ``load_run`` returned. Where its likelihood does not know the radius, the run's settings may.
    """
    likelihood = posterior.metadata.get("likelihood")
    eps = likelihood.get("eps") if isinstance(likelihood, dict) else None
    # The standard likelihood of a regression is the robust one with radius 0.
    if eps:
        return float(eps)
    # Not the record of a run that was started in the same place and is not finished.
    return TrainSpec.from_json(_read(out / RECORD)["spec"]).trained_radius if (out / RECORD).exists() else None


def training_data(posterior: Posterior, data_dir: str | Path | None = None) -> DataSet | None:
    """Return the data that a run was trained on where its predictors may need them, for batch norm statistics."""
    return own_data(posterior, data_dir) if posterior.statistics_vary and "dataset" in posterior.metadata else None


def load_run(out: Path) -> Posterior:
    """Load the posterior of a finished run."""
    if out.suffix in (".pt", ".pth") and out.is_file():
        raise InvalidInput(
            f"{out} holds weights, and a run is a directory. For a network that was trained elsewhere: "
            f"--modules {out} --architecture {FORM}."
        )
    if not (out / FILE_NAME).exists() and (out / STARTED).exists():
        raise FileNotFoundError(f"the run in {out} is not finished. Go on with: certibayes train --out {out} --resume")
    return load(out)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a record as JSON, whole or not at all."""
    write_atomically(path, (json.dumps(record, indent=2) + "\n").encode())
