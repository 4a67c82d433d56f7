"""certibayes page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from certibayes import data
from certibayes.certificates import load_certificate
from certibayes.cli.options import DataDir
from certibayes.cli.terminal import console, error_handler
from certibayes.errors import InvalidInput


def page_command(
    certificate: Annotated[
        Path, typer.Argument(help="The certificate: a file, or the directory that `certibayes certify --out` wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The page; by default beside the certificate, as .html.", show_default=False),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            help="Data set whose first test points the certificate is about, so that they are shown.",
            show_default=False,
        ),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(
            "--points", help="Which points are shown, such as 0,3,17; by default the first.", show_default=False
        ),
    ] = None,
    show: Annotated[int, typer.Option("--show", help="How many points are shown.")] = 12,
    title: Annotated[str, typer.Option("--title", help="Title of the page.", show_default=False)] = "",
    data_dir: DataDir = None,
) -> None:
    """Write a page that says what a certificate proves, in words for people who have never seen one.

    The page is one file of HTML without scripts, which can be printed. It is not the proof: that is the certificate,
    whose digest the page names, and which `certibayes check` checks.

    Example: certibayes page runs/a-certified --dataset digits
    """
    with error_handler():
        result = load_certificate(certificate)
        target = out or (certificate / "certificate.html" if certificate.is_dir() else certificate.with_suffix(".html"))
        chosen = show if points is None else _numbers(points)
        if dataset is None:
            result.page(target, show=chosen, title=title)
        else:
            loaded = data.load(dataset, data_dir)
            result.page(target, loaded.test.inputs[: len(result)], names=loaded.classes, show=chosen, title=title)
        console.print(Text(f"wrote {target}, about {len(result)} points"), soft_wrap=True)


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InvalidInput(
            f"--points takes numbers of points with commas between them, such as 0,3,17; got {text!r}."
        ) from None
