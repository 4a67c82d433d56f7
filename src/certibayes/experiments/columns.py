"""What may change in a table, as it is written on a command line: radii, limits and scales, by the names of columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from certibayes.data import DataSet
from certibayes.errors import InvalidInput
from certibayes.experiments.settings import as_number
from certibayes.regions import domain_by_name, fixed_by_name, radii_by_name

STD, UNITS = "std", "units"
RADII = "0.1, 8/255, or by name, such as bmi=1.5,bp=5"
LIMITS = "0,1 for all, or by name, such as age=0:120,bmi=10:70"


def read_radii(text: str) -> float | dict[str, float]:
    """Read one radius, or radii by name.

    Raises:
        ValueError: it is neither.
    """
    return as_number(text) if "=" not in text else {name: as_number(value) for name, value in _entries(text)}


def read_names(text: str | None) -> tuple[str, ...]:
    """Read names with commas between them."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def read_domain(text: str, features: tuple[str, ...]) -> Any:
    """Read limits of all inputs, or of some columns.

    Raises:
        InvalidInput: they are written in another way, or name a column that there is not.
    """
    try:
        if "=" not in text:
            low, high = map(as_number, text.split(","))
            return low, high
        limits = {}
        for name, value in _entries(text):
            low, high = map(as_number, value.split(":"))
            limits[name] = (low, high)
    except ValueError:
        raise InvalidInput(f"{text!r} is no domain; write {LIMITS}.") from None
    return domain_by_name(features, limits)


def with_domain(found: DataSet, text: str | None) -> DataSet:
    """Return a data set with the domain that was asked for, or its own."""
    return found if text is None else replace(found, domain=read_domain(text, found.features))


def scale_of(found: DataSet, text: str | None, fixed: tuple[str, ...]) -> Tensor | None:
    """Return what radii are multiples of, (1, d) in float64; None where they are in the units of the inputs.

    Args:
        found: the data set; standard deviations are those of its training split.
        text: ``std``, ``units``, or radii by name. By default ``std`` for a table in units of its own.
        fixed: columns that do not change.
    """
    scale: Any = None
    if text is None:
        text = STD if found.own_units else UNITS
    if text == STD:
        scale = torch.tensor([found.column_statistics()[1]], dtype=torch.float64)
    elif text != UNITS:
        try:
            radii = read_radii(text)
        except ValueError:
            radii = 0.0
        if not isinstance(radii, dict):
            raise InvalidInput(f"scale is {STD}, {UNITS}, or written by name, such as bmi=1.5,bp=5; got {text!r}.")
        scale = radii_by_name(found.features, radii)
    if not fixed:
        return scale
    if scale is None:
        scale = torch.ones(1, len(found.features), dtype=torch.float64)
    return fixed_by_name(found.features, scale, fixed)


def _entries(text: str) -> list[tuple[str, str]]:
    entries = []
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{part!r} is no name with a value.")
        entries.append((name.strip(), value.strip()))
    return entries
