"""Every algorithm as it comes: trained on the digits with no flag but its name, and certified.

    python -m benchmarks.defaults [ALGORITHM ...] [--FLAG ...]

prints the table of docs/algorithms/index.md; flags go to ``certibayes train``. Defaults are chosen on held-out training
digits; this is where they are confirmed on test digits.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from certibayes.cli import app
from certibayes.experiments import ALGORITHMS

EPS = 0.1


def command(*arguments: object) -> dict[str, Any]:
    """Run a command of ``certibayes`` and return what it prints as JSON."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    if result.exit_code:
        raise RuntimeError(result.output)
    return json.loads(result.stdout)


def by_default(algorithm: str, out: Path, *more: object) -> dict[str, Any]:
    """Train an algorithm with its defaults, certify it by ``theorem1``, and return the figures of both commands."""
    train = ("train", "--dataset", "digits", "--algorithm", algorithm, "--likelihood", "ibp", "--eps", EPS)
    started = time.monotonic()
    trained = command(*train, "--out", out, *more)
    seconds = time.monotonic() - started
    certified = command("certify", out, "--eps", EPS, "--method", "theorem1", "--bounds", "ibp")
    return {**trained, **certified, "seconds": seconds}


def main(algorithms: Sequence[str], flags: Sequence[str] = ()) -> None:
    """Print the table, line by line."""
    print("| method | accuracy | certified | temperature | mutual information | samples | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for algorithm in algorithms:
        with tempfile.TemporaryDirectory() as folder:
            found = by_default(algorithm, Path(folder) / algorithm, *flags)
        cells = (
            f"`{algorithm}`",
            f"{100 * found['accuracy']:.1f}%",
            f"{100 * found['certified']:.1f}%",
            f"{found['temperature']:g}",
            f"{found['mutual_information']:.5f}",
            str(found["samples"]),
            f"{found['seconds']:.0f}",
        )
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    first = next((i for i, word in enumerate(sys.argv) if word.startswith("--")), len(sys.argv))
    main(sys.argv[1:first] or list(ALGORITHMS), sys.argv[first:])
