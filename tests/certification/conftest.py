"""What several files need."""

import pytest

from certibayes.bounds import optimize
from certibayes.certification import _branch as branch


@pytest.fixture
def few_steps(monkeypatch):
    """Short ascents, for tests that do not ask how tight bounds are."""
    for name, root in branch.ROOTS.items():
        monkeypatch.setitem(branch.ROOTS, name, root._replace(steps=min(5, root.steps)))
    monkeypatch.setattr(optimize, "HULL_STEPS", 5)
