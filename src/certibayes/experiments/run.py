"""A run: a directory that holds a spec, its posterior, and what was measured.

RUN/run.json                 the spec, versions and figures
RUN/posterior.safetensors    the posterior
RUN/checkpoint.safetensors   only while training
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from certibayes import data
from certibayes.errors import CorruptFile, RunExists
from certibayes.experiments.spec import TrainSpec
from certibayes.inference import fit
from certibayes.inference.checkpoint import FILE_NAME as CHECKPOINT
from certibayes.inference.fit import Callback
from certibayes.posteriors import FILE_NAME, Posterior, load, versions
from certibayes.posteriors.storage import write_atomically

RECORD = "run.json"


def train(
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
    if out is not None and (out / FILE_NAME).exists() and not overwrite:
        raise RunExists(f"{out} already holds a finished run. Choose another directory or pass --overwrite.")
    dataset = data.load(spec.dataset, data_dir)
    if out is not None:
        if overwrite and not resume:
            (out / CHECKPOINT).unlink(missing_ok=True)
        if not (out / CHECKPOINT).exists():
            _write_record(out, {"spec": spec.to_json(), "versions": versions()})
    posterior = fit(
        spec.network(dataset),
        dataset.train,
        algorithm=spec.make_algorithm(),
        likelihood=spec.make_likelihood(dataset),
        prior=spec.make_prior(),
        epochs=spec.epochs,
        batch_size=spec.batch_size,
        seed=spec.seed,
        temperature=spec.temperature,
        schedule=spec.make_schedule(),
        validation=spec.validation or None,
        device=device,
        progress=progress,
        checkpoint=out,
        checkpoint_every=checkpoint_every,
        resume=resume,
        callbacks=callbacks,
    )
    posterior.metadata["dataset"] = spec.dataset
    if out is not None:
        posterior.save(out, overwrite=True)
        (out / CHECKPOINT).unlink(missing_ok=True)
    return posterior


def add_figures(out: Path, name: str, figures: dict[str, Any]) -> None:
    """Write figures under ``name`` into the run's record."""
    record = read_record(out) if (out / RECORD).exists() else {}
    _write_record(out, {**record, name: figures})


def read_record(out: Path) -> dict[str, Any]:
    """Read the record of a run."""
    path = out / RECORD
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        raise FileNotFoundError(f"{out} holds no run: there is no {RECORD} in it.") from None
    except json.JSONDecodeError as error:
        raise CorruptFile(f"{path} is not valid JSON ({error}).") from error
    if not isinstance(record, dict):
        raise CorruptFile(f"{path} does not hold a run's record.")
    return record


def load_run(out: Path) -> Posterior:
    """Load the posterior of a finished run."""
    if not (out / FILE_NAME).exists() and (out / CHECKPOINT).exists():
        raise FileNotFoundError(f"the run in {out} is not finished. Go on with: certibayes train --out {out} --resume")
    return load(out)


def _write_record(out: Path, record: dict[str, Any]) -> None:
    write_atomically(out / RECORD, (json.dumps(record, indent=2) + "\n").encode())
