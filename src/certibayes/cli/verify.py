"""certibayes verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from certibayes.cli.options import DeviceOption, JsonOption
from certibayes.cli.terminal import error_handler, notes, print_json
from certibayes.verification import verify


def verify_command(
    onnx: Annotated[Path, typer.Option("--onnx", help="The network: an .onnx file, or .onnx.gz.")],
    vnnlib: Annotated[
        Path,
        typer.Option(
            "--vnnlib", help="The specification, VNN-LIB 1.0: boxes of inputs, linear constraints on outputs."
        ),
    ],
    budget: Annotated[
        float,
        typer.Option("--budget", min=0.0, metavar="SECONDS", help="Time for attacks, bounds and branch and bound."),
    ] = 60.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the attacks.")] = 0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell whether any input of a specification has unsafe outputs: unsat, sat or unknown.

    unsat is a proof about the float program that runs. sat comes with a counterexample, in the format of VNN-COMP.

    Example: certibayes verify --onnx net.onnx --vnnlib point.vnnlib --budget 300
    """
    with error_handler():
        result = verify(onnx, vnnlib, budget=budget, device=device, seed=seed)
        if as_json:
            print_json(result.to_json())
            return
        # For other programs to read, so nothing is wrapped or styled.
        typer.echo(str(result))
        notes.print(Text(f"{result.statement} ({result.seconds:.1f} s)"))
