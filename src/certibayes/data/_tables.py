"""Tables: CSV files whose first line names the columns, one of which is the target."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certibayes.errors import CorruptFile, InvalidInput
from certibayes.support.names import nearest, shortened

TARGETS = ("target", "targets", "label", "labels", "class", "y")
"""Columns that are the target where none is named; upper case or lower."""

SPLIT = "split"
"""A column of this name says which rows are to be learned from, and which to be tested on: train and test."""

MOST_CLASSES = 1000
"""Whole numbers beyond this are no classes, unless someone says so."""


class Table(NamedTuple):
    """What a file holds.

    Attributes:
        features: names of the columns that are inputs.
        inputs: their values, (N, d).
        target: the name of the target.
        answers: the target of each row, as it is written.
        in_test: which rows are to be tested on, (N,); None if the file does not say.
    """

    features: tuple[str, ...]
    inputs: NDArray[np.float64]
    target: str
    answers: list[str]
    in_test: NDArray[np.bool_] | None


def read_table(path: Path, target: str | None = None, features: Sequence[str] = ()) -> Table:
    """Read a CSV file.

    Args:
        path: the file, in UTF-8. Its first line names the columns.
        target: the column to be predicted.
        features: the columns that are inputs, in this order; by default all others.

    Raises:
        InvalidInput: a column is missing, or holds something else than numbers.
        CorruptFile: rows are not as long as the first line, or there are none.
    """
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise CorruptFile(f"{path} is no CSV file in UTF-8 ({error}).") from error
    lines = [(number, row) for number, row in enumerate(rows, start=1) if row]
    if len(lines) < 2:
        raise CorruptFile(f"{path} has no rows: the first line names the columns, and each other line is a point.")
    names, lines = [name.strip() for name in lines[0][1]], lines[1:]
    _require_names(path, names)
    for number, row in lines:
        if len(row) != len(names):
            raise CorruptFile(f"line {number} of {path} has {len(row)} values, and the first line {len(names)} names.")
    answer = _target(path, names, target)
    columns = {name: [row[k].strip() for _, row in lines] for k, name in enumerate(names)}
    in_test = _split(path, columns.pop(SPLIT)) if SPLIT in names and answer != SPLIT else None
    answers = columns.pop(answer)
    if absent := [name for name in features if name not in columns]:
        raise InvalidInput(f"{path} has no column {absent[0]!r}{nearest(absent[0], columns)}. {_listed(names)}")
    chosen = {name: columns[name] for name in features} if features else columns
    if not chosen:
        raise InvalidInput(f"{path} has no column beside the target {answer!r}, so there is nothing to predict from.")
    numbers = [number for number, _ in lines]
    values = [_numbers(path, name, column, numbers) for name, column in chosen.items()]
    for number, text in zip(numbers, answers, strict=True):
        if not text:
            raise InvalidInput(f"line {number} of {path} has no {answer!r}. Leave rows without a target out.")
    return Table(tuple(chosen), np.stack(values, axis=1), answer, answers, in_test)


def task_of(answers: Sequence[str], where: str) -> str:
    """Tell from targets whether they are classes or numbers to be predicted, where that is clear.

    Words are classes, and so are whole numbers from 0 on of which none is missing; numbers with fractions are not.

    Raises:
        InvalidInput: it may be either.
    """
    values = [as_number(text) for text in answers]
    if any(value is None for value in values):
        return "classification"
    numbers = {value for value in values if value is not None}
    if any(value != int(value) for value in numbers):
        return "regression"
    if numbers == set(range(len(numbers))) and len(numbers) <= MOST_CLASSES:
        return "classification"
    raise InvalidInput(
        f"{where} holds whole numbers from {min(numbers):g} to {max(numbers):g}, which may be classes or a quantity. "
        "Say which: --task classification or --task regression (task=... in Python)."
    )


def classes_of(answers: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the classes, in order: 0 to C - 1 for such numbers, else what is written, sorted."""
    values = [as_number(text) for text in answers]
    numbers = [value for value in values if value is not None]
    if len(numbers) == len(values) and all(value == int(value) for value in numbers):
        if min(numbers) >= 0 and max(numbers) < MOST_CLASSES:
            return tuple(str(number) for number in range(int(max(numbers)) + 1))
        return tuple(str(number) for number in sorted({int(value) for value in numbers}))
    return tuple(sorted(set(answers)))


def labels_among(answers: Sequence[str], classes: Sequence[str], where: str) -> NDArray[np.int64]:
    """Return the index of each answer among the classes, (N,).

    Raises:
        InvalidInput: one is not among them.
    """
    index = {name: k for k, name in enumerate(classes)}
    labels = np.empty(len(answers), np.int64)
    for k, text in enumerate(answers):
        value = as_number(text)
        name = text if text in index or value is None or value != int(value) else str(int(value))
        if name not in index:
            raise InvalidInput(f"{where} holds {text!r}, which is none of the classes {', '.join(classes[:20])}.")
        labels[k] = index[name]
    return labels


def quantities_of(answers: Sequence[str], where: str) -> NDArray[np.float64]:
    """Return answers as numbers, (N, 1).

    Raises:
        InvalidInput: one is no number.
    """
    values = [as_number(text) for text in answers]
    for text, value in zip(answers, values, strict=True):
        if value is None:
            raise InvalidInput(
                f"{where} holds {text!r}, which is no number, so it cannot be the target of a regression."
            )
    return np.array(values, np.float64)[:, None]


def as_number(text: str) -> float | None:
    """Return a finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _require_names(path: Path, names: list[str]) -> None:
    if len(names) == 1 and (other := next((mark for mark in ";\t|" if mark in names[0]), None)):
        raise InvalidInput(
            f"the first line of {path} has no commas, but {other!r} between its words. Commas separate columns, and "
            "fractions are written with a point."
        )
    if all(as_number(name) is not None for name in names):
        raise InvalidInput(
            f"the first line of {path} holds numbers, where the names of the columns are needed: age,bmi,...,target."
        )
    for name in names:
        if not name or names.count(name) > 1:
            raise InvalidInput(f"the first line of {path} must give each column a name of its own; got {name!r}.")


def _target(path: Path, names: list[str], target: str | None) -> str:
    if target is None:
        found = [name for name in names if name.lower() in TARGETS]
        if len(found) == 1:
            return found[0]
        raise InvalidInput(f"which column of {path} is to be predicted? Name it: --target NAME. {_listed(names)}")
    if target not in names:
        raise InvalidInput(f"{path} has no column {target!r}{nearest(target, names)}. {_listed(names)}")
    return target


def _numbers(path: Path, name: str, column: list[str], lines: list[int]) -> NDArray[np.float64]:
    values = [as_number(text) for text in column]
    for line, text, value in zip(lines, column, values, strict=True):
        if value is None and (not text or text.lower() in ("nan", "na", "n/a", "null", "none", "?")):
            raise InvalidInput(
                f"line {line} of {path} has no value for {name!r}. A certificate speaks of all inputs of a network, "
                "so fill gaps, or leave the row or the column out."
            )
        if value is None:
            raise InvalidInput(
                f"the column {name!r} of {path} holds {text!r} (line {line}), which is no finite number. Write "
                "categories as numbers, one column of 0 and 1 for each, or leave the column out."
            )
    return np.array(values, np.float64)


def _split(path: Path, column: list[str]) -> NDArray[np.bool_]:
    if unknown := set(column) - {"train", "test"}:
        raise InvalidInput(
            f"the column {SPLIT!r} of {path} says train or test for each row, and not {min(unknown)!r}. If it is "
            "something else, give it another name."
        )
    return np.array([word == "test" for word in column])


def _listed(names: Sequence[str]) -> str:
    return f"Its columns are {shortened(names)}."
