"""From what users hold to tensors, and from tensors to bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from certibayes.errors import InvalidInput


def as_tensor(values: Any, what: str) -> Tensor:
    """Return a tensor as it is, and numpy arrays, lists of numbers and lists of arrays as tensors.

    Args:
        values: what was given.
        what: its name, for the error.

    Raises:
        InvalidInput: ``values`` are not numbers, or rows differ in length.
    """
    if isinstance(values, Tensor):
        return values
    if isinstance(values, Iterator):
        raise InvalidInput(
            f"{what} cannot be read as a tensor: they are a {type(values).__name__}, which can be gone through once. "
            "Pass a tensor, a list, or a DataLoader."
        )
    if (word := _word_among(values)) is not None:
        raise InvalidInput(
            f"{what} cannot be read as a tensor: they are words, such as {word!r}. Number them: "
            "names = sorted(set(words)); torch.tensor([names.index(word) for word in words])."
        )
    try:
        if isinstance(values, (list, tuple)):
            if values and (isinstance(values[0], Tensor) or hasattr(values[0], "__array__")):
                return torch.stack([as_tensor(value, what) for value in values])
            return torch.tensor(values)
        array = np.asarray(values)
        # Torch takes no negative strides and no other byte orders, and must not write where numpy may not.
        plain = array.flags.writeable and min(array.strides, default=0) >= 0
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=not plain))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            f"{what} cannot be read as a tensor: {error}. Pass a tensor, a numpy array, or a list of numbers."
        ) from error


def _word_among(values: Any) -> str | None:
    """Return the first word of a list, an array or a column of words; None if its first value is none."""
    if isinstance(values, (list, tuple)):
        first = values[0] if values else None
    elif hasattr(values, "__array__"):
        array = np.asarray(values)
        first = array.flat[0] if array.size and array.dtype.kind in "OUT" else None
    else:
        first = None
    return str(first) if isinstance(first, str) else None


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's values as bytes, in order, for checksums."""
    plain = tensor.detach().cpu().contiguous()
    # A stack of one number may have any stride, which ``contiguous`` leaves alone and ``view`` does not accept. What
    # lies in order already is not copied: samples may take half of the memory.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().data
