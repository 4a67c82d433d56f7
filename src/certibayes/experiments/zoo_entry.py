"""Making an entry of the zoo: a run is made compact, stored, certified as it is stored, and described.

The certificate is about what the file holds. So the posterior is written first and read again, and everything is
measured on what was read.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from certibayes import data, zoo
from certibayes.certification import Elided, certify
from certibayes.data import DataSet
from certibayes.errors import InvalidInput, RunExists
from certibayes.evaluation import expected_calibration_error, uncertainty
from certibayes.experiments._report import write_card
from certibayes.experiments.config import TABLE, to_config, write_config
from certibayes.experiments.evaluate import log_probabilities
from certibayes.experiments.run import load_run, read_record, started_spec, trained_radius
from certibayes.experiments.spec import TrainSpec
from certibayes.posteriors import DiagonalGaussian, Posterior, load, versions
from certibayes.posteriors.posterior import SAMPLES
from certibayes.prediction import Predictor
from certibayes.support.devices import find_device
from certibayes.support.files import write_atomically
from certibayes.support.progress import Report
from certibayes.support.stacks import count
from certibayes.support.templates import require_jinja
from certibayes.zoo.catalog import CARD, FIGURES, LARGEST_ENTRY, LARGEST_ZOO, RECORD, SPEC

METHOD = Elided(bounds="ibp")
"""How entries are certified: intervals with the last layer elided, as their networks are trained."""

BATCH = 500
"""Images that are predicted at a time."""


def add_to_zoo(  # noqa: PLR0913 - public
    run: Path,
    name: str,
    *,
    description: str | None = None,
    eps: float | None = None,
    samples: int | None = None,
    data_dir: str | Path | None = None,
    device: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    progress: bool | Report = True,
) -> Path:
    """Make an entry of the zoo from a finished run, and return its directory.

    Args:
        run: directory of the run.
        name: of the entry, in small letters, digits and dashes.
        description: in one line; by default algorithm and network.
        eps: radius to certify; by default the one that the run was trained for.
        samples: weight samples of the certified predictor (seed 0); by default 35, or all that the posterior holds.
        data_dir: where data sets lie.
        device: where to certify.
        out: directory that holds the entries; by default the package's own.
        overwrite: replace an entry of that name.
        progress: of the certificates; see ``certify``.

    Raises:
        InvalidInput: no name for an entry, a posterior that cannot be one, or one that is too large.
        RunExists: there is an entry of that name.
    """
    require_jinja()
    where = find_device("cpu" if device is None else device)
    target = (zoo.DIRECTORY if out is None else out) / name
    _require_free(target, name, overwrite)
    posterior = load_run(run)
    _require_finished_classifier(posterior, run)
    spec = TrainSpec.from_json(read_record(run)["spec"]).resolved()
    eps = trained_radius(run, posterior) if eps is None else eps
    if eps is None:
        raise InvalidInput(f"{run} was not trained for a radius; say which one is to be certified: eps=0.1.")
    samples = SAMPLES if samples is None else samples
    samples = samples if posterior.held is None else min(samples, posterior.held)
    dataset = data.load(spec.dataset, data_dir)
    with TemporaryDirectory() as scratch:
        entry = Path(scratch) / name
        _store(posterior, entry, dataset, samples, where)
        _require_room(entry, target)
        stored = load(entry)
        predictor = stored.predictor(samples).to(where)
        figures = {
            "name": name,
            "description": description or _description(spec, stored),
            "dataset": spec.dataset,
            **_about(stored),
            "bytes": _size(entry),
            **_measured(predictor, dataset, eps, progress),
            "temperature": stored.metadata.get("temperature"),
        }
        record = {"spec": spec.to_json(), "versions": versions(), FIGURES: figures}
        write_atomically(entry / RECORD, (json.dumps(record, indent=2) + "\n").encode())
        write_config(entry / SPEC, spec)
        write_card(entry / CARD, figures, to_config(_unusual(spec)), stored.metadata)
        _require_room(entry, target)
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(entry, target)
    return target


def _require_free(target: Path, name: str, overwrite: bool) -> None:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise InvalidInput(
            f"an entry has a name of small letters, digits and dashes, such as mnist-swag; got {name!r}."
        )
    if target.exists() and not overwrite:
        raise RunExists(f"{target} is there already. Choose another name, or replace it with overwrite (--overwrite).")


def _require_finished_classifier(posterior: Posterior, run: Path) -> None:
    if started_spec(run) is not None:
        raise InvalidInput(f"{run} is being trained anew, and its posterior is the one before. Wait until it is there.")
    if posterior.task != "classification":
        raise InvalidInput(f"the zoo holds classifiers, and {run} does {posterior.task}.")


def _store(posterior: Posterior, entry: Path, dataset: DataSet, samples: int, device: torch.device) -> None:
    """Write the posterior, compact where it can be, with the statistics of its samples."""
    inputs = dataset.train.inputs.to(device) if posterior.statistics_vary else None
    # Those of the entry's own seed; those of others would only take room.
    posterior.statistics = {seed: kept for seed, kept in posterior.statistics.items() if seed == 0}
    if isinstance(posterior, DiagonalGaussian):
        posterior = posterior.compact(inputs)
    if posterior.statistics_vary:
        # Enough for a predictor of the usual size as well.
        needed = max(samples, SAMPLES)
        if not posterior.statistics or count(posterior.statistics[0]) < needed:
            posterior.keep_statistics(inputs, needed)
    posterior.save(entry)


def _require_room(entry: Path, target: Path) -> None:
    """Raise if the entry is too large, or all of them would be."""
    size, others = _size(entry), _size(target.parent) - _size(target)
    if size > LARGEST_ENTRY:
        raise InvalidInput(
            f"the posterior takes {size / 1e6:.1f} MB, and an entry of the zoo at most {LARGEST_ENTRY / 1e6:g}. Take a "
            "narrower network, or a lower rank."
        )
    if size + others > LARGEST_ZOO:
        raise InvalidInput(
            f"the entries in {target.parent} would take {(size + others) / 1e6:.1f} MB in all, and may take "
            f"{LARGEST_ZOO / 1e6:g}. Remove one, or choose another directory."
        )


def _size(path: Path) -> int:
    """Return the bytes of all files in a directory, 0 if there is none."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _about(posterior: Posterior) -> dict[str, Any]:
    one = posterior.sample(1, torch.Generator())
    return {
        "posterior": type(posterior).__name__,
        "holds": posterior.holds,
        "network": " → ".join(type(node.operation).__name__ for node in posterior.graph.nodes),
        "parameters": sum(one[name].numel() for name in posterior.graph.parameters),
    }


def _measured(predictor: Predictor, dataset: DataSet, eps: float, progress: bool | Report) -> dict[str, Any]:
    """Certify and measure the predictor on all test images."""
    x, y = dataset.test.inputs.to(predictor.device), dataset.test.targets.to(predictor.device)
    result = certify(predictor, x, y, eps=eps, method=METHOD, domain=dataset.domain, progress=progress)
    result = replace(result, provenance=replace(result.provenance, seed=0))
    found, logs = uncertainty(predictor, x, BATCH), log_probabilities(predictor, x, BATCH)
    return {
        "n": len(result),
        "eps": eps,
        "norm": result.norm,
        "certified": result.certified_fraction,
        "accuracy": result.accuracy,
        "nll": -float(logs.gather(-1, y[:, None]).mean()),
        "ece": expected_calibration_error(logs, y),
        "mutual_information": float(found.mutual_information.mean()),
        "disagreement": float(found.disagreement.mean()),
        "samples": predictor.size,
        "seed": 0,
        "method": result.method,
        "bounds": result.bounds,
        "rounding": result.rounding,
        "device": predictor.device.type,
        "digest": result.digest,
        "statement": result.statement,
    }


def _description(spec: TrainSpec, posterior: Posterior) -> str:
    algorithm = posterior.metadata.get("algorithm")
    name = algorithm["name"] if isinstance(algorithm, dict) else spec.algorithm
    if spec.channels is not None:
        width = f" of {spec.channels} channels"
    else:
        width = f" of {'-'.join(map(str, spec.hidden))} units" if spec.architecture == "mlp" else ""
    return f"{name} on {spec.architecture}{width}"


def _unusual(spec: TrainSpec) -> dict[str, Any]:
    """Return the settings that are not what they would be by default, for this network and algorithm."""
    chosen = ("dataset", "architecture", "likelihood", "algorithm")
    values = spec.to_json()
    usual = TrainSpec(**{name: values[name] for name in chosen}).resolved().to_json()
    differing = {name: value for name, value in values.items() if name in chosen or value != usual[name]}
    if TABLE in differing:
        differing[TABLE] = {name: value for name, value in values[TABLE].items() if value != usual[TABLE][name]}
    return differing
