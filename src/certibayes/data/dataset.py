"""What a data set is once it is in memory."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from certibayes.errors import InvalidInput

UNIT_INTERVAL = (0.0, 1.0)


class Split(NamedTuple):
    """One half of a data set; unpacks as ``inputs, targets = data.train``.

    Attributes:
        inputs: float32. Images (N, channels, height, width) in [0, 1], or features (N, d).
        targets: int64 class indices (N,), or float32 regression targets (N, 1).
    """

    inputs: Tensor
    targets: Tensor

    def __repr__(self) -> str:
        if not len(self.inputs):
            return "Split(empty)"
        inputs = f"{len(self.inputs)} inputs {tuple(self.inputs.shape[1:])} {_range(self.inputs)}"
        kind = "targets" if self.targets.is_floating_point() else "labels"
        return f"Split({inputs}, {kind} {_range(self.targets)})"

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
        test: What to evaluate on.
        classes: The name of each class; empty for regression.
        domain: The smallest and largest value an input can take, or None where there is no such limit.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    domain: tuple[float, float] | None

    @property
    def task(self) -> str:
        """``"classification"`` or ``"regression"``."""
        return "classification" if self.classes else "regression"

    def channel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation of every channel of the training images, to four decimals.

        As ``networks.Normalize`` takes them: ``cb.networks.cnn7(normalize=data.channel_statistics())``.

        Raises:
            InvalidInput: the inputs are no images (N, channels, height, width), or there are none.
        """
        images = self.train.inputs
        if images.dim() != 4 or not len(images):
            raise InvalidInput(f"{self.name} has no training images (N, channels, height, width), so no channels.")
        # In doubles, and a few thousand images at a time.
        chunks, count = images.split(4096), images.numel() / images.shape[1]
        mean = torch.stack([chunk.double().sum((0, 2, 3)) for chunk in chunks]).sum(0) / count
        centered = [(chunk.double() - mean[:, None, None]).square().sum((0, 2, 3)) for chunk in chunks]
        std = (torch.stack(centered).sum(0) / count).sqrt()
        return tuple(round(value, 4) for value in mean.tolist()), tuple(round(value, 4) for value in std.tolist())

    def __repr__(self) -> str:
        task = f"classification of {', '.join(self.classes)}" if self.classes else "regression"
        domain = "none" if self.domain is None else f"[{self.domain[0]:g}, {self.domain[1]:g}]"
        return f"DataSet({self.name!r}, {task})\n  train:  {self.train}\n  test:   {self.test}\n  domain: {domain}"


def _range(values: Tensor) -> str:
    return f"from {float(values.min()):.4g} to {float(values.max()):.4g}"
