"""Devices, with an error a person can act on."""

from __future__ import annotations

import torch

from certibayes.errors import InvalidInput


def find_device(device: str | torch.device) -> torch.device:
    """Return the device, if tensors can be put on it."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        available = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"device {str(device)!r} cannot be used here ({reason}). Available: {available}.") from error
    return found
