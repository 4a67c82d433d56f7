"""The data that a run was trained on, as its posterior knows them: a name, or a file with its columns and digest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from certibayes import data
from certibayes.data import DataSet, Reading, names_file, read_file
from certibayes.errors import InvalidInput
from certibayes.posteriors import Posterior

if TYPE_CHECKING:
    from certibayes.experiments.spec import TrainSpec

FILE, TABLE = "file", "table"
"""In a posterior's metadata: how the file it was trained on is read, and what radii of a table are multiples of."""


def described_data(spec: TrainSpec, found: DataSet) -> dict[str, Any]:
    """Return what a posterior has to remember of its data, beside their name."""
    described: dict[str, Any] = {}
    if names_file(spec.dataset) or found.own_units:
        described[FILE] = {
            "sha256": digest_of_file(spec.dataset) if names_file(spec.dataset) else None,
            "target": spec.target,
            "task": found.task,
            "features": list(found.features),
            "classes": list(found.classes),
        }
    scale = spec.make_scale(found)
    if scale is not None:
        described[TABLE] = {"features": list(found.features), "scale": scale.flatten().tolist()}
    return described


def own_data(posterior: Posterior, data_dir: str | Path | None = None) -> DataSet:
    """Read the data that a run was trained on; those it was tested on are apart.

    Raises:
        InvalidInput: nothing says which they are, or the file has changed since.
    """
    name = posterior.metadata.get("dataset")
    if name is None:
        raise InvalidInput("nothing says which data the run was trained on; pass --dataset NAME or --data FILE.")
    if not names_file(name):
        return data.load(name, data_dir)
    if not Path(name).is_file():
        raise FileNotFoundError(f"the run was trained on {name}, which is not there. Say where it is: --data FILE.")
    if digest_of_file(name) != posterior.metadata.get(FILE, {}).get("sha256"):
        raise InvalidInput(
            f"{name} is not the file any more that the run was trained on, so that nobody knows which of its points "
            f"training saw. To test on all of them: --data {name}."
        )
    return read_file(name, reading_for(posterior))


def other_data(posterior: Posterior, path: Path, target: str | None, task: str | None) -> DataSet:
    """Read points from a file for a run: all of them, unless training saw some, which are then left out.

    Columns and classes are those of the run, whatever their order in the file.
    """
    how = reading_for(posterior, target, task)
    known = posterior.metadata.get(FILE, {})
    hold_out = path.is_file() and known.get("sha256") == digest_of_file(path)
    return read_file(path, Reading(how.target, how.task, how.features, how.classes, hold_out))


def reading_for(posterior: Posterior, target: str | None = None, task: str | None = None) -> Reading:
    """Return how files are to be read for a run: as the one it was trained on."""
    known = posterior.metadata.get(FILE, {})
    own = posterior.metadata.get("task", known.get("task"))
    if task is not None and own is not None and task != own:
        raise InvalidInput(f"the run was trained for {own}, so --task {task} cannot be.")
    features = known.get("features") or posterior.metadata.get(TABLE, {}).get("features") or ()
    classes = tuple(known.get("classes", ())) if own != "regression" else ()
    return Reading(target or known.get("target"), task or own, tuple(features), classes)


def own_scale(posterior: Posterior) -> Tensor | None:
    """Return what the radii of a run are multiples of, (1, d) in float64; None where they have the inputs' units."""
    known = posterior.metadata.get(TABLE)
    return None if known is None else torch.tensor([known["scale"]], dtype=torch.float64)


def digest_of_file(path: str | Path) -> str:
    """SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
