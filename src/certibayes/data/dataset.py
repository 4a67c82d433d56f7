"""What a data set is once it is in memory."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UNIT_INTERVAL = (0.0, 1.0)


class Split(NamedTuple):
    """One half of a data set; unpacks as ``inputs, targets = data.train``.

    Attributes:
        inputs: float32. Images (N, channels, height, width) in [0, 1], or features (N, d).
        targets: int64 class indices (N,), or float32 regression targets (N, 1).
    """

    inputs: Tensor
    targets: Tensor

    @classmethod
    def of_images(cls, pixels: NDArray[np.uint8], labels: NDArray[Any]) -> "Split":
        """Scale bytes to the unit interval.

        Args:
            pixels: (N, channels, height, width), from 0 to 255.
            labels: (N,) class indices.
        """
        # One pass and a correctly rounded quotient, so that 255 becomes exactly 1.
        inputs = np.divide(pixels, np.float32(255), dtype=np.float32)
        return cls(torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64)))


@dataclass(frozen=True, eq=False)
class DataSet:
    """A training and a test split, and what is known about both.

    Attributes:
        name: The name that `load` knows it by.
        train: What to learn from.
        test: What to be judged by.
        classes: The name of each class; empty for regression.
        domain: The least and greatest value an input can take, or None where there is no such limit.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    domain: tuple[float, float] | None
