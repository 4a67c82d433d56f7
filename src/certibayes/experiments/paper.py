"""The paper's figures: posteriors trained and measured cell by cell, one tidy table per figure, and the pictures.

OUT/cells/DATASET/CELL/      a run for every cell (``run``); figures share their posteriors
OUT/FIGURE/DATASET.json      what was found of a data set, in full, with versions and the command
OUT/FIGURE/results.csv       all data sets, a row for every posterior
OUT/FIGURE/FIGURE.svg, .png  the figure
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from certibayes import data
from certibayes.experiments._figure_evaluators import FigureEvaluator, make_evaluator
from certibayes.experiments._paper_figures import (
    draw_entropies,
    draw_intervals,
    draw_radii,
    draw_ratios,
    draw_robustness,
)
from certibayes.experiments.engines import Engine
from certibayes.experiments.figure_spec import AXES, Cell, FigureSpec
from certibayes.experiments.figures import require_matplotlib
from certibayes.experiments.grid import Failure, is_finished, passes_over_data, run_cells, run_one
from certibayes.experiments.out_of_distribution import load_out_of_distribution
from certibayes.experiments.run import CHECKPOINT_EVERY
from certibayes.experiments.tables import rows_csv
from certibayes.posteriors import versions
from certibayes.support.files import write_atomically
from certibayes.support.optional import require_package

CELLS = "cells"
RESULTS = "results.csv"

COLUMNS: dict[str, tuple[str, ...]] = {
    "robustness": (
        "accuracy", "pgd", "ibp", "lbp", "elided", "best", "temperature", "mutual_information", "nll", "ece",
        "disagreement", "n", "n_lbp", "n_best", "eps", "samples",
    ),
    "radius": ("accuracy", "radius", "temperature", "n", "samples"),
    "entropy": ("accuracy", "nll", "likelihood_ratio", "ood", "temperature", "n", "eps", "samples"),
    "regression": (
        "rmse", "nll", "width", "certified", "sample_std", "temperature", "n", "eps", "samples",
    ),
}  # fmt: skip
"""Columns of a figure's table after the axes; accuracies and what is proved are fractions of the points."""

PARTS = ("in", "out", "adversarial")
OF_PARTS = ("expected_entropy", "predictive_entropy", "mutual_information", "max_probability")
"""Figures of entropy, of each set of inputs."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Progress:
    """How far a grid has come.

    Attributes:
        done: cells that are finished.
        total: all cells.
        name: the cell that was finished last.
        seconds_left: about how long the others will take; None before anything was learned about that.
    """

    done: int
    total: int
    name: str
    seconds_left: float | None


@dataclass(frozen=True)
class FigureResult:
    """What came of a figure.

    Attributes:
        rows: posteriors of this data set that are finished, those of earlier commands too.
        failures: by cell, why others are not.
        out: directory of the figure.
    """

    rows: list[Row]
    failures: dict[str, Failure] = field(default_factory=dict)
    out: Path = Path()


def run_figure(  # noqa: PLR0913 - public
    figure: FigureSpec,
    dataset: str,
    out: Path,
    *,
    engine: Engine,
    quick: bool = False,
    limit: int | None = None,
    data_dir: str | Path | None = None,
    device: str | None = None,
    chosen: Mapping[str, Sequence[str] | None] | None = None,
    command: str = "",
    checkpoint_every: float = CHECKPOINT_EVERY,
    on_progress: Callable[[Progress], Any] = lambda progress: None,
) -> FigureResult:
    """Train and measure the posteriors of a figure on a data set, and write its table and pictures.

    What is finished is kept and not done again. Cells that fail do not stop the others, and are tried again by the next
    command; tables and pictures are of all that is finished, also when this is interrupted.

    Args:
        figure: what is made.
        dataset: one of the figure's.
        out: where everything goes.
        engine: where cells are worked on.
        quick: small networks and few epochs.
        limit: take only the first so many test images.
        data_dir: where data sets lie.
        device: where to compute.
        chosen: take only these values of the axes ``method``, ``likelihood``, ``recipe`` and ``network``.
        command: that repeats it, for the record.
        checkpoint_every: seconds of training between checkpoints.
        on_progress: called after each cell.
    """
    require_matplotlib()
    if figure.kind == "entropy":
        require_package("torchmetrics", "evaluation")
    cells = figure.cells(dataset, quick=quick, **(chosen or {}))
    evaluator = make_evaluator(figure, dataset, quick=quick, limit=limit, data_dir=data_dir, device=device)
    _require_data(dataset, evaluator)
    place = out / CELLS
    clock = _Clock(cells, place, evaluator)
    outcomes: dict[str, Any] = {}
    try:
        outcomes = run_cells(
            {name: cell.spec for name, cell in cells.items()},
            place,
            evaluator,
            engine=engine,
            groups={name: cell.group for name, cell in cells.items()},
            checkpoint_every=checkpoint_every,
            on_progress=lambda done, total, name: on_progress(Progress(done, total, name, clock.after(name))),
        )
    finally:
        every = figure.cells(dataset, quick=quick) | cells
        for recipe in figure.optional:
            every |= figure.cells(dataset, quick=quick, recipe=[recipe])
        rows = finished_rows(every, place, evaluator)
        write_results(figure, dataset, rows, out / figure.name, {"command": command, "quick": quick})
    failures = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Failure)}
    return FigureResult(rows, failures, out / figure.name)


def _require_data(dataset: str, evaluator: FigureEvaluator) -> None:
    """Raise before anything is trained if data are missing."""
    loaded = data.load(dataset, evaluator.data_dir)
    if "ood" in evaluator.settings:
        load_out_of_distribution(evaluator.settings["ood"], loaded, evaluator.data_dir, 1)


class _Clock:
    """Estimates how long the cells that are left will take, by what those have taken that were worked on."""

    def __init__(self, cells: Mapping[str, Cell], place: Path, evaluator: FigureEvaluator):
        self.costs = {
            name: passes_over_data(cell.spec)
            for name, cell in cells.items()
            if not is_finished(place / name, evaluator)
        }
        self.all, self.began = sum(self.costs.values()), time.monotonic()

    def after(self, name: str) -> float | None:
        """Return the seconds left, now that a cell is finished; None if nothing was worked on yet."""
        self.costs.pop(name, None)
        left = sum(self.costs.values())
        done = self.all - left
        return (time.monotonic() - self.began) * left / done if done else None


def finished_rows(cells: Mapping[str, Cell], place: Path, evaluator: FigureEvaluator) -> list[Row]:
    """Return a row for every cell that is finished: its axes, its name and its figures."""
    rows = []
    for name, cell in cells.items():
        if is_finished(place / name, evaluator):
            figures = run_one(cell.spec, place / name, evaluator)
            rows.append({**cell.axes, "cell": name, "source": cell.source, **figures})
    return rows


def write_results(figure: FigureSpec, dataset: str, rows: list[Row], out: Path, about: Mapping[str, Any]) -> None:
    """Write what was found of a data set, then the table and the pictures of all data sets that are there."""
    if not rows:
        return
    record = {"figure": figure.name, "title": figure.title, "dataset": dataset, **about, "versions": versions()}
    write_atomically(out / f"{dataset}.json", (json.dumps({**record, "rows": rows}, indent=1) + "\n").encode())
    records = [json.loads(file.read_text()) for name in figure.datasets if (file := out / f"{name}.json").exists()]
    everything = [row for record in records for row in record["rows"]]
    write_atomically(out / RESULTS, rows_csv([flat(row, figure.kind) for row in everything]).encode())
    _draw(figure, everything, out, trial=any(record.get("quick") is True for record in records))


def flat(row: Row, kind: str) -> Row:
    """Return a row of the table: axes and plain figures, with the same columns for every row."""
    found: Row = {axis: row[axis] for axis in AXES}
    figures = dict(row)
    if kind == "entropy" and "diverged" not in row:
        figures |= {"accuracy": row["in"]["accuracy"], "nll": row["in"]["nll"]}
    found |= {column: figures.get(column, "") for column in COLUMNS[kind]}
    if kind == "entropy":
        for part in PARTS:
            found |= {f"{part}_{key}": row.get(part, {}).get(key, "") for key in OF_PARTS}
        detection = row.get("detection", {}).get("expected_entropy", {})
        found["auroc"] = detection.get("auroc", "")
    return found | {"diverged": "diverged" in row, "source": row["source"]}


def _draw(figure: FigureSpec, rows: list[Row], out: Path, *, trial: bool = False) -> None:
    paths = [out / f"{figure.name}.{form}" for form in ("svg", "png")]
    if figure.kind == "robustness":
        draw_robustness(rows, figure.title, figure.density, *paths, trial=trial)
    elif figure.kind == "radius":
        draw_radii(rows, figure.title, *paths, trial=trial)
    elif figure.kind == "entropy":
        draw_entropies(rows, figure.title, *paths, trial=trial)
        ratios = [out / f"{figure.name}-ratios.{form}" for form in ("svg", "png")]
        draw_ratios(rows, "Likelihood ratios", *ratios, trial=trial)
    else:
        draw_intervals(rows, figure.title, *paths, trial=trial)
