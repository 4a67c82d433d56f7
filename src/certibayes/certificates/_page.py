"""A certificate as a page: self-contained HTML that says what was proved, of what, and how to check it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from certibayes.certificates._page_points import Point, images_of, point_of, values_of
from certibayes.certificates._page_words import (
    TITLES,
    Result,
    changes_in_words,
    figures_of,
    lead_in_words,
    not_proved,
    origin_rows,
    proof_rows,
)
from certibayes.certificates.abstention import Abstention
from certibayes.certificates.certificate import Certificate
from certibayes.certificates.radius import Radius
from certibayes.errors import InvalidInput
from certibayes.support.files import tensor_digest, write_atomically
from certibayes.support.templates import filled
from certibayes.support.tensors import as_tensor

FEW = 12
"""Points that a page shows unless others are asked for."""


def write_page(
    result: Result,
    path: Path | str,
    x: Tensor | None = None,
    *,
    names: Sequence[str] = (),
    features: Sequence[str] = (),
    show: int | Sequence[int] = FEW,
    title: str = "",
) -> None:
    """Write a page about a result; see ``Certificate.page``."""
    page = filled("certibayes.certificates", "page.html.j2", page_values(result, x, names, features, show, title))
    write_atomically(Path(path), page.encode())


def page_values(
    result: Result,
    x: Tensor | None,
    names: Sequence[str],
    features: Sequence[str],
    show: int | Sequence[int],
    title: str,
) -> dict[str, Any]:
    """Return everything that the page says, before it is laid out."""
    record = result.certificate if isinstance(result, Abstention) else result
    _require_names(result, names)
    shown = _shown(show, len(result))
    points = [point_of(result, number, names) for number in shown]
    if x is not None:
        points = _with_inputs(record, points, as_tensor(x, "the points"), features)
    return {
        "title": title or TITLES[type(result)],
        "kind": TITLES[type(result)],
        "lead": lead_in_words(result),
        "changes": changes_in_words(record),
        "figures": figures_of(result),
        "statement": result.statement,
        "points": points,
        "total": len(result),
        "not_proved": not_proved(result),
        "proof": proof_rows(result),
        "origin": origin_rows(record.provenance),
        "record": hashlib.sha256(result.content()).hexdigest(),
        "checkable": isinstance(result, Certificate),
        "version": record.version,
    }


def _shown(show: int | Sequence[int], points: int) -> list[int]:
    if isinstance(show, int):
        if show < 0:
            raise InvalidInput(f"show must be a number of points >= 0, or a list of points, got {show}.")
        return list(range(min(show, points)))
    chosen = [int(number) for number in show]
    if outside := [number for number in chosen if not 0 <= number < points]:
        raise InvalidInput(f"this certificate has the points 0 to {points - 1}; there is no point {outside[0]}.")
    return chosen


def _require_names(result: Result, names: Sequence[str]) -> None:
    """Raise unless there are as many names as classes or outputs; how many a record of radii has is not known."""
    if not names or isinstance(result, Radius) or not len(result):
        return
    columns = (result.certificate if isinstance(result, Abstention) else result).lower.shape[1]
    if len(names) != columns:
        raise InvalidInput(f"this certificate has {columns} classes or outputs, but {len(names)} names were given.")


def _with_inputs(record: Any, points: list[Point], x: Tensor, features: Sequence[str]) -> list[Point]:
    """Add pictures or values. A page must not show an input that nothing was proved of, so the digest decides."""
    if tensor_digest({"inputs": x}) != record.inputs_digest:
        raise InvalidInput(
            f"x is not what this certificate is about: its {len(record)} points have the digest "
            f"{record.inputs_digest[:16]}. Give all of them, in the same order and precision."
        )
    width = x[0].numel() if len(x) else 0
    if features and len(features) != width:
        raise InvalidInput(f"inputs have {width} values, but {len(features)} features were named.")
    chosen = [point.number for point in points]
    # In other norms a radius is about all changes together, and radii of points are said of each point.
    radii = None if isinstance(record, Radius) or record.norm != "linf" else record.eps
    if isinstance(radii, Tensor) and len(radii) == len(x):
        radii = radii[chosen]
    pictures, values = images_of(x[chosen], record.domain), values_of(x[chosen], radii, features)
    found: list[str] = [""] * len(chosen)
    if isinstance(record, Certificate) and record.attacked is not None and record.counterexamples is not None:
        # A point that is misclassified as it is has itself for a counterexample.
        broken = (record.attacked & (record.predicted == record.labels))[chosen].cpu().tolist()
        inputs = images_of(record.counterexamples.to(torch.float64)[chosen], record.domain)
        found = [picture if is_broken else "" for picture, is_broken in zip(inputs, broken, strict=True)]
    return [
        replace(point, image=picture, counterexample=other, values=numbers)
        for point, picture, other, numbers in zip(points, pictures, found, values, strict=True)
    ]
