"""Data of one's own in a file: ``.csv``, ``.npz`` or ``.pt``.

A CSV file is a table whose first line names the columns. The other two hold arrays by name: ``x`` and ``y``, or
``x_train``, ``y_train``, ``x_test`` and ``y_test``. Nothing in a file is ever run.

Where a file does not say which points are to be tested on, every fifth is, from the first on.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from certibayes.data._tables import MOST_CLASSES, classes_of, labels_among, quantities_of, read_table, task_of
from certibayes.data.dataset import UNIT_INTERVAL, DataSet, Split
from certibayes.errors import CorruptFile, InvalidInput
from certibayes.support.checks import require_finite
from certibayes.support.tensor_files import TORCH, read_tensor_file
from certibayes.support.tensors import as_tensor

TABLE, ARRAYS = ".csv", ".npz"
SUFFIXES = (TABLE, ARRAYS, *TORCH)
INPUTS = ("x", "X", "inputs", "input", "features", "images", "data")
ANSWERS = ("y", "Y", "targets", "target", "labels", "label")
TASKS = ("classification", "regression")
EVERY = 5
"""Every fifth point is tested on, where a file does not say which."""


@dataclass(frozen=True)
class Reading:
    """How a file is to be read.

    Attributes:
        target: name of the target: a column of a table, or an array.
        task: ``"classification"`` or ``"regression"``; by default what the targets look like, where that is clear.
        features: columns that are inputs, in this order; all but the target by default.
        classes: names of the classes, where they are known from elsewhere, such as another file.
        hold_out: whether every fifth point is kept for testing where the file does not say which; else all points are
            for testing.
    """

    target: str | None = None
    task: str | None = None
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    hold_out: bool = True

    def __post_init__(self) -> None:
        if self.task not in (None, *TASKS):
            raise InvalidInput(f"task must be {' or '.join(TASKS)}, got {self.task!r}.")


def names_file(name: str) -> bool:
    """Tell whether a name is that of a file, and not of a data set that is known here."""
    return Path(name).suffix.lower() in SUFFIXES


def read_file(path: str | Path, how: Reading = Reading()) -> DataSet:  # noqa: B008 - frozen
    """Read data of one's own.

    Args:
        path: a file that ends in ``.csv``, ``.npz``, ``.pt`` or ``.pth``.
        how: what its parts mean, where they do not say so themselves.

    Returns:
        The data set. Inputs are in the units of the file, except for bytes, which are taken for images: they are
        divided by 255, have the domain [0, 1], and get a dimension of channels if they have none.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidInput: its parts cannot be used as they are.
        CorruptFile: it is damaged, or not what its name says.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidInput(f"{path} is no known file of data: its name must end in {', '.join(SUFFIXES)}.")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    return _from_table(path, how) if path.suffix.lower() == TABLE else _from_arrays(path, how)


def _from_table(path: Path, how: Reading) -> DataSet:
    table = read_table(path, how.target, how.features)
    where = f"the column {table.target!r} of {path}"
    task = how.task or ("classification" if how.classes else task_of(table.answers, where))
    with np.errstate(over="ignore"):
        inputs = torch.from_numpy(table.inputs.astype(np.float32))
    require_finite(inputs, f"the inputs of {path}, as float32,")
    classes: tuple[str, ...] = ()
    if task == "classification":
        classes = how.classes or classes_of(table.answers)
        targets = torch.from_numpy(labels_among(table.answers, classes, where))
        _require_several(classes, where)
    else:
        targets = torch.from_numpy(quantities_of(table.answers, where).astype(np.float32))
    train, test = _divided(inputs, targets, table.in_test, how.hold_out)
    return DataSet(str(path), train, test, classes, None, table.features, own_units=True)


def _from_arrays(path: Path, how: Reading) -> DataSet:
    parts = _arrays(path)
    splits = {}
    for part in ("train", "test", ""):
        x, y = _found(parts, INPUTS, part), _found(parts, ANSWERS if how.target is None else (how.target,), part)
        if (x is None) != (y is None):
            have, lack = ("inputs", "targets") if y is None else ("targets", "inputs")
            raise InvalidInput(f"{path} has {part or 'the'} {have} but no {lack}. {_expected(parts)}")
        if x is not None and y is not None:
            inputs, targets = as_tensor(parts[x], f"{x} of {path}"), as_tensor(parts[y], f"{y} of {path}")
            if len(inputs) != len(targets):
                raise InvalidInput(f"{path} holds {len(inputs)} {x} but {len(targets)} {y}; each needs the other.")
            splits[part] = _images(inputs, f"{x} of {path}"), targets
    if not splits:
        raise InvalidInput(f"{path} holds no inputs and targets. {_expected(parts)}")
    task = how.task or ("classification" if how.classes else _task(splits, str(path)))
    finished = {part: Split(x, _targets(y, task, str(path))) for part, (x, y) in splits.items()}
    classes = how.classes
    if task == "classification" and not classes:
        classes = tuple(map(str, range(1 + max(int(split.targets.max()) for split in finished.values()))))
    if task == "classification":
        _require_several(classes, str(path))
    first = next(iter(finished.values()))
    if "" in finished:
        train, test = _divided(*finished[""], None, how.hold_out)
    else:
        nothing = Split(first.inputs[:0], first.targets[:0])
        train, test = finished.get("train", nothing), finished.get("test", nothing)
    bytes_given = any(as_tensor(parts[name], name).dtype == torch.uint8 for name in parts if _is_inputs(name))
    domain = UNIT_INTERVAL if bytes_given else None
    table = first.inputs.dim() == 2 and not bytes_given
    return DataSet(str(path), train, test, classes if task == "classification" else (), domain, (), own_units=table)


def _arrays(path: Path) -> Mapping[str, Any]:
    """Return what a file of arrays holds, by name."""
    if path.suffix.lower() == ARRAYS:
        try:
            # From an open file: numpy would leave one behind that it cannot read.
            with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            if "allow_pickle" in str(error):
                raise InvalidInput(
                    f"{path} holds Python objects, and reading those would run code, so it is refused. Write arrays of "
                    "numbers: np.savez(path, x=x.astype('float32'), y=y.astype('int64'))."
                ) from error
            raise CorruptFile(f"{path} is truncated or no file of np.savez ({error}).") from error
    found = read_tensor_file(path)
    if isinstance(found, (tuple, list)) and len(found) == 2:
        return dict(zip("xy", found, strict=True))
    if isinstance(found, Mapping):
        return found
    raise InvalidInput(
        f"{path} holds a {type(found).__name__}, where tensors by name are needed: torch.save({{'x': x, 'y': y}})."
    )


def _found(parts: Mapping[str, Any], names: Sequence[str], part: str) -> str | None:
    """Return the first of the names that a file has, for one of its parts: ``x_train`` or ``train_x``."""
    for name in names:
        for known in (f"{name}_{part}", f"{part}_{name}") if part else (name,):
            if known in parts:
                return known
    return None


def _is_inputs(name: str) -> bool:
    return any(name in (known, f"{known}_{part}", f"{part}_{known}") for known in INPUTS for part in ("train", "test"))


def _expected(parts: Mapping[str, Any]) -> str:
    return (
        "Name arrays x and y, or x_train, y_train, x_test and y_test; --target names another y. It holds "
        f"{', '.join(map(str, parts)) or 'nothing'}."
    )


def _images(inputs: Tensor, where: str) -> Tensor:
    """Return inputs as floats; bytes are images."""
    if inputs.dim() < 2:
        raise InvalidInput(f"{where} has shape {tuple(inputs.shape)}; inputs are (N, ...), one row for each point.")
    if inputs.dtype == torch.uint8 and inputs.dim() >= 3:
        if inputs.dim() == 4 and inputs.shape[-1] in (1, 3) and inputs.shape[1] not in (1, 3):
            inputs = inputs.permute(0, 3, 1, 2)
        pixels: NDArray[np.uint8] = (inputs[:, None] if inputs.dim() == 3 else inputs).contiguous().numpy()
        return Split.of_images(pixels, np.zeros(len(pixels), np.int64)).inputs
    if inputs.dtype == torch.bool or inputs.is_complex():
        raise InvalidInput(f"{where} is {inputs.dtype}; numbers are needed.")
    floats = inputs.to(torch.float32)
    require_finite(floats, where)
    return floats


def _task(splits: Mapping[str, tuple[Tensor, Tensor]], where: str) -> str:
    kinds = {targets.dtype.is_floating_point for _, targets in splits.values()}
    if len(kinds) > 1:
        raise InvalidInput(f"{where} has targets of floats in one part and of whole numbers in the other; say --task.")
    return "regression" if kinds.pop() else "classification"


def _targets(targets: Tensor, task: str, where: str) -> Tensor:
    """Return labels (N,) or quantities (N, outputs)."""
    if targets.dim() == 2 and targets.shape[1] == 1 and task == "classification":
        targets = targets[:, 0]
    if task == "regression":
        quantities = targets.to(torch.float32)
        require_finite(quantities, f"the targets of {where}")
        return quantities[:, None] if quantities.dim() == 1 else quantities
    if targets.dim() != 1:
        raise InvalidInput(
            f"labels of {where} have shape {tuple(targets.shape)}; classes are whole numbers (N,). Of one-hot rows "
            "take y.argmax(1); for a regression say --task regression."
        )
    labels = targets.to(torch.int64)
    if len(labels) and (
        bool((labels != targets).any()) or not 0 <= int(labels.min()) <= int(labels.max()) < MOST_CLASSES
    ):
        raise InvalidInput(
            f"labels of {where} must be whole numbers from 0 to C - 1, and run from {float(targets.min()):g} to "
            f"{float(targets.max()):g}. For a quantity say --task regression."
        )
    return labels


def _divided(inputs: Tensor, targets: Tensor, in_test: Any, hold_out: bool) -> tuple[Split, Split]:
    """Return what to learn from and what to test on."""
    if in_test is None:
        chosen = torch.arange(len(inputs)) % EVERY == 0 if hold_out else torch.ones(len(inputs), dtype=torch.bool)
    else:
        chosen = torch.from_numpy(in_test)
    return Split(inputs[~chosen], targets[~chosen]), Split(inputs[chosen], targets[chosen])


def _require_several(classes: Sequence[str], where: str) -> None:
    if len(classes) < 2:
        raise InvalidInput(f"{where} holds one class alone, {', '.join(classes)}, so there is nothing to tell apart.")
