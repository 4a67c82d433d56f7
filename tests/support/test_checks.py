"""Checks that every border uses."""

import numpy as np
import pytest
import torch

from certibayes.errors import InvalidInput
from certibayes.support.checks import inputs_of, require_count, whole_number


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


@pytest.mark.parametrize(("what", "remedy"), [("the targets", r"y\.float\(\)"), ("the points", r"x\.float\(\) / 255")])
def test_whole_numbers_in_the_place_of_floats_name_the_remedy_of_what_they_are(what, remedy):
    with pytest.raises(InvalidInput, match=f"{what} are torch.int64; floats are needed.*{remedy}"):
        inputs_of(torch.tensor([[1], [2]]), what)
