"""Run every benchmark: python -m benchmarks [--json]."""

from __future__ import annotations

import json
import sys

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import attack, certification, training_step

BARS = {"certification": 1.5, "training step": 4.0, "attack": 1.5}


def main() -> None:
    results = {
        "certification": certification.main(),
        "training step": training_step.main(),
        "attack": attack.main(),
    }
    if "--json" in sys.argv:
        print(json.dumps({"threads": torch.get_num_threads(), **results}))
        return
    for name, figures in results.items():
        table = Table(title=f"{name}, {torch.get_num_threads()} threads")
        table.add_column("")
        table.add_column("median", justify="right")
        for key, value in figures.items():
            ratio = key == "ratio" or "/" in key
            table.add_row(key, f"{value:.2f}x" if ratio else f"{1000 * value:.2f} ms")
        table.caption = f"the bar for the ratio is {BARS[name]}x"
        Console().print(table)
    missed = [name for name, figures in results.items() if figures["ratio"] > BARS[name]]
    if missed:
        sys.exit(f"above the bar: {', '.join(missed)}")


if __name__ == "__main__":
    main()
