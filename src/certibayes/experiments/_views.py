"""Tables as pages show them: cells with what they are sorted by, and numbers in words."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from certibayes._version import __version__
from certibayes.support.templates import filled

PACKAGE = "certibayes.experiments"
CERTIFICATES = "certibayes.certificates"
"""Whose templates are filled in."""

GENERATOR = "certibayes report"

PERCENT = ("accuracy", "pgd", "ibp", "lbp", "elided", "best", "certified")
"""Figures that are fractions of the test points, written as percentages."""

DIGEST = re.compile("-[0-9a-f]{12}$")

TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True)
class Column:
    """A heading; ``choice`` gives a list of its values to choose from, ``number`` puts it on the right."""

    title: str
    choice: bool = False
    number: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell: its text, the number it is sorted by, a place on the page it leads to, and how it looks."""

    text: str
    key: float | None = None
    href: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """A table; what is read to those who do not see it is its title."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def number_cell(value: Any, measure: str = "", std: float | None = None) -> Cell:
    """Write a figure, with its standard deviation over seeds; what is no number stays as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return Cell(str(value))
    text = figure_in_words(value, measure)
    if std is not None:
        text += f" ± {figure_in_words(std, measure) if measure in PERCENT else f'{std:.2g}'}"
    return Cell(text, value if math.isfinite(value) else None, tone="number")


def figure_in_words(value: float, measure: str = "") -> str:
    """Write a figure in a few digits: a percentage where it is a fraction of points."""
    if measure in PERCENT and math.isfinite(value):
        return f"{100 * value:.1f}%"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return plain values by name, those of tables inside with a dot; lists of values are left out."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            found[f"{prefix}{key}"] = value
    return found


def without_digests(names: Iterable[str]) -> dict[str, str]:
    """Return shorter names of evaluations: without the digest of how it was measured, where that leaves them apart."""
    kinds = {name: DIGEST.sub("", name) for name in names}
    count = Counter(kinds.values())
    return {name: kind if count[kind] == 1 else name for name, kind in kinds.items()}


def picture_source(path: Path) -> str:
    """Return a picture as a data address. As an image, and not as a part of the page, a drawing can run nothing."""
    return f"data:{TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def page_of(template: str, values: Mapping[str, Any]) -> str:
    """Fill in a page: one file with its style and its only script, which the page's own policy names by its digest."""
    folder = resources.files(PACKAGE) / "templates"
    script = (folder / "report.js").read_text(encoding="utf-8")
    style = filled(CERTIFICATES, "page.css", {}) + "\n" + (folder / "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shared = {"script": script, "script_digest": f"sha256-{digest}", "style": style, "generator": GENERATOR}
    return filled(PACKAGE, template, {**shared, "version": __version__, **values})
