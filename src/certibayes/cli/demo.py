"""certibayes demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from certibayes.cli.options import JsonOption
from certibayes.cli.terminal import console, error_handler, notes, print_json
from certibayes.experiments import run_demo


def demo_command(
    out: Annotated[Path, typer.Option("--out", help="Directory to write to.")] = Path("runs/demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of minutes; the figures mean little.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Refuse to replace an earlier demo.")] = False,
    as_json: JsonOption = False,
) -> None:
    """See a provably robust Bayesian network beside one that is not, in about two minutes.

    Trains the same convolutional network on 10,000 embedded MNIST digits with the standard and with the robust
    likelihood, certifies and attacks both on 2,000 test digits, and writes a report, a figure and the results.
    """
    with error_handler():

        def stage(what: str) -> None:
            if not as_json:
                notes.print(f"[dim]{what}[/dim]")

        result = run_demo(out, quick=quick, overwrite=not keep, progress=not as_json, stage=stage)
        if as_json:
            print_json(result.summary())
            return
        console.print(_table(result.summary()))
        robust = result.evaluations["robust"].certificate
        console.print(f"\n[bold]What was proved.[/bold] {robust.statement}\n", highlight=False)
        console.print(f"Open [bold]{escape(str(out / 'report.html'))}[/bold] to see the digits.", highlight=False)


def _table(summary: dict[str, dict[str, Any]]) -> Table:
    first = next(iter(summary.values()))
    table = Table(
        title=f"{first['n']:,} test digits, every change of up to ±{first['eps']:g} per pixel", title_style="bold"
    )
    table.add_column("")
    for name in summary:
        table.add_column(f"{name} likelihood", justify="right")
    for key, words in (("accuracy", "accuracy"), ("pgd", "survive PGD"), ("certified", "[bold green]proved[/]")):
        table.add_row(words, *(f"{100 * figures[key]:.1f}%" for figures in summary.values()))
    table.add_section()
    for key, words, form in (
        ("temperature", "temperature", "g"),
        ("mutual_information", "mutual information", ".5f"),
        ("disagreement", "disagreement", ".4f"),
        ("nll", "negative log-likelihood", ".3f"),
    ):
        table.add_row(words, *(format(figures[key], form) for figures in summary.values()))
    return table
