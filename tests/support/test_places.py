"""Formulas as kernels inside ``torch.vmap`` and on tensors with gaps, with memory that is read by the same rules."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from certibayes.support.fused import fused
from certibayes.support.places import PACKED, Place, dense, laid_out, place_of, side_by_side
from tests.support.kernels import emulate


@fused
def combined(a, b, c, factor: float):
    return torch.addcmul(a, b, c, value=factor), (a - b) * c


def drawn(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.fixture
def launched(monkeypatch):
    return emulate(monkeypatch)


def gaps(rows, *shape):
    """Some of the rows of something larger, as one model's weights are a part of all its weights."""
    return drawn(rows, 40)[:, 3 : 3 + torch.Size(shape).numel()].unflatten(1, shape)


def test_rows_with_gaps_are_read_where_they_are():
    like, tensor = torch.empty(5, 2, 3), gaps(5, 2, 3)
    assert laid_out(tensor, like) is tensor
    assert place_of(tensor, like) == Place("+", 6, 40)
    # Another order within the rows has no rule, and is copied.
    assert place_of(tensor.transpose(1, 2), torch.empty(5, 3, 2)) is None
    assert torch.equal(laid_out(tensor.transpose(1, 2), torch.empty(5, 3, 2)), tensor.transpose(1, 2))


def test_the_order_is_that_of_a_tensor_without_gaps():
    assert dense([gaps(5, 2, 3), drawn(5, 3, 2).transpose(1, 2)]).stride() == (6, 1, 2)
    assert dense([gaps(5, 2, 3)]).stride() == (6, 3, 1)
    assert dense([drawn(5, 1), drawn(4)]).shape == (5, 4)


@pytest.mark.parametrize("row, apart, fits", [(8, 12, True), (6, 12, False), (8, 10, False)])
def test_four_neighbors_in_rows_with_gaps(row, apart, fits):
    whole = torch.empty(4 * apart, dtype=torch.float32)
    tensor = whole.view(4, apart)[:, :row]
    place = place_of(tensor, torch.empty(4, row))
    assert side_by_side([tensor], [place]) == fits
    inside = [[i // row * apart + i % row for i in range(j, j + PACKED)] for j in range(0, 4 * row, PACKED)]
    aligned = all(places[0] % PACKED == 0 and places[-1] - places[0] == PACKED - 1 for places in inside)
    assert aligned == fits


def test_tensors_with_gaps(launched):
    a, b, c = gaps(5, 2, 3), drawn(5, 2, 3), drawn(5, 1, 1)
    for found, expected in zip(combined(a, b, c, 2.0), combined.__wrapped__(a, b, c, 2.0), strict=True):
        assert torch.equal(found, expected)
    assert launched == [("combined", (5, 2, 3))]


def test_results_with_gaps(launched):
    both = torch.zeros(5, 4, 3, dtype=torch.float64)
    a, b, c = drawn(5, 2, 3), gaps(5, 2, 3), drawn(3)
    combined(a, b, c, 2.0, out=(both[:, :2], both[:, 2:]))
    assert torch.equal(both, torch.cat(combined.__wrapped__(a, b, c, 2.0), 1))
    with pytest.raises(ValueError, match="cannot be written"):
        combined(a, b, c, 2.0, out=(both[:, ::2], both[:, 2:]))


@given(
    samples=st.integers(1, 3),
    shapes=st.lists(st.sampled_from([(), (3,), (2, 3), (2, 1), (4, 2, 3), (1, 2, 3)]), min_size=3, max_size=3),
    mapped=st.lists(st.sampled_from([None, 0, -1]), min_size=3, max_size=3),
)
@settings(deadline=None)
def test_inside_vmap_all_samples_are_one_kernel(samples, shapes, mapped):
    if all(dim is None for dim in mapped):
        mapped = [0, None, None]
    tensors = [
        drawn(*shape) if dim is None else drawn(samples, *shape).movedim(0, dim)
        for shape, dim in zip(shapes, mapped, strict=True)
    ]

    def own(*tensors):
        found = combined(*tensors, 2.0)
        assert found[0].shape == torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        return found

    expected = torch.vmap(own, in_dims=tuple(mapped))(*tensors)
    with pytest.MonkeyPatch.context() as patched:
        launched = emulate(patched)
        found = torch.vmap(own, in_dims=tuple(mapped))(*tensors)
        assert len(launched) == 1
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-14, atol=1e-15)


def test_inside_vmap_results_are_written_in_a_place(launched):
    def own(a, b):
        both = a.new_empty(2, *a.shape)
        combined(a, b, b, 2.0, out=both.unbind())
        return both

    a, b = drawn(4, 2, 3), gaps(4, 2, 3)
    expected = torch.stack(combined.__wrapped__(a, b, b, 2.0), 1)
    torch.testing.assert_close(torch.vmap(own)(a, b), expected, rtol=1e-14, atol=1e-15)
    assert launched == [("combined", (4, 2, 3))]


def test_nested_maps_and_derivatives_take_the_formula_itself(launched):
    a = drawn(3, 2)
    inner = torch.vmap(lambda x, y: combined(x, y, x, 2.0)[0], in_dims=(None, 0))
    found = torch.vmap(inner, in_dims=(0, None))(a, a)
    torch.testing.assert_close(found, a[:, None] + 2.0 * a * a[:, None], rtol=1e-14, atol=1e-15)
    slopes = torch.vmap(torch.func.grad(lambda x: combined(x, x, x, 2.0)[0].sum()))(a)
    torch.testing.assert_close(slopes, 1.0 + 4.0 * a, rtol=1e-14, atol=1e-15)
    assert not launched
