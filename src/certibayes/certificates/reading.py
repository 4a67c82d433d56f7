"""Reading the values of a stored record: each is what its name promises, or the record is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from certibayes.errors import CorruptFile

Leaf = Callable[[Any], bool]


def read_record(path: Path | str) -> dict[str, Any]:
    """Read a record's JSON; ``path`` may be a directory that holds ``certificate.json``."""
    path = Path(path)
    file = path / "certificate.json" if path.is_dir() else path
    try:
        record = json.loads(file.read_text(), object_pairs_hook=_without_repetition)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no certificate at {file}.") from None
    except ValueError as error:
        raise CorruptFile(f"{file} is not valid JSON ({error}).") from error
    if not isinstance(record, dict):
        raise CorruptFile(f"{file} does not hold a certificate.")
    return record


def require_keys(record: Any, keys: Collection[str], what: str) -> None:
    """Raise unless a record has exactly these keys."""
    if not isinstance(record, Mapping):
        raise CorruptFile(f"{what} must be a JSON object, got {type(record).__name__}.")
    missing = [key for key in keys if key not in record]
    unknown = [str(key) for key in record if key not in keys]
    if missing or unknown:
        parts = [
            f"{title}: {', '.join(names)}" for title, names in (("missing", missing), ("unknown", unknown)) if names
        ]
        raise CorruptFile(
            f"{what} is not complete, or holds what this version does not know ({'; '.join(parts)}). Certify again "
            "with this version."
        )


def choice(value: Any, names: Collection[str], what: str) -> str:
    """Return a value that must be one of some names."""
    if not (isinstance(value, str) and value in names):
        raise CorruptFile(f"{what} must be one of {', '.join(names)}, got {value!r}.")
    return value


def text(value: Any, what: str) -> str:
    """Return a value that must be a string with something in it."""
    if not (isinstance(value, str) and value.strip()):
        raise CorruptFile(f"{what} must be words, got {value!r}.")
    return value


def truth(value: Any, what: str) -> bool:
    """Return a value that must be true or false."""
    if not isinstance(value, bool):
        raise CorruptFile(f"{what} must be true or false, got {value!r}.")
    return value


def count(value: Any, what: str, minimum: int | None = 0) -> int:
    """Return a value that must be a whole number, and at least ``minimum``."""
    if not _is_whole(value) or (minimum is not None and value < minimum):
        raise CorruptFile(f"{what} must be a whole number{'' if minimum is None else f' >= {minimum}'}, got {value!r}.")
    return int(value)


def number(value: Any, what: str) -> float:
    """Return a value that must be a finite number."""
    if not _is_finite(value):
        raise CorruptFile(f"{what} must be a finite number, got {value!r}.")
    return float(value)


def truths(value: Any, what: str) -> Tensor:
    """Return a list of true and false as a tensor, (B,)."""
    return _tensor(value, torch.bool, lambda leaf: isinstance(leaf, bool), what, 1)


def whole_numbers(value: Any, what: str) -> Tensor:
    """Return a list of whole numbers as a tensor, (B,)."""
    return _tensor(value, torch.int64, _is_whole, what, 1)


def numbers(value: Any, what: str, dims: int | None = None) -> Tensor:
    """Return nested lists of finite numbers as a float64 tensor."""
    return _tensor(value, torch.float64, _is_finite, what, dims)


def radii(value: Any, points: int) -> float | Tensor:
    """Return a radius, or radii of points (B,), or of input values (1, ...) or (B, ...)."""
    found = number(value, "eps") if not isinstance(value, list) else numbers(value, "eps")
    if isinstance(found, float):
        fits, positive = True, found >= 0
    else:
        fits, positive = _fits(found, points), bool((found >= 0).all())
    if not (fits and positive):
        raise CorruptFile(f"eps must be a radius >= 0, or one for each of {points} points or input values.")
    return found


def domain(value: Any, points: int) -> tuple[float, float] | tuple[Tensor, Tensor] | None:
    """Return the ends of a domain: numbers, or nested lists for features (1, ...) or (B, ...); null is no limit."""
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 2):
        raise CorruptFile(f"a domain is null or a pair of its ends, got {value!r}.")
    low, high = (_end(end, limit) for end, limit in zip(value, (-math.inf, math.inf), strict=True))
    if isinstance(low, float) and isinstance(high, float) and low < high:
        return low, high
    if isinstance(low, Tensor) and isinstance(high, Tensor):
        fits = all(end.dim() > 1 and len(end) in (1, points) for end in (low, high)) and low.shape[1:] == high.shape[1:]
        if fits and bool((low <= high).all()):
            return low, high
    raise CorruptFile("the domain's ends do not fit each other or the points, or are not in order.")


def plain_domain(value: tuple[float, float] | tuple[Tensor, Tensor] | None) -> Any:
    """Return a domain as JSON can hold it; where there is no limit, null."""
    return (
        None
        if value is None
        else [_mapped(plain(end), lambda leaf: None if math.isinf(leaf) else leaf) for end in value]
    )


def by_point(value: Any, points: int, what: str) -> dict[int, Any]:
    """Return a JSON object whose keys are numbers of points."""
    if not isinstance(value, Mapping):
        raise CorruptFile(f"{what} must be a JSON object with numbers of points as keys.")
    names = {str(index): index for index in range(points)}
    if unknown := [str(key) for key in value if key not in names]:
        raise CorruptFile(f"{what} speak of points that there are not: {', '.join(unknown[:5])}.")
    return {names[key]: value[key] for key in value}


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: tensors and tuples as lists, keys as strings."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    return value


def _end(value: Any, limit: float) -> float | Tensor:
    """Return an end of a domain, with ``limit`` where there is none."""
    if value is None:
        return limit
    if not isinstance(value, list):
        return number(value, "an end of the domain")
    known = numbers(_mapped(value, lambda leaf: 0.0 if leaf is None else leaf), "an end of the domain")
    missing = torch.tensor(_mapped(value, lambda leaf: leaf is None))
    return torch.where(missing, limit, known)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change every value of nested lists."""
    return [_mapped(part, change) for part in value] if isinstance(value, list) else change(value)


def _fits(values: Tensor, points: int) -> bool:
    """One for each point, or more dimensions of which the first is the points' or 1."""
    return len(values) == points if values.dim() == 1 else values.dim() > 1 and len(values) in (1, points)


def _tensor(value: Any, dtype: torch.dtype, is_leaf: Leaf, what: str, dims: int | None) -> Tensor:
    if not isinstance(value, list) or not _all_leaves(value, is_leaf):
        raise CorruptFile(f"{what} must be a list of {str(dtype).removeprefix('torch.')} values, all of them finite.")
    try:
        found = torch.tensor(value, dtype=dtype)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise CorruptFile(f"{what} cannot be read as an array ({error}).") from error
    # A list of no points has lost how many values there are for each.
    if dims is not None and found.dim() != dims and found.numel():
        raise CorruptFile(f"{what} must have {dims} dimensions, got {found.dim()}.")
    return found


def _all_leaves(value: Any, is_leaf: Leaf) -> bool:
    return all(_all_leaves(part, is_leaf) for part in value) if isinstance(value, list) else is_leaf(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_finite(value: Any) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e308 and math.isfinite(value)
    )


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that appears twice: readers differ in which of the two they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found
