"""How much time is left for what a budget limits: attacks and branch and bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Ended = Callable[[], bool]
"""Tells whether to stop."""


def never() -> bool:
    """Do not stop."""
    return False


class Clock:
    """Seconds of a budget, and how many of them are spent; it runs only while ``running``.

    Args:
        budget: seconds, or None for no limit.
        whole: the clock of which this one is a part; what is spent here is spent there, too.
    """

    def __init__(self, budget: float | None = None, whole: Clock | None = None):
        self.budget, self.spent, self._whole = budget, 0.0, whole
        self._began: float | None = None

    @property
    def left(self) -> float:
        """Seconds that are left, not counting a run that has not ended; infinite without a budget."""
        return math.inf if self.budget is None else max(0.0, self.budget - self.spent)

    @property
    def deadline(self) -> float:
        """When to stop, on the monotonic clock: never, unless the clock runs and has a budget."""
        return math.inf if self._began is None else self._began + self.left

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time that the block takes."""
        began = self._began = time.monotonic()
        try:
            yield
        finally:
            self._began = None
            self._spend(time.monotonic() - began)

    def _spend(self, seconds: float) -> None:
        self.spent += seconds
        if self._whole is not None:
            self._whole._spend(seconds)

    def part(self, count: int, of: int) -> Clock:
        """Return the clock of ``count`` of the ``of`` things that are left to do, with that fraction of the time."""
        return Clock(None if self.budget is None else self.left * count / of, self)


def equal_part(deadline: float, parts: int) -> Ended:
    """Tell when an equal part of the time until a deadline is over."""
    now = time.monotonic()
    end = now + (deadline - now) / parts
    return lambda: time.monotonic() > end
