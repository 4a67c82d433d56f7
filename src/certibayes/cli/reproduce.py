"""certibayes reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from certibayes.cli.options import DataDir, DeviceOption, JsonOption, LimitOption
from certibayes.cli.terminal import console, print_json, progress_bar, told_plainly
from certibayes.errors import InvalidInput
from certibayes.experiments import Judging, run_study
from certibayes.experiments.inference_study import EPS, Row

STUDIES = ("inference",)


def reproduce_command(
    study: Annotated[str, typer.Argument(help=f"What to reproduce: {', '.join(STUDIES)}.")],
    dataset: Annotated[str, typer.Option("--dataset", help="Data set to train and test on.")] = "mnist",
    out: Annotated[Path | None, typer.Option("--out", help="Directory to write to; runs/STUDY by default.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny networks and few epochs, to see that it works; figures mean nothing.")
    ] = False,
    workers: Annotated[int, typer.Option("--workers", help="Runs at once, each a process of its own.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of networks, data order and inference.")] = 0,
    limit: LimitOption = None,
    device: DeviceOption = None,
    data_dir: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Run a whole study: train, certify and attack many posteriors, and write tables and figures.

    What is finished is kept: a study that was stopped goes on where it was when the command is given again.

    Example: certibayes reproduce inference --dataset mnist --device cuda --workers 8
    """
    with told_plainly():
        if study not in STUDIES:
            raise InvalidInput(f"there is no study {study!r}; known are {', '.join(STUDIES)}.")
        out = Path("runs") / study if out is None else out
        judging = Judging(EPS, limit=limit, data_dir=data_dir, device=device)
        with progress_bar(study, not as_json) as moved:
            rows = run_study(
                out, judging, dataset=dataset, quick=quick, seed=seed, workers=workers,
                told=lambda done, total, name: moved(done, total),
            )  # fmt: skip
        if as_json:
            print_json({"out": str(out), "rows": [{**vars(row), "figures": row.figures} for row in rows]})
            return
        console.print(_table(rows))
        console.print(f"table, figure and every run in [bold]{escape(str(out))}[/bold]", highlight=False)


def _table(rows: list[Row]) -> Table:
    n = rows[0].figures["n"]
    table = Table(title=f"{n:,} test images, theorem1 at ±{EPS:g}; v: validated temperature", title_style="bold")
    table.add_column("robust method")
    for name in ("T", "proved", "PGD", "accuracy", "NLL", "ECE", "mutual inf."):
        table.add_column(name, justify="right")
    for likelihood in ("ibp", "standard"):
        for row in (row for row in rows if row.likelihood == likelihood):
            f = row.figures
            name = row.method if likelihood == "ibp" else f"{row.method} [dim](standard)[/dim]"
            chosen = "v " if row.choice == "validated" else ""
            shares = (f"{100 * f[key]:.1f}%" for key in ("certified", "pgd", "accuracy"))
            doubts = (f"{f['nll']:.3f}", f"{f['ece']:.3f}", f"{f['mutual_information']:.5f}")
            table.add_row(name, f"{chosen}{f['temperature']:g}", *shares, *doubts)
        table.add_section()
    return table
