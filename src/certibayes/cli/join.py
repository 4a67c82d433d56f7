"""certibayes join."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from certibayes.cli.options import JsonOption, run_directory
from certibayes.cli.terminal import console, error_handler, print_json
from certibayes.errors import InvalidInput
from certibayes.experiments import load_run
from certibayes.posteriors import GaussianMixture


def join_command(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Finished runs of one network, each a Gaussian; or zoo:NAME.", parser=run_directory),
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory of the mixture.")],
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights", help="Of the runs, with commas, such as 2,1,1; equal by default.", show_default=False
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a posterior in that directory.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Mix the Gaussian posteriors of several runs into one posterior with several modes.

    It is a run like any other for certify, attack, evaluate and info.

    Example: certibayes join runs/seed0 runs/seed1 runs/seed2 --out runs/mixture
    """
    with error_handler():
        mixture = GaussianMixture.of(*map(load_run, runs), weights=_numbers(weights))  # type: ignore[arg-type]
        mixture.save(out, overwrite)
        if as_json:
            print_json({"path": str(out), "components": len(mixture), "weights": mixture.weights.tolist()})
        else:
            console.print(Text(f"{out}: {mixture.holds}"), soft_wrap=True)


def _numbers(text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(word) for word in text.split(",")]
    except ValueError:
        raise InvalidInput(f"--weights are numbers with commas, such as 2,1,1; got {text!r}.") from None
