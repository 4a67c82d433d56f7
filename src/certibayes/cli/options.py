"""Options that several commands take, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from certibayes.errors import InvalidInput
from certibayes.experiments.columns import LIMITS, RADII, read_radii
from certibayes.experiments.factory import FORM
from certibayes.experiments.settings import as_number
from certibayes.zoo.catalog import SPEC, directory

ZOO = "zoo:"
"""What a run of the zoo begins with, where a directory is asked for."""

MODULES = "--modules"


def radius_of_text(text: str) -> float:
    """Read a radius from the command line: 0.1 or 8/255."""
    try:
        # Defaults come as numbers.
        return as_number(str(text))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no radius; write a number such as 0.1 or 8/255.") from None


def radii_of_text(text: str) -> float | dict[str, float]:
    """Read a radius, or radii by the names of columns, from the command line."""
    try:
        return read_radii(str(text))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no radius; write {RADII}.") from None


def run_directory(text: str) -> Path:
    """Read a run from the command line: its directory, or zoo:NAME."""
    if not str(text).startswith(ZOO):
        return Path(text)
    try:
        return directory(str(text).removeprefix(ZOO))
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None


def config_file(text: str) -> Path:
    """Read a file of settings from the command line: its path, or zoo:NAME for that of an entry."""
    return run_directory(text) / SPEC if str(text).startswith(ZOO) else Path(text)


class ModulesCommand(TyperCommand):
    """A command whose ``--modules`` takes every word up to the next option, as shells expand ``members/*.pt``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say ``--modules`` again before every word that belongs to it."""
        words: list[str] = []
        inside = False
        for word in args:
            if inside and not word.startswith("-"):
                words += [word] if words[-1] == MODULES else [MODULES, word]
                continue
            if words[-1:] == [MODULES]:
                break
            inside = word == MODULES
            words.append(word)
        if words[-1:] == [MODULES]:
            ctx.fail(f"{MODULES} needs at least one file.")
        return super().parse_args(ctx, words)


RunArgument = Annotated[
    Path,
    typer.Argument(
        help="Directory of a finished run, as `certibayes train --out` wrote it, or zoo:NAME (see `certibayes zoo`).",
        parser=run_directory,
    ),
]
OptionalRun = Annotated[
    Path | None,
    typer.Argument(
        help="Directory of a finished run, as `certibayes train --out` wrote it, or zoo:NAME (see `certibayes zoo`). "
        "Left out with --modules.",
        parser=run_directory,
        show_default=False,
    ),
]
ModulesOption = Annotated[
    list[Path] | None,
    typer.Option(
        MODULES,
        metavar="FILE...",
        help="Instead of a run, an ensemble of networks trained elsewhere: files of their weights (.safetensors, .pt, "
        ".pth), for the network of --architecture.",
        show_default=False,
    ),
]
ArchitectureOption = Annotated[
    str | None,
    typer.Option(
        "--architecture",
        metavar="NAME",
        help=f"With --modules, the network: {FORM}, called without arguments; or a name that `train` knows.",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", envvar="CERTIBAYES_DATA", help="Where data sets lie (see `certibayes data`)."),
]
DatasetOption = Annotated[str | None, typer.Option("--dataset", help="Data set to test on; the run's own by default.")]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Instead of a data set, a file of your own: .csv, .npz or .pt (see `certibayes data`). All of its points "
        "are taken, but for those that the run was trained on.",
        show_default=False,
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", metavar="NAME", help="With --data, the column to be predicted.", show_default=False),
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="With --data, classification or regression, where targets leave it open.",
        show_default=False,
    ),
]
DomainOption = Annotated[
    str | None,
    typer.Option(
        "--domain",
        metavar="LIMITS",
        help=f"Values that inputs can take: {LIMITS}; by default those of the run or the data.",
        show_default=False,
    ),
]
EpsOption = Annotated[
    Any,
    typer.Option(
        "--eps",
        parser=radii_of_text,
        metavar="RADIUS",
        help=f"How much each input value may change: {RADII}, where columns that are not named do not change. By "
        "default what the run was trained for. For a run on a table in units of its own, a number counts what the "
        "run's radius did: standard deviations of each column, unless train --scale said otherwise.",
        show_default=False,
    ),
]
FixedOption = Annotated[
    str | None,
    typer.Option("--fixed", metavar="NAMES", help="Columns that do not change, with commas.", show_default=False),
]
NormOption = Annotated[
    str,
    typer.Option(
        "--norm", help="How radii are measured: linf (each input value), l2 or l1 (all changes of an input jointly)."
    ),
]
SamplesOption = Annotated[
    int | None,
    typer.Option(
        "--samples",
        help="Weight samples in the predictor; 35 by default, or all that are held; where fewer are held than "
        "were asked for, all of them.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the weight samples.")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Take only the first so many test points.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="Where to compute, such as cpu or cuda.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
AtLeast = Annotated[
    float | None, typer.Option("--at-least", help="Exit with code 3 if the result is below this fraction.")
]
