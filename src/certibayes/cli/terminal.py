"""What every command shares: the console, errors in one line, JSON on request, and exit codes.

0    done
1    an error, explained in a sentence
2    wrong usage (typer's own)
3    done, but a bar set by --at-least was missed, or a certificate did not pass its check
130  interrupted; the message says how to go on
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from certibayes.errors import CertibayesError, Interrupted

FAILED, BELOW_BAR, INTERRUPTED = 1, 3, 130

console = Console()
"""Results, on standard output."""

notes = Console(stderr=True)
"""Progress and errors, on standard error, so that --json output can be piped."""


@contextmanager
def error_handler() -> Iterator[None]:
    """Turn expected errors into a sentence and an exit code; anything else is a bug and keeps its traceback."""
    try:
        yield
    except Interrupted as stop:
        notes.print(Text(str(stop), style="yellow"))
        raise typer.Exit(INTERRUPTED) from None
    except KeyboardInterrupt:
        notes.print("[yellow]interrupted[/yellow]")
        raise typer.Exit(INTERRUPTED) from None
    except (CertibayesError, OSError) as error:
        # As text, not markup: a path may hold brackets.
        notes.print(Text("error: ", style="bold red") + Text(str(error), style="not bold default"), soft_wrap=True)
        raise typer.Exit(FAILED) from None


def strict(value: Any) -> Any:
    """Write infinity as the word "inf": JSON has no such number, and strict readers refuse the output."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def print_json(record: dict[str, Any]) -> None:
    """Write one JSON object to standard output and nothing else."""
    json.dump(record, sys.stdout)
    sys.stdout.write("\n")


def check_bar(value: float, at_least: float | None, what: str) -> None:
    """Exit with code 3 if ``value`` misses the bar."""
    if at_least is not None and value < at_least:
        notes.print(f"[red]{what} {value:.4f} is below {at_least:g}[/red]", highlight=False)
        raise typer.Exit(BELOW_BAR)
