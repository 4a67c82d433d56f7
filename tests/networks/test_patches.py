"""Convolutions by patches: what torch computes, in float64, for every setting; mapped and differentiated too."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from certibayes.networks.operations import Conv2d, affine

from ..strategies import law

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def cases(draw):
    """An operation, images, filters and a bias."""
    groups = draw(st.sampled_from([1, 2]))
    kernel, stride, dilation = draw(pairs), draw(pairs), draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    size = tuple(dilation[i] * (kernel[i] - 1) + 1 + draw(st.integers(0, 5)) for i in range(2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    operation = Conv2d(stride, padding, dilation, groups)
    filters, channels = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    return operation, normal(2, channels, *size), normal(filters, channels // groups, *kernel), normal(filters)


def both(compute):
    """What torch gives, and what patches give."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(affine, "_by_patches", lambda x: True)
        ours = compute()
    return ours, compute()


@law(100)
@given(cases())
def test_a_convolution_is_torchs(case):
    operation, x, weight, bias = case
    for b in (bias, None):
        torch.testing.assert_close(*both(lambda b=b: operation.convolve(x, weight, b)), rtol=1e-12, atol=1e-12)


@law(100)
@given(cases())
def test_its_transpose_is_torchs_and_the_transpose(case):
    operation, x, weight, _ = case
    y = torch.randn_like(operation.convolve(x, weight, None))
    ours, torchs = both(lambda: operation.transpose(y, weight, tuple(x.shape[2:])))
    assert ours.shape == x.shape
    torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close((operation.convolve(x, weight, None) * y).sum(), (x * ours).sum())


def test_it_can_be_mapped_over_networks_and_differentiated(monkeypatch):
    monkeypatch.setattr(affine, "_by_patches", lambda x: True)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 7, 6, generator=generator, dtype=torch.float64)
    weights = torch.randn(4, 5, 3, 3, 3, generator=generator, dtype=torch.float64)
    operation = Conv2d((2, 2), (1, 1))
    mapped = torch.vmap(lambda weight: operation.convolve(x, weight, None))(weights)
    for k in range(4):
        torch.testing.assert_close(mapped[k], functional.conv2d(x, weights[k], None, 2, 1))
    slope = torch.func.grad(lambda x: operation.convolve(x, weights[0], None).square().sum())(x)
    expected = torch.func.grad(lambda x: functional.conv2d(x, weights[0], None, 2, 1).square().sum())(x)
    torch.testing.assert_close(slope, expected)
    back = torch.vmap(lambda y, weight: operation.transpose(y, weight, (7, 6)))(mapped, weights)
    for k in range(4):
        torch.testing.assert_close(back[k], functional.conv_transpose2d(mapped[k], weights[k], None, 2, 1, (0, 1)))


@law(100)
@given(cases())
def test_the_slopes_of_its_transpose_are_torchs(case):
    """By what it is applied to, and by the filters; also where these are one network's of many that are mapped."""
    operation, x, weight, _ = case
    shape = operation.convolve(x, weight, None).shape
    ys, weights = torch.randn(2, *shape, dtype=torch.float64), torch.stack([weight, weight.flip(0) + 1])

    def value(y, weight):
        return (operation.transpose(y, weight, tuple(x.shape[2:])) * (x + 1)).square().sum()

    def all_values(ys, weights):
        return torch.vmap(value)(ys, weights).sum()

    for slope in (torch.func.grad(value, (0, 1)), torch.func.grad(value), torch.func.grad(value, 1)):
        torch.testing.assert_close(*both(lambda slope=slope: torch.vmap(slope)(ys, weights)), rtol=1e-11, atol=1e-11)
    for which in ((0, 1), 0, 1):
        slope = torch.func.grad(all_values, which)
        torch.testing.assert_close(*both(lambda slope=slope: slope(ys, weights)), rtol=1e-11, atol=1e-11)


def test_slopes_that_torch_records_outside_of_a_map(monkeypatch):
    monkeypatch.setattr(affine, "_by_patches", lambda x: True)
    operation = Conv2d((2, 2), (1, 1))
    weights = torch.randn(2, 3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(2, 2, 3, 4, 4, dtype=torch.float64)
    total = torch.vmap(lambda y, weight: operation.transpose(y, weight, (8, 8)))(y, weights).square().sum()
    (found,) = torch.autograd.grad(total, weights)
    expected = [functional.conv_transpose2d(y[k], weights[k], None, 2, 1, 1).square().sum() for k in range(2)]
    torch.testing.assert_close(found, torch.autograd.grad(sum(expected), weights)[0])


@pytest.mark.parametrize("images", [affine.IMAGES, 2 * affine.IMAGES + 3])
def test_a_cpu_convolves_a_large_batch_in_parts(images):
    """In float64, where torch copies all patches first."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, 2, 7, 6, dtype=torch.float64, generator=generator)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, generator=generator)
    bias = torch.randn(3, dtype=torch.float64, generator=generator)
    found = Conv2d((2, 1), (1, 0)).convolve(x, weight, bias)
    assert torch.allclose(found, functional.conv2d(x, weight, bias, (2, 1), (1, 0)), rtol=1e-12, atol=1e-12)


@law(100)
@given(cases())
def test_the_gradient_of_the_filters_is_torchs(case):
    operation, x, weight, _ = case
    y = operation.convolve(x, weight, None)
    derivative = torch.randn_like(y)
    expected = torch.func.grad(lambda w: (operation.convolve(x, w, None) * derivative).sum())(weight)
    for order in (torch.contiguous_format, torch.channels_last):
        found = operation.filter_slope(derivative.contiguous(memory_format=order), x, weight)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
