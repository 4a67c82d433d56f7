"""Timing that survives a noisy machine: alternate the candidates and compare medians within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def medians(candidates: dict[str, Callable[[], object]], rounds: int = 15) -> dict[str, float]:
    """Median seconds of each candidate, measured in turns so that a slow moment hits all of them alike."""
    for run in candidates.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}
