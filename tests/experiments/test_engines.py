"""Engines: what every one of them promises, and what happens when a worker dies."""

import os
import signal
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from certibayes.errors import InvalidInput, MissingPackage
from certibayes.experiments.engines import SUSPICIONS, TRIES, Local, Ray, make_engine

ENGINES = [Local(), pytest.param(Local(2, threads=1), marks=pytest.mark.slow, id="processes")]


def double(number):
    if number == 3:
        raise ValueError("three")
    return 2 * number


def die_once(path):
    """Leave a mark, then die as the system kills; the next try lives."""
    mark = Path(path)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return mark.name


def always_die(number):
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_that_fails_does_not_stop_the_others(engine):
    found = dict(engine.run(double, range(5)))
    assert isinstance(found[3], ValueError) and str(found.pop(3)) == "three"
    assert found == {0: 0, 1: 2, 2: 4, 4: 8}
    assert list(engine.run(double, [])) == []


@pytest.mark.slow
def test_the_task_of_a_worker_that_died_is_given_to_another(tmp_path):
    paths = [str(tmp_path / name) for name in "abc"]
    assert dict(Local(2).run(die_once, paths)) == {0: "a", 1: "b", 2: "c"}


@pytest.mark.slow
def test_a_task_that_kills_its_workers_is_given_up_and_the_others_are_not():
    found = dict(Local(2).run(always_die, range(4)))
    assert isinstance(found[0], RuntimeError) and f"{TRIES} times" in str(found.pop(0))
    assert found == {1: 1, 2: 2, 3: 3}


def test_nobody_is_given_up_for_what_another_one_did(monkeypatch):
    """Whoever is at work beside a task that kills its worker learns nothing but that a worker died."""
    tried = []

    def in_pool(self, function, tasks):
        tried.append(list(tasks))
        for place, task in tasks.items():
            yield place, BrokenProcessPool() if 0 in tasks else function(task)

    monkeypatch.setattr(Local, "_in_pool", in_pool)
    found = dict(Local(4).run(double, [5, 6, 7]))
    assert isinstance(found.pop(0), RuntimeError) and found == {1: 12, 2: 14}
    assert tried == [[0, 1, 2]] * SUSPICIONS + [[0]] * TRIES + [[1], [2]]


def test_workers_and_names():
    with pytest.raises(InvalidInput, match="workers must be at least 1"):
        Local(0)
    with pytest.raises(InvalidInput, match=r"engine.*lcoal.*local"):
        make_engine("lcoal", workers=None, device=None)
    with pytest.raises(InvalidInput, match="--engine ray"):
        make_engine("local", workers=None, device=None, address="auto")
    assert make_engine("local", workers=3, device=None) == Local(3, threads=1)
    assert make_engine("local", workers=None, device="cuda") == Local(1, threads=1)


def test_ray_is_asked_for_by_name():
    try:
        import ray  # noqa: F401
    except ImportError:
        with pytest.raises(MissingPackage, match=r"certibayes\[cluster\].*--engine local"):
            make_engine("ray", workers=None, device=None)
    else:
        assert make_engine("ray", workers=2, device="cuda") == Ray(2, None, 0.5)
        assert make_engine("ray", workers=2, device=None, address="auto") == Ray(None, "auto", 0.0)


def sleepy(seconds):
    time.sleep(seconds)
    return seconds


@pytest.mark.slow
def test_results_come_as_they_are_finished():
    assert [place for place, _ in Local(2).run(sleepy, [3.0, 0.0])] == [1, 0]
