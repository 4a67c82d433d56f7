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

from certibayes.bounds.registry import registered
from certibayes.data import DataSet, Split
from certibayes.data import _embedded as embedded

from .strategies import VARIANTS

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Variants in the zoo of networks that it has already are left to ``make test-all``."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("name") in VARIANTS:
            item.add_marker(pytest.mark.slow)


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


@pytest.fixture(autouse=True)
def the_same_rules():
    """Which tests share a process is chance, so none may leave the others with other rules of a layer."""
    before = registered()
    yield
    assert registered() == before, "this test left other rules behind: register them through monkeypatch"


@cache
def _few_digits() -> DataSet:
    whole = embedded.digits()
    return replace(whole, train=Split(*(part[:1000] for part in whole.train)))


@pytest.fixture
def few_digits(monkeypatch):
    """The first 1,000 of the digits to train on, for tests that do not ask how well a network learns them."""
    monkeypatch.setitem(embedded.EMBEDDED, "digits", _few_digits)


@pytest.fixture(scope="module")
def few_digits_in_module():
    """The same for fixtures that all tests of a module share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(embedded.EMBEDDED, "digits", _few_digits)
        yield
