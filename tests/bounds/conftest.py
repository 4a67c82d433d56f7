import pytest

from ..strategies import threads


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Small networks run faster on one thread, above all where several test runs share the machine."""
    with threads(1):
        yield
