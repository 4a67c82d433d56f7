"""Products that do not depend on the order of their sums."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.support.exact_product import exact_product

from ..strategies import law, seeds


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@given(seed=seeds, terms=st.integers(1, 700), scatter=st.integers(0, 30))
@law(40)
def test_any_order_gives_the_same_bits_and_the_right_value(dtype, seed, terms, scatter):
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(3, terms, generator=generator, dtype=dtype)
    right = torch.randn(terms, 4, generator=generator, dtype=dtype)
    right *= 2.0 ** torch.randint(-scatter, scatter + 1, right.shape, generator=generator)
    found = exact_product(left, right)
    order = torch.randperm(terms, generator=generator)
    assert torch.equal(exact_product(left[:, order], right[order]), found)
    scale = float(left.abs().max() * right.abs().max()) * terms * 2.0**-36
    torch.testing.assert_close(found, left.double() @ right.double(), rtol=0.0, atol=scale)


def test_nothing_but_zeros():
    assert torch.equal(exact_product(torch.zeros(2, 3), torch.ones(3, 2)), torch.zeros(2, 2, dtype=torch.float64))
