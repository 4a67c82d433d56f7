"""A run: a directory that holds a spec, its posterior, and what was measured.

RUN/run.json                 the spec, versions and figures
RUN/spec.toml                the spec, to be read, changed and trained again
RUN/posterior.safetensors    the posterior
RUN/checkpoint.safetensors   only while training
RUN/start/                   only while training: the point that the algorithm starts from
"""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from certibayes import data
from certibayes.data import DataSet
from certibayes.data.layout import get_command
from certibayes.errors import CorruptFile, MissingData, RunExists
from certibayes.experiments.config import write_config
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


def train(  # noqa: PLR0913 - public
    spec: TrainSpec,
    out: Path | None = None,
    *,
    data_dir: str | Path | None = None,
    device: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    checkpoint_every: float = 30.0,
    callbacks: tuple[Callback, ...] = (),
) -> Posterior:
    """Train what ``spec`` says and, where ``out`` is given, store it there.

    Raises:
        RunExists: ``out`` already holds a run. A finished one is only replaced with ``overwrite``; an unfinished one
            only continued with ``resume``.
    """
    spec = spec.resolved()
    dataset = data.load(spec.dataset, data_dir)
    if len(dataset.train.inputs) == 0:
        raise MissingData(
            f"the training images of {spec.dataset} are missing. Get them with: "
            f"{get_command(spec.dataset, data.data_directory(data_dir))}"
        )
    if out is not None:
        _require_free(out, resume, overwrite)
    claim = partial(_claim, out, spec) if out is not None and not resume else _nothing
    # What both stages share; above all they hold out the same images.
    common: dict[str, Any] = {
        "prior": spec.make_prior(),
        "batch_size": spec.batch_size,
        "precision": spec.precision,
        "clip": spec.clip,
        "seed": spec.seed,
        "validation": spec.validation or None,
        "augment": spec.augment,
        "device": device,
        "progress": progress,
        "checkpoint_every": checkpoint_every,
        "resume": resume,
    }
    has_start = bool(spec.start_epochs)
    stage: dict[str, Any] = {
        "algorithm": spec.make_algorithm(),
        # Where there is a start, the radius has grown during that.
        "likelihood": spec.make_likelihood(dataset, ramped=not has_start),
        "epochs": spec.epochs,
        "temperature": spec.temperature,
        "schedule": spec.make_schedule(),
        "batch_norm": spec.batch_norm,
        "stochastic": spec.stochastic,
        "map_lr": spec.map_lr,
        "checkpoint": out,
        "callbacks": callbacks,
        **common,
    }
    net: nn.Module | Network = spec.network(dataset)
    if has_start:
        _rehearse(net, dataset, stage)
        net = _start(spec, dataset, out, {**common, "on_start": claim})
    posterior = fit(net, dataset.train, **stage, on_start=_nothing if has_start else claim)
    posterior.metadata["dataset"] = spec.dataset
    if has_start:
        posterior.metadata["start"] = {"epochs": spec.start_epochs, "lr": spec.start_lr}
    if out is not None:
        posterior.save(out, overwrite=True)
        _write_record(out / RECORD, {"spec": spec.to_json(), "versions": versions()})
        write_config(out / SPEC, spec)
        _forget_progress(out)
        (out / STARTED).unlink()
    return posterior


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


def _forget_progress(out: Path) -> None:
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


def _claim(out: Path, spec: TrainSpec) -> None:
    """Make the directory this run's own. A finished run stays as it is until the new posterior is there."""
    _forget_progress(out)
    _write_record(out / STARTED, {"spec": spec.to_json(), "versions": versions()})
    if not (out / FILE_NAME).exists():
        write_config(out / SPEC, spec)


def add_figures(out: Path, name: str, figures: dict[str, Any]) -> None:
    """Write figures under ``name`` into the run's record."""
    _write_record(out / RECORD, {**read_record(out), name: figures})


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
    name = posterior.metadata.get("dataset")
    return data.load(name, data_dir) if posterior.statistics_vary and name is not None else None


def load_run(out: Path) -> Posterior:
    """Load the posterior of a finished run."""
    if not (out / FILE_NAME).exists() and (out / STARTED).exists():
        raise FileNotFoundError(f"the run in {out} is not finished. Go on with: certibayes train --out {out} --resume")
    return load(out)


def _write_record(path: Path, record: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(record, indent=2) + "\n").encode())
