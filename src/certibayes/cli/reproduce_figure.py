"""The figures of certibayes reproduce."""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from certibayes.cli.terminal import console, print_json
from certibayes.errors import Interrupted
from certibayes.experiments.engines import make_engine
from certibayes.experiments.figure_spec import FigureSpec, load_figure
from certibayes.experiments.paper import FigureResult, Progress, flat, run_figure

SHOWN: dict[str, dict[str, tuple[str, float, int]]] = {
    "robustness": {
        "accuracy": ("accuracy", 100, 1), "pgd": ("PGD", 100, 1), "ibp": ("IBP", 100, 1), "lbp": ("LBP", 100, 1),
        "mutual_information": ("MI", 1, 4),
    },
    "radius": {"accuracy": ("accuracy", 100, 1), "radius": ("radius", 1, 4)},
    "entropy": {
        "in_expected_entropy": ("in", 1, 3), "out_expected_entropy": ("out", 1, 3),
        "adversarial_expected_entropy": ("PGD", 1, 3), "likelihood_ratio": ("ratio", 1, 3), "auroc": ("AUROC", 1, 3),
    },
    "regression": {"rmse": ("error", 1, 3), "width": ("width", 1, 3), "certified": ("proved", 100, 1)},
}  # fmt: skip
"""Columns of the terminal's table: the figure's, their name there, a factor and digits."""


def reproduce_figure(  # a command's options
    name: str,
    dataset: str | None,
    out: Path | None,
    *,
    engine: str,
    address: str | None,
    workers: int | None,
    quick: bool,
    limit: int | None,
    device: str | None,
    data_dir: Path | None,
    as_json: bool,
    checkpoint_every: float,
    chosen: Mapping[str, Sequence[str] | None],
) -> None:
    """Make a figure, and print its table."""
    figure = load_figure(name)
    if dataset is None:
        dataset = "mnist" if "mnist" in figure.datasets else next(iter(figure.datasets))
    out = Path("runs") / ("paper-quick" if quick else "paper") if out is None else out
    try:
        result = run_figure(
            figure, dataset, out, engine=make_engine(engine, workers=workers, device=device, address=address),
            quick=quick, limit=limit, data_dir=data_dir, device=device, chosen=chosen,
            checkpoint_every=checkpoint_every,
            command=shlex.join(["certibayes", *sys.argv[1:]]), on_progress=_say if not as_json else _say_nothing,
        )  # fmt: skip
    except KeyboardInterrupt:
        raise Interrupted(
            "stopped. Give the same command again: what is finished is kept, and the rest goes on from its checkpoints."
        ) from None
    failures = {cell: str(failure) for cell, failure in result.failures.items()}
    if as_json:
        rows = [flat(row, figure.kind) for row in result.rows]
        print_json({"out": str(result.out), "rows": rows, "failed": failures})
    else:
        console.print(_table(figure, dataset, result))
        for cell, words in failures.items():
            console.print(f"[red]failed:[/red] {escape(cell)}: {escape(words)}", highlight=False)
        console.print(f"table and figures in [bold]{escape(str(result.out))}[/bold]", highlight=False)
    if failures:
        raise typer.Exit(1)


def _say(progress: Progress) -> None:
    """A line for every cell: a log can be read as well as a terminal."""
    left = "" if progress.seconds_left is None else f", {_duration(progress.seconds_left)} left"
    Console(stderr=True, highlight=False).print(f"[{progress.done}/{progress.total}{left}] {escape(progress.name)}")


def _say_nothing(progress: Progress) -> None:
    """JSON alone."""


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"


def _table(figure: FigureSpec, dataset: str, result: FigureResult) -> Table:
    """Means over seeds; the files have every one."""
    table = Table(title=f"{figure.name}, {dataset}: means over seeds", title_style="bold")
    axes = [axis for axis in ("method", "likelihood", "recipe", "network", "variation") if
            len({row[axis] for row in result.rows}) > 1]  # fmt: skip
    for axis in axes:
        table.add_column(axis, no_wrap=True)
    shown = SHOWN[figure.kind]
    for title, _, _ in shown.values():
        table.add_column(title, justify="right", no_wrap=True)
    cells: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in result.rows:
        cells.setdefault(tuple(str(row[axis]) for axis in axes), []).append(flat(row, figure.kind))
    for key, rows in cells.items():
        table.add_row(*key, *(_mean(rows, column, *form[1:]) for column, form in shown.items()))
    return table


def _mean(rows: Sequence[Mapping[str, Any]], column: str, factor: float, digits: int) -> str:
    values = [row[column] for row in rows if row[column] != ""]
    if not values:
        return "diverged" if rows[0]["diverged"] else "–"
    return f"{factor * statistics.fmean(values):.{digits}f}"
