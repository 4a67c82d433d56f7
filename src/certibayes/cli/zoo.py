"""certibayes zoo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table

from certibayes import zoo
from certibayes.cli.options import DataDir, DeviceOption, EpsOption, JsonOption, SamplesOption
from certibayes.cli.terminal import console, error_handler, print_json
from certibayes.errors import InvalidInput
from certibayes.experiments import add_to_zoo
from certibayes.zoo.catalog import figures

DIGEST = 12
"""Characters of a digest that are shown."""


def zoo_command(
    name: Annotated[
        str | None, typer.Argument(help="An entry, whose card is shown; without it, all are listed.")
    ] = None,
    add: Annotated[
        Path | None, typer.Option("--add", metavar="RUN", help="Make the entry NAME from this finished run.")
    ] = None,
    description: Annotated[
        str | None, typer.Option("--description", help="With --add: one line for the list.", show_default=False)
    ] = None,
    eps: EpsOption = None,
    samples: SamplesOption = None,
    data_dir: DataDir = None,
    device: DeviceOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="With --add: where entries are; the package's own by default.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --add: replace the entry NAME.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the posteriors that come with the package, show the card of one, or add one.

    Every command that takes a RUN takes an entry as zoo:NAME: certibayes certify zoo:digits-swag

    With --add a run becomes an entry: deviations are rounded to float16, and what is stored is certified on all test
    images. EPS, SAMPLES, the device and the data directory are for that.

    Example: certibayes zoo mnist-swag --add runs/swag --samples 35 --device cuda
    """
    with error_handler():
        if add is not None:
            if name is None:
                raise InvalidInput(f"an entry needs a name: certibayes zoo NAME --add {add}")
            target = add_to_zoo(
                add, name, description=description, eps=eps, samples=samples, data_dir=data_dir, device=device, out=out,
                overwrite=overwrite, progress=not as_json,
            )  # fmt: skip
            if as_json:
                print_json({"path": str(target)})
            else:
                console.print(f"{escape(name)} is in [bold]{escape(str(target))}[/bold]", highlight=False)
            return
        if any((description, eps is not None, samples is not None, device, out, overwrite)):
            raise InvalidInput("these options are for making an entry: certibayes zoo NAME --add RUN")
        if as_json:
            print_json(figures(name) if name is not None else {"entries": [figures(e.name) for e in zoo.list()]})
        elif name is not None:
            console.print(Markdown(zoo.card(name)))
        else:
            _print_list()


def _print_list() -> None:
    table = Table(show_lines=True)
    table.add_column("posterior", no_wrap=True)
    table.add_column("data set")
    for heading in ("eps", "certified", "accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in zoo.list():
        about = (
            f"[bold]{entry.name}[/bold]", escape(entry.description),
            f"[dim]{entry.samples} samples, {entry.digest[:DIGEST]}…[/dim]",
        )  # fmt: skip
        fractions = (f"{value:.2%}" for value in (entry.certified, entry.accuracy))
        table.add_row("\n".join(about), entry.dataset, f"{entry.eps:.4g}", *fractions)
    console.print(table)
    console.print("certibayes zoo NAME shows a card; certibayes certify zoo:NAME takes it as a run", highlight=False)
