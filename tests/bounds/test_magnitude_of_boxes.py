"""What boxes know of their magnitude: it saves passes over memory, and takes nothing from a bound."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from certibayes.bounds import IDEAL, Box, interval_bounds, outward, outward_box, rules_for, within_range
from certibayes.bounds.interval import prepared_inputs
from certibayes.bounds.rounding import LARGEST_BOUND, radius_within_range
from certibayes.bounds.rules.affine import _length
from certibayes.networks import operations as ops
from certibayes.networks import trace

from ..strategies import Functional, generator, graph_and_params, law, seeds

DTYPES = [torch.float32, torch.float64]


def _relu(center: torch.Tensor, radius: torch.Tensor) -> Box:
    rule = rules_for(ops.ReLU()).interval
    return rule(ops.ReLU(), {}, (Box(center, radius),), outward(center.dtype))


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@law(100)
@given(data=st.data())
def test_relu_of_the_exact_ends_lies_in_the_box_and_below_its_magnitude(dtype, flush, data):
    """Also where ends cancel, are subnormal, or differ by many orders of magnitude."""
    width = torch.finfo(dtype).bits
    floats = st.floats(-(2.0**100), 2.0**100, width=width)
    center = torch.tensor([data.draw(floats)], dtype=dtype)
    near = float(center.abs())
    radius = data.draw(
        st.one_of(floats.map(abs), st.just(near), st.floats(0.0, 1.0, width=width).map(lambda f: f * near))
    )
    if flush and not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush subnormal numbers")
    try:
        radius = torch.tensor([radius], dtype=dtype)
        box = _relu(center, radius)
    finally:
        torch.set_flush_denormal(False)
    low, high = (max(Fraction(0), Fraction(float(center)) + sign * Fraction(float(radius))) for sign in (-1, 1))
    if flush:
        # A program that flushes may give 0 for what is subnormal.
        low = Fraction(0) if low < torch.finfo(dtype).smallest_normal else low
    middle, reach = Fraction(float(box.center)), Fraction(float(box.radius))
    assert middle - reach <= low and high <= middle + reach
    assert high <= Fraction(float(box.largest)) * (1 + 4 * Fraction(outward(dtype).unit))


@law(20)
@given(seeds)
def test_relu_is_no_wider_than_the_exact_image_but_for_some_units(seed):
    rng = generator(seed)
    center, radius = torch.randn(50, generator=rng), torch.rand(50, generator=rng)
    box = _relu(center, radius)
    low, high = (torch.relu(center.double() + sign * radius.double()) for sign in (-1, 1))
    excess = 8 * outward(torch.float32).unit * high + 1e-20
    assert bool((box.center.double() - box.radius >= low - excess).all())
    assert bool((box.center.double() + box.radius <= high + excess).all())


@pytest.mark.parametrize("dtype", DTYPES)
@law(50)
@given(seeds)
def test_where_the_radius_of_an_affine_layer_is_within_range_all_of_it_is(dtype, seed):
    """Also next to overflow, and beyond it; a radius is never negative."""
    rng = generator(seed)
    octaves = torch.randint(-20, 128, (40, 1), generator=rng)
    x = torch.randn(40, 6, generator=rng, dtype=dtype) * 2.0**octaves
    factor = 2.0 ** float(torch.randint(-20, 20, (), generator=rng))
    weights = {
        "weight": torch.randn(4, 6, generator=rng, dtype=dtype) * factor,
        "bias": torch.randn(4, generator=rng, dtype=dtype),
    }
    box = outward_box(x, 1e-3)
    linear, arithmetic = ops.Linear(), outward(dtype)
    output = rules_for(linear).interval(linear, weights, (box,), arithmetic)
    for index in range(len(x)):
        one = output.take(slice(index, index + 1))
        inside, inverted = within_range(one)
        known = radius_within_range(one, arithmetic)
        assert not bool(inverted) and (bool(inside) or not known)
        assert known or not float(one.radius.max()) <= LARGEST_BOUND * 16 * arithmetic.unit
    assert not radius_within_range(output, IDEAL)


@pytest.mark.parametrize("flatten", [False, True])
def test_inputs_that_are_widened_once_give_the_same_bounds(flatten):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3)]
        net = nn.Sequential(nn.Flatten(), *layers) if flatten else nn.Sequential(*layers)
    x = torch.rand(5, *((3, 4) if flatten else (12,)), generator=generator(1))
    graph, params = graph_and_params(trace(net, x))
    rounding, box = outward(torch.float32), outward_box(x, 0.1)
    stacked = {name: value[None] for name, value in params.items()}
    prepared = prepared_inputs(graph, stacked, box, rounding)
    assert prepared.allowance > 0 and not torch.equal(prepared.radius, box.radius)
    for one, other in zip(
        interval_bounds(graph, params, prepared, rounding)[:2],
        interval_bounds(graph, params, box, rounding)[:2],
        strict=True,
    ):
        assert torch.equal(one, other)
    assert prepared_inputs(graph, stacked, box, IDEAL) is box


def test_inputs_with_several_readers_are_not_widened_ahead():
    net = Functional(lambda self, x: self.first(x) + self.second(x), first=nn.Linear(4, 3), second=nn.Linear(4, 3))
    net.input_shape = (4,)
    x = torch.rand(2, 4, generator=generator(2))
    graph, params = graph_and_params(trace(net, x))
    stacked, box = {name: value[None] for name, value in params.items()}, outward_box(x, 0.1)
    assert prepared_inputs(graph, stacked, box, outward(torch.float32)) is box
    ball = outward_box(x, 0.1, norm="l2")
    assert prepared_inputs(graph, stacked, ball, outward(torch.float32)) is ball


@law(50)
@given(st.sampled_from(DTYPES), st.integers(-120, 110), seeds)
def test_lengths_neither_overflow_nor_underflow(dtype, exponent, seed):
    values = torch.rand(3, 20, generator=generator(seed)).to(dtype) * 2.0**exponent
    expected = values.double().square().sum(-1, keepdim=True).sqrt()
    torch.testing.assert_close(_length(values).double(), expected, atol=0, rtol=1e-5)
