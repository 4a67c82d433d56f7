"""Tensors, arrays and lists become tensors; tensors become bytes."""

import hashlib

import numpy as np
import pytest
import torch

from certibayes.errors import InvalidInput
from certibayes.support.tensors import as_tensor, tensor_bytes

ROWS = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
FIXED = np.array(ROWS)
FIXED.flags.writeable = False


def test_a_tensor_is_returned_as_it_is():
    x = torch.rand(3, requires_grad=True)
    assert as_tensor(x, "x") is x


@pytest.mark.parametrize(
    "values",
    [
        ROWS,
        tuple(ROWS),
        np.array(ROWS),
        np.array(ROWS, dtype=">f4"),
        np.array(ROWS)[::-1][::-1],
        np.array(ROWS[::-1])[::-1],
        FIXED,
        [np.array(row) for row in ROWS],
        [torch.tensor(row) for row in ROWS],
        [[np.float32(value) for value in row] for row in ROWS],
    ],
    ids=[
        "lists", "tuple", "array", "byte order", "view", "negative strides", "read-only", "list of arrays",
        "list of tensors", "list of numpy numbers",
    ],
)  # fmt: skip
def test_what_holds_numbers_becomes_a_tensor(values):
    found = as_tensor(values, "x")
    assert found.is_floating_point() and found.tolist() == ROWS


def test_whole_numbers_stay_whole():
    for values in ([1, 2], np.array([1, 2]), np.array([1, 2], dtype=np.int32)):
        assert not as_tensor(values, "y").is_floating_point()


@pytest.mark.parametrize(
    "values", [None, "text", [[1.0], [2.0, 3.0]], [np.zeros(2), np.zeros(3)], np.array(["a"]), {"x": 1}, object()]
)
def test_what_holds_none_is_refused_by_name(values):
    with pytest.raises(InvalidInput, match="the inputs cannot be read as a tensor"):
        as_tensor(values, "the inputs")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.tensor(1.5).expand(1),
        torch.tensor(1.5).expand(3),
        torch.rand(3, 4).T,
        torch.rand(2, 3, requires_grad=True),
        torch.tensor([True, False]),
        torch.rand(0, 3),
    ],
)
def test_the_bytes_are_those_of_the_values_in_order(tensor):
    expected = tensor.detach().numpy().tobytes()
    assert hashlib.sha256(tensor_bytes(tensor)).digest() == hashlib.sha256(expected).digest()


@pytest.mark.parametrize(
    "words", [["a", "b"], np.array(["a", "b"]), np.array(["a", "b"], dtype=object), np.array(["a"])]
)
def test_words_are_to_be_numbered(words):
    with pytest.raises(InvalidInput, match="they are words, such as 'a'"):
        as_tensor(words, "the labels")


def test_a_generator_is_refused_for_what_it_is():
    with pytest.raises(InvalidInput, match="they are a generator, which can be gone through once"):
        as_tensor((row for row in ROWS), "the points")
