"""Timing that survives a noisy machine: alternate the candidates and compare medians within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def seconds_of(run: Callable[[], object], device: str = "cpu") -> float:
    """Time one call, with all that it started on the device."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def medians(candidates: dict[str, Callable[[], object]], rounds: int = 15, device: str = "cpu") -> dict[str, float]:
    """Median seconds of each candidate, measured in turns so that a slow moment hits all of them alike."""
    for run in candidates.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            seconds[name].append(seconds_of(run, device))
    return {name: statistics.median(values) for name, values in seconds.items()}
