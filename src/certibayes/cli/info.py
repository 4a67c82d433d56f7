"""certibayes info."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.table import Table

from certibayes import data
from certibayes.bounds import registered
from certibayes.cli.options import JsonOption
from certibayes.cli.terminal import console, print_json, told_plainly
from certibayes.experiments import ALGORITHMS, LIKELIHOODS, load_run
from certibayes.networks import BY_NAME
from certibayes.posteriors import versions


def info_command(
    run: Annotated[Path | None, typer.Argument(help="A run to describe; without it, the installation.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Describe a stored run, or this installation and what it knows.

    Example: certibayes info runs/a
    """
    with told_plainly():
        record = _installation() if run is None else _run(run)
        if as_json:
            print_json(record)
            return
        table = Table(show_header=False, box=None)
        for key, value in record.items():
            text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            table.add_row(f"[bold]{escape(key)}[/bold]", escape(text))
        console.print(table)


def _installation() -> dict[str, Any]:
    return {
        **versions(),
        "cuda": torch.cuda.is_available(),
        "algorithms": list(ALGORITHMS),
        "likelihoods": list(LIKELIHOODS),
        "architectures": list(BY_NAME),
        "layers": [kind.__name__ for kind in registered()],
        "data": [name for name in data.names() if data.is_available(name)],
    }


def _run(run: Path) -> dict[str, Any]:
    posterior = load_run(run)
    drawn = posterior.sample(1, torch.Generator().manual_seed(0))
    settings = {key: value for key, value in posterior.metadata.items() if key != "history"}
    history = posterior.metadata.get("history") or [{}]
    return {
        "posterior": type(posterior).__name__,
        "parameters": sum(drawn[name].numel() for name in posterior.graph.parameters),
        "network": " → ".join(type(node.operation).__name__ for node in posterior.graph.nodes),
        **settings,
        "final epoch": history[-1],
    }
