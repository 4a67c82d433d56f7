"""How much memory one call may take, and how many points it works on at once.

On a GPU a launch costs the same whatever its size, so a call takes a quarter of the device's memory if it has use for
it. All of the memory counts, not what is free at the moment, so that the same machine always forms the same batches and
gets the same bits. On a CPU larger batches are no faster: it takes a few hundred points, and fewer where they would
need more than half a gigabyte.
"""

from __future__ import annotations

import torch

ON_CPU = 2**29
"""Bytes that a batch may take on a CPU."""

POINTS_ON_CPU = 500
"""More do not run faster on a CPU."""


def bytes_allowed(device: torch.device, on_cpu: int = ON_CPU) -> int:
    """Return how many bytes one call may take on a device."""
    if device.type != "cuda":
        return on_cpu
    return int(torch.cuda.get_device_properties(device).total_memory) // 4


def points_at_once(device: torch.device, bytes_per_point: int) -> int:
    """Return how many points a call works on at once, where its caller does not say."""
    fitting = max(1, bytes_allowed(device) // max(1, bytes_per_point))
    return fitting if device.type == "cuda" else min(POINTS_ON_CPU, fitting)
