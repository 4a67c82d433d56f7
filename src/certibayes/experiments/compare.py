"""Two runs side by side: the settings in which they differ, and all figures that either has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certibayes.experiments._found import FoundRun, read_run
from certibayes.experiments._training_curves import curves_of
from certibayes.experiments._views import Cell, Column, Table, flattened, number_cell, page_of, without_digests
from certibayes.support.files import write_atomically

Pair = tuple[Any, Any]

MISSING = "–"
"""What stands for a setting or figure that only the other run has."""


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common, and what not.

    Attributes:
        first: a run.
        second: another one.
        settings: those that differ, by name.
        figures: all figures, by name; None for what a run does not have.
    """

    first: FoundRun
    second: FoundRun
    settings: dict[str, Pair]
    figures: dict[str, Pair]

    def summary(self) -> dict[str, Any]:
        """Return it as plain values; what is not finite, which JSON does not know, as a word."""
        pairs = {"settings": self.settings, "figures": self.figures}
        found = {name: {key: list(map(_plain, pair)) for key, pair in values.items()} for name, values in pairs.items()}
        return {"runs": [str(self.first.path), str(self.second.path)], **found}

    def page(self, path: Path) -> None:
        """Write a page about it: one file of HTML, with the training curves of both."""
        values = {
            "title": "Two runs",
            "first": str(self.first.path),
            "second": str(self.second.path),
            "settings": _table("Settings that differ", self.settings, numbers=False),
            "figures": _table("Figures", self.figures, numbers=True),
            "curves": curves_of(self.first.metrics, self.second.metrics),
        }
        write_atomically(path, page_of("compare.html.j2", values).encode())


def compare_runs(first: Path, second: Path) -> Comparison:
    """Compare two runs, finished or not.

    Raises:
        FileNotFoundError: a directory holds no run.
        CorruptFile: its record cannot be read.
    """
    runs = read_run(first), read_run(second)
    settings = _pairs(*({key: str(value) for key, value in _settings(run).items()} for run in runs))
    names = without_digests({**runs[0].record, **runs[1].record})
    figures = _pairs(*(_figures(run, names) for run in runs))
    return Comparison(*runs, {key: pair for key, pair in settings.items() if pair[0] != pair[1]}, figures)


def _settings(run: FoundRun) -> dict[str, Any]:
    spec = dict(run.record["spec"])
    own = spec.pop("settings", None)
    return {**spec, **(own if isinstance(own, Mapping) else {})}


def _figures(run: FoundRun, names: Mapping[str, str]) -> dict[str, Any]:
    """All that was measured of a run: figures of its last epoch, then those of evaluations."""
    last = run.metrics[-1] if run.metrics else {}
    skipped = ("spec", "versions")
    stored = {names[key]: value for key, value in run.record.items() if key not in skipped}
    return {f"last epoch: {key}": value for key, value in last.items()} | flattened(stored)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _pairs(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Pair]:
    return {key: (first.get(key), second.get(key)) for key in dict.fromkeys([*first, *second])}


def _table(title: str, pairs: Mapping[str, Pair], numbers: bool) -> Table:
    """Put pairs side by side, numbers with their difference; settings are words."""
    columns = [Column("name"), *(Column(name, number=numbers) for name in ("A", "B", *(["B − A"] * numbers)))]
    return Table(title, columns, [_row(key, pair)[: len(columns)] for key, pair in pairs.items()])


def _row(name: str, pair: Pair) -> list[Cell]:
    measure = name.rpartition(".")[2]
    cells = [number_cell(MISSING if value is None else value, measure) for value in pair]
    numbers = [cell.key for cell in cells]
    gap = Cell("") if None in numbers else number_cell(float(pair[1]) - float(pair[0]), measure)
    return [Cell(name, tone="long"), *cells, gap]
