"""One thread in tests, where matrices are small and threads only wait for each other; no hypothesis deadlines."""

import os

# Before torch is loaded: where a test takes two threads after all, the one that waits sleeps. It would otherwise burn a
# core that another process needs, a hundred times as long as the work takes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("certibayes", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("certibayes")

# From the start, since fixtures of whole modules are made before the one below; and for programs that tests start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
# Consoles would keep to the size of the terminal that tests were started from; tests give a width of their own.
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)


@pytest.fixture(autouse=True)
def one_thread():
    yield
    torch.set_num_threads(1)
