"""How much memory one call may take, and how many points it works on at once.

On a GPU a launch costs the same whatever its size, so a call takes a quarter of the device's memory if it has use for
it. All of the memory counts, not what is free at the moment, so that the same machine always forms the same batches and
gets the same bits. For the same reason the tasks of a grid, of which any number may share a GPU, each take the same
smaller part of it, also where one is alone. On a CPU larger batches are no faster: it takes a few hundred points, and
fewer where they would need more than half a gigabyte.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

ON_CPU = 2**29
"""Bytes that a batch may take on a CPU."""

POINTS_ON_CPU = 500
"""More do not run faster on a CPU."""

CALLS_ALONE, CALLS_IN_GRIDS = 4, 32
"""Calls that would fill a GPU's memory: where nothing else is to be expected on it, and in the tasks of a grid."""

_calls: ContextVar[int] = ContextVar("calls", default=CALLS_ALONE)


@contextmanager
def shared_gpu() -> Iterator[None]:
    """Take a smaller part of a GPU's memory inside this block, and give back at its end what is kept for later use."""
    token = _calls.set(CALLS_IN_GRIDS)
    try:
        yield
    finally:
        _calls.reset(token)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def bytes_allowed(device: torch.device, on_cpu: int = ON_CPU) -> int:
    """Return how many bytes one call may take on a device."""
    if device.type != "cuda":
        return on_cpu
    return int(torch.cuda.get_device_properties(device).total_memory) // _calls.get()


def points_at_once(device: torch.device, bytes_per_point: int) -> int:
    """Return how many points a call works on at once, where its caller does not say."""
    fitting = max(1, bytes_allowed(device) // max(1, bytes_per_point))
    return fitting if device.type == "cuda" else min(POINTS_ON_CPU, fitting)
