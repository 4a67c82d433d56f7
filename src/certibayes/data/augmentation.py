"""Augmentation: training images that are changed at random in ways that leave their class as it is.

An augmentation is a pure function of images and of uniform random numbers, a few for each image, so that who draws the
numbers decides what is reproduced. ``fit`` draws them from its seed, the epoch and the step: a resumed run sees the
images that it would have seen, and skipping steps costs nothing. All images of a batch are changed at once, where they
are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.errors import InvalidInput
from certibayes.support.checks import require_count
from certibayes.support.names import nearest


@dataclass(frozen=True)
class Augmentation:
    """Base of all augmentations. Subclasses are frozen dataclasses of settings.

    ``numbers`` is how many random numbers an image takes.
    """

    numbers: ClassVar[int] = 0

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Return images of the same shape.

        Args:
            images: (B, ..., height, width).
            uniform: random numbers in [0, 1), (B, numbers), on the device of the images.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return what goes into a posterior's metadata."""
        return {"name": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class RandomFlip(Augmentation):
    """Mirror an image, left to right, with probability 1/2.

    For photographs. A mirrored digit or letter is another one, or none.
    """

    numbers: ClassVar[int] = 1

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """See the base class."""
        mirrored = (uniform[:, 0] < 0.5).view(-1, *[1] * (images.dim() - 1))
        return torch.where(mirrored, images.flip(-1), images)


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """Pad an image on all sides and cut it to its own size again at a random place, each as likely as the others.

    That shifts it by up to ``padding`` pixels, down or up and right or left.

    Attributes:
        padding: pixels on each side.
        fill: value of the padding; it must lie in the domain of the inputs.
    """

    padding: int = 2
    fill: float = 0.0
    numbers: ClassVar[int] = 2

    def __post_init__(self) -> None:
        require_count(self.padding, "padding")
        if not math.isfinite(self.fill):
            raise InvalidInput(f"fill is the value of the padding, a finite number; got {self.fill}.")

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """See the base class."""
        places = 2 * self.padding + 1
        # An odd number times a float below 1 is never rounded up to that number, so the last place is not left.
        return self.cut(images, (uniform * places).long())

    def cut(self, images: Tensor, corners: Tensor) -> Tensor:
        """Return what is cut out of the padded images.

        Args:
            images: (B, ..., height, width).
            corners: first row and column of each cut, from 0 to twice the padding, (B, 2); ``padding`` twice cuts the
                image itself.
        """
        size, height, width = len(images), *images.shape[-2:]
        planar = images.reshape(size, -1, height, width)
        padded = functional.pad(planar, [self.padding] * 4, value=self.fill)
        each = torch.arange(size, device=images.device)[:, None, None, None]
        channels = torch.arange(planar.shape[1], device=images.device)[None, :, None, None]
        rows = (corners[:, :1] + torch.arange(height, device=images.device))[:, None, :, None]
        columns = (corners[:, 1:] + torch.arange(width, device=images.device))[:, None, None, :]
        return padded[each, channels, rows, columns].reshape(images.shape)


BY_NAME: dict[str, type[Augmentation]] = {"flip": RandomFlip, "crop": RandomCrop}
"""Augmentations as text; ``crop:4`` is a crop with 4 pixels of padding."""


def as_augmentations(value: Augmentation | Sequence[Augmentation] | str | None) -> tuple[Augmentation, ...]:
    """Return the augmentations that a user means, in the order in which they are made.

    Args:
        value: one, several, None for none, or a text such as ``"flip,crop:2"``.

    Raises:
        InvalidInput: there is no such augmentation.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(_from_text(part.strip()) for part in value.split(",") if part.strip())
    several = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for each in several:
        if isinstance(each, type) and issubclass(each, Augmentation):
            raise InvalidInput(f"an augmentation is the class {each.__name__}; pass an instance: {each.__name__}().")
        if not isinstance(each, Augmentation):
            raise InvalidInput(
                "augment is an augmentation such as certibayes.data.RandomFlip(), a list of them, or a text such as "
                f'"flip,crop:2"; got {each!r}.'
            )
    return several


def _from_text(text: str) -> Augmentation:
    name, colon, setting = text.partition(":")
    if name not in BY_NAME:
        raise InvalidInput(f"there is no augmentation {name!r}; there are flip and crop:2{nearest(name, BY_NAME)}.")
    if not colon:
        return BY_NAME[name]()
    if name != "crop" or not setting.isdigit():
        raise InvalidInput(f"an augmentation is written flip or, with its padding in pixels, crop:2; got {text!r}.")
    return RandomCrop(int(setting))
