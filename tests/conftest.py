"""One thread in tests, where matrices are small and threads only wait for each other; no hypothesis deadlines."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("certibayes", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("certibayes")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
