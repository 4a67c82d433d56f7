"""Checks that every border uses."""

import numpy as np
import pytest
import torch

from certibayes.errors import InvalidInput
from certibayes.support.checks import require_count, whole_number


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)])
def test_whole_numbers_of_every_kind_become_ints(value):
    found = whole_number(value, "epochs")
    assert found == 3
    assert type(found) is int


@pytest.mark.parametrize("value", ["3", 3.0, None, True, [3], torch.tensor(3.0)])
def test_all_else_is_refused_by_name(value):
    with pytest.raises(InvalidInput, match="epochs must be a whole number, got"):
        whole_number(value, "epochs")
    with pytest.raises(InvalidInput, match="epochs must be a whole number, got"):
        require_count(value, "epochs")


@pytest.mark.parametrize(("value", "least"), [(0, 1), (-1, 0)])
def test_numbers_that_are_too_small(value, least):
    with pytest.raises(InvalidInput, match=f"epochs must be at least {least}, got {value}"):
        whole_number(value, "epochs", least)
