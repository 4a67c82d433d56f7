"""certibayes report, and certibayes compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from certibayes.cli.options import DataDir, JsonOption, RunArgument
from certibayes.cli.terminal import console, error_handler, print_json
from certibayes.experiments import compare_runs, write_report


def report_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Directory of a run, a certificate or a grid; whatever it holds is in the page."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The page; by default DIR/report.html.", show_default=False)
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="Data set whose first test points certificates are about, so that they are shown; by default those "
            "of the runs that are there are tried.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Write a page about a run, a certificate or a grid: figures, tables, training curves, examples.

    The page is one file of HTML, to be opened without a network. Tables are sorted by a click on a heading and filtered
    by words. Figures of the paper are set beside what its text states, with the reason for each difference; every run
    has its settings and the command that repeats it.

    Example: certibayes report runs/paper
    """
    with error_handler():
        target = write_report(path, out, dataset=dataset, data_dir=data_dir)
        console.print(Text(f"wrote {target}"), soft_wrap=True)


def compare_command(
    first: RunArgument,
    second: RunArgument,
    out: Annotated[Path | None, typer.Option("--out", help="Write a page of HTML as well.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: the settings in which they differ, and their figures side by side.

    Example: certibayes compare runs/a runs/b
    """
    with error_handler():
        found = compare_runs(first, second)
        if out is not None:
            found.page(out)
        if as_json:
            print_json(found.summary())
            return
        for title, pairs in (("settings that differ", found.settings), ("figures", found.figures)):
            table = Table("", "A", "B", title=f"{title}{'' if pairs else ': none'}", title_style="bold")
            for name, pair in pairs.items():
                table.add_row(escape(name), *(escape(_word(value)) for value in pair))
            console.print(table if pairs else Text(f"{title}: none"))
        console.print(Text(f"A: {first}\nB: {second}" + (f"\nwrote {out}" if out else "")), soft_wrap=True)


def _word(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
