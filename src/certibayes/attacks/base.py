"""``Attack``: what every attack has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from certibayes.attacks.losses import LOSSES
from certibayes.attacks.search import Search
from certibayes.errors import InvalidInput


@dataclass(frozen=True)
class Attack(ABC):
    """An attack: an object of settings, and how it searches a batch.

    A new one is a frozen dataclass in a file of its own and, to have a name, a line in ``methods.METHODS``.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in results; also names its stream of random numbers."""

    @property
    @abstractmethod
    def evaluations(self) -> int:
        """The largest number of times it may evaluate the model, once for each input that it tries."""

    @abstractmethod
    def run(self, search: Search, generator: torch.Generator) -> None:
        """Look for worse inputs for the points that are not broken yet.

        Args:
            search: the batch; keeps the worst inputs.
            generator: of all random numbers, on the device of the points.
        """


def require_losses(*names: str) -> None:
    """Raise unless there is at least one loss, and all are known."""
    if not names or any(name not in LOSSES for name in names):
        raise InvalidInput(f"a loss must be one of {', '.join(LOSSES)}, got {', '.join(map(repr, names)) or 'none'}.")
