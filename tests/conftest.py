"""One thread in tests, where matrices are small and threads only wait for each other; no hypothesis deadlines."""

import gc
import os

# Before torch is loaded: where a test takes two threads after all, the one that waits sleeps. It would otherwise burn a
# core that another process needs, a hundred times as long as the work takes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, settings

from certibayes.data import DataSet, Split
from certibayes.data import _embedded as embedded

settings.register_profile("certibayes", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("certibayes")

# What is imported and collected stays to the end: looking through it for garbage again and again takes a quarter of the
# time until the first test. ``pytest_collection_finish`` puts it aside.
gc.disable()

# From the start, since fixtures of whole modules are made before the one below; and for programs that tests start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# Consoles would keep to the size of the terminal that tests were started from; tests give a width of their own.
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Before fixtures of whole modules too: no test depends on what others drew before it."""
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def one_thread():
    yield
    torch.set_num_threads(1)


@cache
def _few_digits() -> DataSet:
    whole = embedded.digits()
    return replace(whole, train=Split(*(part[:1000] for part in whole.train)))


@pytest.fixture
def few_digits(monkeypatch):
    """The first 1,000 of the digits to train on, for tests that do not ask how well a network learns them."""
    monkeypatch.setitem(embedded.EMBEDDED, "digits", _few_digits)
