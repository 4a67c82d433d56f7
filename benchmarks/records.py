"""What a benchmark found, on which machine, as JSON: one format for every benchmark and device.

    {"machine": {"cpu": ..., "cores": 2, ...},
     "benchmarks": {"steps": {"MAP / plain step": {"unit": "x", "bar": 2.4, "runs": [2.41, 2.38, ...]}, ...}}}

A figure is the median of its runs, and its noise is their range, the largest less the smallest, as a part of that
median: five runs of normal noise have a range of 2.3 standard deviations, so that one run in a hundred leaves it upward
by chance. Fewer than three runs say nothing about their noise.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
RUNS_FOR_NOISE = 3


@dataclass(frozen=True)
class Figure:
    """One figure; smaller is better.

    Attributes:
        unit: ``"x"`` for a ratio within a run, ``"s"`` for seconds, ``"GB"``, or ``"%"``.
        runs: its value in each run.
        bar: what it is to stay below, if anything.
    """

    unit: str
    runs: tuple[float, ...]
    bar: float | None = None

    @property
    def value(self) -> float:
        """The median of the runs."""
        return statistics.median(self.runs)

    @property
    def noise(self) -> float | None:
        """The range of the runs as a part of their median, or nothing where there are too few of them."""
        if len(self.runs) < RUNS_FOR_NOISE:
            return None
        return (max(self.runs) - min(self.runs)) / self.value

    @property
    def above_its_bar(self) -> bool:
        """Whether there is a bar that it misses."""
        return self.bar is not None and self.value > self.bar


def ratio(value: float, bar: float | None = None) -> Figure:
    """Return a ratio of one run."""
    return Figure("x", (value,), bar)


def seconds(value: float, bar: float | None = None) -> Figure:
    """Return a time of one run."""
    return Figure("s", (value,), bar)


Figures = dict[str, Figure]


@dataclass(frozen=True)
class Record:
    """The figures of all benchmarks on one machine.

    Attributes:
        machine: its description.
        benchmarks: figures by name, by benchmark.
    """

    machine: dict[str, Any]
    benchmarks: dict[str, Figures]


def of_runs(runs: list[Figures]) -> Figures:
    """Join the figures of several runs of one benchmark."""
    return {
        name: Figure(first.unit, tuple(value for run in runs for value in run[name].runs), first.bar)
        for name, first in runs[0].items()
    }


def processor() -> str:
    """Return the name of the processor, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def machine(device: str) -> dict[str, Any]:
    """Describe the machine: what figures depend on."""
    return {
        "device": device,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "cpu": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def describe(machine: dict[str, Any]) -> str:
    """Say in one line what a record was made on."""
    where = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores"
    return f"{where}, torch {machine['torch']}"


def path_of(machine: dict[str, Any]) -> Path:
    """Return where the record of such a machine is kept: h200.json, cpu-2-threads.json."""
    gpu = machine["gpu"]
    name = re.sub(r"^nvidia\s+", "", gpu.lower()) if gpu else f"cpu {machine['threads']} threads"
    return RESULTS / (re.sub(r"[^a-z0-9]+", "-", name) + ".json")


def write(record: Record, path: Path) -> None:
    """Write a record; what the file has of other benchmarks stays, if it was made on the same machine."""
    kept: dict[str, Figures] = {}
    if path.exists():
        known = read(path)
        kept = known.benchmarks if known.machine == record.machine else {}
    merged = {"machine": record.machine, "benchmarks": kept | record.benchmarks}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(merged, indent=2, default=asdict) + "\n", encoding="utf-8")


def read(path: Path) -> Record:
    """Read what ``write`` wrote."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    benchmarks = {
        name: {key: Figure(f["unit"], tuple(f["runs"]), f["bar"]) for key, f in figures.items()}
        for name, figures in stored["benchmarks"].items()
    }
    return Record(stored["machine"], benchmarks)
