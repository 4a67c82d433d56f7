"""Run benchmarks, show them beside their bars, keep them, or compare them with those that were kept.

python -m benchmarks [NAMES] [--device cuda] [--runs N] [--save] [--compare] [--run FILE] [--against FILE]
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import torch

from benchmarks import records, tables
from benchmarks.records import Figures, Record

BENCHMARKS = (
    "steps", "many", "hmc", "cnn7", "certification", "linear", "convolutions", "verifiers",
    "branching", "attack", "growth",
)  # fmt: skip
SAVED_RUNS = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHMARKS)}; by default all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--runs", type=int, help=f"of each benchmark; by default 1, and {SAVED_RUNS} to save")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--compare", action="store_true", help="set them against the kept ones of such a machine")
    parser.add_argument("--run", type=Path, metavar="FILE", help="take figures from a file instead of measuring")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with this file instead")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}.")
    if given.runs is not None and given.runs < 1:
        parser.error(f"--runs must be at least 1, got {given.runs}.")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here that torch can use; leave --device out.")
    for file in (given.run, given.against):
        if file is not None and not file.exists():
            parser.error(f"{file} does not exist; a run with --save writes into {records.RESULTS}.")
    return given


def measured(names: list[str], device: str, runs: int) -> Record:
    """Run benchmarks one after another, each several times."""
    found: dict[str, Figures] = {}
    for name in names:
        benchmark = importlib.import_module(f"benchmarks.{name}")
        print(f"{name} ...", file=sys.stderr, flush=True)
        figures = records.of_runs([benchmark.measure(device) for _ in range(runs)])
        if figures:
            found[name] = figures
    return Record(records.machine(device), found)


def main() -> None:
    given = arguments()
    runs = given.runs or (SAVED_RUNS if given.save else 1)
    record = records.read(given.run) if given.run else measured(given.names or list(BENCHMARKS), given.device, runs)
    known = given.against or records.path_of(record.machine)
    if given.compare or given.against:
        if not known.exists():
            sys.exit(f"Nothing is kept of such a machine: {known} does not exist. --against FILE names another.")
        worse = tables.print_comparison(records.read(known), record)
        message = f"worse by more than the noise: {'; '.join(worse)}" if worse else None
    else:
        above = tables.print_record(record)
        message = f"above the bar: {'; '.join(above)}" if above else None
    if given.save:
        path = records.path_of(record.machine)
        records.write(record, path)
        print(f"kept in {path}")
    if message:
        sys.exit(message)


if __name__ == "__main__":
    main()
