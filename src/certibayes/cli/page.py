"""certibayes page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from certibayes import data
from certibayes.certificates import load_certificate
from certibayes.cli.options import DataDir, TargetOption, TaskOption
from certibayes.cli.terminal import console, error_handler
from certibayes.errors import InvalidInput
from certibayes.support.files import tensor_digest


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
    file: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="The same with a file of your own: .csv, .npz or .pt (see `certibayes data`).",
            show_default=False,
        ),
    ] = None,
    target: TargetOption = None,
    task: TaskOption = None,
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
        written = out or (
            certificate / "certificate.html" if certificate.is_dir() else certificate.with_suffix(".html")
        )
        chosen = show if points is None else _numbers(points)
        loaded = _points(result, dataset, file, data_dir, target, task)
        if loaded is None:
            result.page(written, show=chosen, title=title)
        else:
            x = loaded.test.inputs[: len(result)]
            names = loaded.classes if len(loaded.classes) == _classes(result) else ()
            features = loaded.features if x.dim() == 2 else ()
            result.page(written, x, names=names, features=features, show=chosen, title=title)
        console.print(Text(f"wrote {written}, about {len(result)} points"), soft_wrap=True)


def _points(
    result: Any, dataset: str | None, file: Path | None, data_dir: Path | None, target: str | None, task: str | None
) -> data.DataSet | None:
    """Return the data whose first test points a certificate should be about; None where none were named."""
    if dataset is not None and file is not None:
        raise InvalidInput(f"--dataset {dataset} and --data {file} are two sets of points; pass one.")
    if file is None:
        if target is not None or task is not None:
            raise InvalidInput("--target and --task say how a file is read; pass --data FILE with them.")
        return None if dataset is None else data.load(dataset, data_dir)
    # `certify` takes the points that training left out of the file it learned from, and all points of another.
    parts = [data.read_file(file, data.Reading(target, task, hold_out=hold_out)) for hold_out in (True, False)]
    digests = [tensor_digest({"inputs": part.test.inputs[: len(result)]}) for part in parts]
    known = getattr(result, "certificate", result).inputs_digest
    return parts[digests.index(known)] if known in digests else parts[1]


def _classes(result: Any) -> int | None:
    lower = getattr(result, "lower", None)
    return None if lower is None else int(lower.shape[1])


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InvalidInput(
            f"--points takes numbers of points with commas between them, such as 0,3,17; got {text!r}."
        ) from None
