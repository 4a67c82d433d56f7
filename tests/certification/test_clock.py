"""Clocks: what is spent of a part is spent of the whole, and nothing is spent while none runs."""

import math

import pytest

from certibayes.certification import clock as module
from certibayes.certification.clock import Clock, equal_part, never


class Time:
    """A clock on the wall that the test moves."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def wall(monkeypatch):
    time = Time()
    monkeypatch.setattr(module, "time", time)
    return time


def test_only_what_runs_counts(wall):
    clock = Clock(10.0)
    wall.now += 50
    assert clock.left == 10.0 and clock.spent == 0.0
    with clock.running():
        wall.now += 3
    wall.now += 50
    assert clock.left == 7.0 and clock.spent == 3.0
    with clock.running():
        wall.now += 30
    assert clock.left == 0.0 and clock.spent == 33.0


def test_there_is_a_deadline_only_while_it_runs(wall):
    clock = Clock(10.0)
    assert clock.deadline == math.inf
    with clock.running():
        assert clock.deadline == 110.0
        wall.now += 4
        assert clock.deadline == 110.0
    assert clock.deadline == math.inf
    wall.now = 200.0
    with clock.running():
        assert clock.deadline == 206.0


def test_what_is_spent_is_counted_also_when_the_work_fails(wall):
    clock = Clock(10.0)
    with pytest.raises(KeyboardInterrupt), clock.running():
        wall.now += 4
        raise KeyboardInterrupt
    assert clock.spent == 4.0 and clock.deadline == math.inf


def test_without_a_budget_it_only_counts(wall):
    clock = Clock()
    with clock.running():
        wall.now += 1e6
        assert clock.deadline == math.inf
    assert clock.left == math.inf and clock.spent == 1e6
    part = clock.part(1, 3)
    assert part.budget is None and part.left == math.inf


def test_parts_spend_what_the_whole_has(wall):
    whole = Clock(12.0)
    first = whole.part(1, 3)
    assert first.left == 4.0 and whole.left == 12.0
    inner = first.part(1, 2)
    with inner.running():
        assert inner.deadline == 102.0
        # Those that do not run themselves have none.
        assert first.deadline == whole.deadline == math.inf
        wall.now += 5
    assert (inner.spent, first.spent, whole.spent) == (5.0, 5.0, 5.0)
    assert (inner.left, first.left, whole.left) == (0.0, 0.0, 7.0)
    # What the first part took too much of, the others lose between them.
    second = whole.part(1, 2)
    assert second.left == 3.5
    with second.running():
        wall.now += 1
    assert whole.part(1, 1).left == 6.0 and first.spent == 5.0


def test_equal_parts_of_the_time_until_a_deadline(wall):
    ended = equal_part(130.0, 3)
    wall.now = 110.0
    assert not ended()
    wall.now = 110.1
    assert ended()
    assert not equal_part(math.inf, 5)() and not never()
    assert equal_part(105.0, 2)()
