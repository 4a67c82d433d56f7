"""Files of tensors that others wrote: ``.safetensors``, and ``.pt`` or ``.pth`` without running what is in them.

A pickle is a program, and reading it runs it. So torch's files are read by ``torch.load(weights_only=True)`` alone,
which knows tensors and plain containers; what needs more is refused, with the way to write it as tensors.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from certibayes.errors import CorruptFile, InvalidInput

SAFETENSORS = ".safetensors"
TORCH = (".pt", ".pth")


def read_tensor_file(path: str | Path) -> Any:
    """Return what a file holds, on the CPU: tensors by name, as a rule.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidInput: its name does not say what it is, or reading it would run code.
        CorruptFile: it is truncated, or not what its name says.
    """
    path = Path(path)
    if path.suffix.lower() not in (SAFETENSORS, *TORCH):
        raise InvalidInput(
            f"{path} is no known file of weights: its name must end in {SAFETENSORS}, {' or '.join(TORCH)}."
        )
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    if path.suffix.lower() == SAFETENSORS:
        try:
            return safetensors.torch.load(path.read_bytes())
        except (safetensors.SafetensorError, ValueError) as error:
            raise CorruptFile(f"{path} is truncated or not a safetensors file ({error}).") from error
    try:
        with warnings.catch_warnings():
            # Of archives of TorchScript torch warns before it raises; what is raised says it better.
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip files and torch each raise errors of their own kinds
        if "weights_only" in str(error) or "Weights only" in str(error):
            raise InvalidInput(
                f"{path} holds more than tensors, such as a whole module, and reading that would run the code in it, "
                "so it is refused. If you trust the file, load it where the module comes from and write the weights "
                'alone: torch.save(model.state_dict(), "weights.pt").'
            ) from error
        raise CorruptFile(f"{path} is truncated or not a file of torch.save ({_first_line(error)}).") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
