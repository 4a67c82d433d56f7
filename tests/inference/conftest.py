"""What several tests of inference look at."""

import pytest

from certibayes.inference import _group


@pytest.fixture
def groups(monkeypatch):
    """Which runs were trained together."""
    seen, real = [], _group.grouped

    def grouped(*arguments):
        found = real(*arguments)
        seen.extend(found)
        return found

    monkeypatch.setattr(_group, "grouped", grouped)
    return seen
