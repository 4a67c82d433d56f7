"""Learning-rate schedules: a factor for each fraction of training done."""

from __future__ import annotations

import math
from dataclasses import dataclass

from certibayes.errors import InvalidInput


@dataclass(frozen=True)
class Schedule:
    """A factor on the learning rate.

    Attributes:
        kind: ``"constant"``, ``"cosine"`` (down to ``floor``) or ``"exponential"`` (down to ``floor`` at the end).
        floor: factor at the end.
        warmup: fraction of training over which the factor first rises linearly from 0.
        end: fraction of training at which the floor is reached; the factor stays there.
    """

    kind: str = "constant"
    floor: float = 0.01
    warmup: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "cosine", "exponential"):
            raise InvalidInput(f'schedule must be "constant", "cosine" or "exponential", got {self.kind!r}.')
        if not (0.0 <= self.warmup <= 1.0 and 0.0 <= self.floor <= 1.0):
            raise InvalidInput(f"warmup and floor are fractions, got {self.warmup}, {self.floor}.")
        if not self.warmup <= self.end <= 1.0:
            raise InvalidInput(f"a schedule ends between its warmup and 1, got {self.end}.")

    def __call__(self, progress: float) -> float:
        """Return the factor at a fraction ``progress`` of training."""
        if progress < self.warmup:
            return progress / self.warmup
        done = min(1.0, (progress - self.warmup) / max(self.end - self.warmup, 1e-12))
        if self.kind == "cosine":
            return self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * done))
        if self.kind == "exponential":
            return self.floor**done
        return 1.0
