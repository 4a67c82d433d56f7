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
        domain: The smallest and largest value an input can take, or None where there is no such limit; tensors (1, d)
            where columns of a table differ.
        features: The names of a table's columns; empty for images, and where nobody named them.
        own_units: Whether inputs are a table in units of its own, which a network has to normalize.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    domain: tuple[float, float] | tuple[Tensor, Tensor] | None
    features: tuple[str, ...] = ()
    own_units: bool = False

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

    def column_statistics(self, of: str = "inputs") -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation of every column of the training inputs, or targets, as floats.

        Args:
            of: ``"inputs"`` (N, d) or ``"targets"`` (N, outputs).

        Raises:
            InvalidInput: they are no table, or there are none.
        """
        table = getattr(self.train, of)
        if table.dim() != 2 or not len(table):
            raise InvalidInput(f"{self.name} has no training {of} (N, columns), so no columns.")
        std, mean = torch.std_mean(table.double(), 0, correction=0)
        return tuple(mean.tolist()), tuple(std.tolist())

    def __repr__(self) -> str:
        task = f"classification of {', '.join(self.classes)}" if self.classes else "regression"
        lines = [f"DataSet({self.name!r}, {task})", f"  train:  {self.train}", f"  test:   {self.test}"]
        if self.features:
            lines.append(f"  features: {', '.join(self.features)}")
        return "\n".join([*lines, f"  domain: {_in_words(self.domain)}"])


def _in_words(domain: Any) -> str:
    if domain is None:
        return "none"
    low, high = domain
    return "given for each feature" if isinstance(low, Tensor) else f"[{low:g}, {high:g}]"


def _range(values: Tensor) -> str:
    return f"from {float(values.min()):.4g} to {float(values.max()):.4g}"
