"""Options that several commands take, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(help="Directory of a finished run, as `certibayes train --out` wrote it.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", envvar="CERTIBAYES_DATA", help="Where data sets lie (see `certibayes data`)."),
]
DatasetOption = Annotated[str | None, typer.Option("--dataset", help="Data set to test on; the run's own by default.")]
EpsOption = Annotated[float, typer.Option("--eps", help="Radius: how much each input value may change.")]
NormOption = Annotated[
    str,
    typer.Option(
        "--norm", help="How radii are measured: linf (each input value), l2 or l1 (all changes of an input together)."
    ),
]
SamplesOption = Annotated[
    int | None,
    typer.Option(
        "--samples",
        help="Weight samples in the predictor; 35 by default, or all that are held. Where fewer are held than asked for, "
        "all of them.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the weight samples.")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Take only the first so many test points.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="Where to compute, such as cpu or cuda.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
AtLeast = Annotated[
    float | None, typer.Option("--at-least", help="Exit with code 3 if the result is below this fraction.")
]
