"""certibayes data."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from certibayes import data
from certibayes.cli.options import DataDir, JsonOption
from certibayes.cli.terminal import console, error_handler, notes, print_json
from certibayes.data.layout import get_command

data_app = typer.Typer(help="List data sets, and get them from their publishers.", invoke_without_command=True)


@data_app.callback()
def list_command(context: typer.Context, data_dir: DataDir = None, as_json: JsonOption = False) -> None:
    """List the data sets and say which are here.

    Data of your own are files, which --data takes. A .csv is a table whose first line names the columns; --target
    says which of them is to be predicted, and a column called split, if there is one, which rows are for train and
    test. .npz and .pt hold arrays x and y, or x_train, y_train, x_test and y_test. Where a file does not say what to
    test on, every fifth point is, from the first on. Images of bytes are divided by 255; all else is taken in its own
    units.
    """
    if context.invoked_subcommand is not None:
        # `data --json get NAME` means the same as `data get NAME --json`.
        context.obj = (data_dir, as_json)
        return
    with error_handler():
        here = {name: data.is_available(name, data_dir) for name in data.names()}
        if as_json:
            print_json({"data_dir": str(data.data_directory(data_dir)), "available": here})
            return
        table = Table("data set", "here", "get it with")
        for name, available in here.items():
            command = "" if available else escape(get_command(name, data.data_directory(data_dir)))
            table.add_row(name, "[green]yes[/green]" if available else "no", command)
        console.print(table)
        where = escape(str(data.data_directory(data_dir)))
        console.print(f"looked in {where}; digits, diabetes and breast-cancer are part of the package", highlight=False)


@data_app.command("get")
def download_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the data set.")],
    data_dir: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Download a data set from its publisher, with its checksum; an interrupted download goes on where it stopped."""
    outer_dir, outer_json = context.obj or (None, False)
    data_dir, as_json = data_dir or outer_dir, as_json or outer_json
    with error_handler():
        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=notes,
            disable=as_json,
        )  # fmt: skip
        tasks = {}
        with bar:

            def move(file: str, done: int, total: int | None) -> None:
                if file not in tasks:
                    tasks[file] = bar.add_task(file)
                bar.update(tasks[file], completed=done, total=total)

            where = data.download(name, data_dir, move)
        if as_json:
            print_json({"name": name, "path": str(where)})
        else:
            console.print(f"{name} is in [bold]{escape(str(where))}[/bold]", highlight=False)
