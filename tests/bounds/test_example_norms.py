"""Norms of each example by itself: exact extremes, exact numbers, and floats where digits cancel."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.bounds import IDEAL, ideal_box, interval_bounds, linear_bounds, outward, outward_box
from certibayes.bounds._backward import Step
from certibayes.bounds._offset import Offset
from certibayes.bounds.registry import rules_for
from certibayes.bounds.rules.norms import norm_backward, norm_interval
from certibayes.networks import operations as ops
from certibayes.networks import trace
from certibayes.regions import Box

from ..strategies import law, seeds


def box(seed, shape, scale=1.0, width=1.0):
    generator = torch.Generator().manual_seed(seed)
    center = scale * torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    return Box(center, width * scale * torch.rand(3, *shape, generator=generator, dtype=torch.float64))


@law(40)
@given(seed=seeds, size=st.integers(1, 4), width=st.floats(0.0, 3.0))
def test_the_interval_of_a_root_mean_square_is_exact(seed, size, width):
    """An input and the squares of the others are independent, so each extreme is reached at a corner or at 0."""
    around = box(seed, (size,), width=width)
    norm = ops.RootMeanSquareNorm(1, 0.01)
    found = norm_interval(norm, {}, (around,), IDEAL)
    low, high = around.lower, around.upper
    nearest = torch.where((low <= 0) & (high >= 0), 0.0, torch.where(low > 0, low, high))
    places = [torch.stack(choice, -1) for choice in itertools.product(*zip(low.T, high.T, nearest.T, strict=True))]
    values = torch.stack([norm.evaluate({}, place) for place in places])
    torch.testing.assert_close(found.lower, values.amin(0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.upper, values.amax(0), rtol=1e-9, atol=1e-12)


@law(40)
@given(seed=seeds, size=st.integers(2, 5), width=st.floats(0.0, 1.0))
def test_the_interval_of_a_centered_group_is_exact(seed, size, width):
    around = box(seed, (2, size), width=width)
    center = ops.Center(2)
    found = interval_of(center, around, IDEAL)
    corners = [torch.tensor(signs, dtype=torch.float64) for signs in itertools.product((-1, 1), repeat=size)]
    values = torch.stack([center.evaluate({}, around.center + around.radius * signs) for signs in corners])
    torch.testing.assert_close(found.lower, values.amin(0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.upper, values.amax(0), rtol=1e-9, atol=1e-12)


def interval_of(operation, around, rounding):
    return rules_for(operation).interval(operation, {}, (around,), rounding)


@law(30)
@given(seed=seeds, exponent=st.integers(-20, 20), width=st.floats(0.0, 1.0))
def test_outward_bounds_hold_exact_numbers(seed, exponent, width):
    """In rational arithmetic: y² = x² / (mean(x²) + eps), at random places of the box."""
    wide = box(seed, (4,), 2.0**exponent, width)
    around = Box(wide.center.float(), wide.radius.float())
    eps = 2.0**-10
    found = norm_interval(ops.RootMeanSquareNorm(2, eps), {}, (around,), outward(torch.float32))
    lower, upper = found.ends()
    generator = torch.Generator().manual_seed(seed)
    place = around.center.double() + around.radius.double() * (2 * torch.rand(3, 4, generator=generator).double() - 1)
    for row, low, high in zip(place.tolist(), lower.tolist(), upper.tolist(), strict=True):
        for k, x in enumerate(row):
            group = row[k // 2 * 2 : k // 2 * 2 + 2]
            square = Fraction(x) ** 2 / (sum(Fraction(v) ** 2 for v in group) / 2 + Fraction(eps))
            for end, sign in ((low[k], 1), (high[k], -1)):
                # low <= y means: low <= 0 <= y, or the squares are in order where both have one sign.
                if x >= 0:
                    inside = (
                        (Fraction(end) ** 2 <= square or end <= 0)
                        if sign > 0
                        else end >= 0 and Fraction(end) ** 2 >= square
                    )
                else:
                    inside = (
                        (end <= 0 and Fraction(end) ** 2 >= square)
                        if sign > 0
                        else end >= 0 or Fraction(end) ** 2 <= square
                    )
                assert inside


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
@pytest.mark.parametrize(
    "make", [lambda: torch.nn.LayerNorm(12), lambda: torch.nn.GroupNorm(3, 12)], ids=["layer", "group"]
)
def test_floats_stay_inside_where_digits_cancel(make, offset):
    """A mean that is a million times the deviation leaves few digits, and the bounds know."""
    torch.manual_seed(0)
    layer = make()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    net = torch.nn.Sequential(layer).eval()
    x = offset + torch.randn(40, 12)
    traced = trace(net, x[:1])
    for eps in (0.0, 1e-4, 0.1):
        region = outward_box(x, eps)
        lower, upper = interval_bounds(traced.graph, traced.params, region, outward(torch.float32)).ends()
        below, above = linear_bounds(traced.graph, traced.params, region, outward(torch.float32))
        for _ in range(50):
            noise = 2 * torch.rand_like(x) - 1
            near = torch.clamp(x + eps * noise.sign() * noise.abs().round(), x - eps, x + eps)
            for order in (torch.arange(40), torch.randperm(40)[:7]):
                y = traced.graph.evaluate(traced.params, near[order]).double()
                assert bool((lower[order] <= y).all() and (y <= upper[order]).all())
                assert bool((below[order] <= y).all() and (y <= above[order]).all())


def one_after_the_other(x):
    """Mean of the last dimension, summed from first to last in float32: an order in which errors add up."""
    total = np.add.accumulate(x.numpy(), axis=-1, dtype=np.float32)[..., -1:]
    return torch.from_numpy(total / np.float32(x.shape[-1]))


@pytest.mark.parametrize("low", [0.9, -1.0])
def test_sums_in_any_order_stay_inside(low):
    torch.manual_seed(0)
    x = torch.empty(6, 4096).uniform_(low, 1.0)
    # Equal numbers round the same way again and again.
    x[3:] = torch.tensor([[0.7], [0.8123], [0.9]])
    point, rounding = Box(x, torch.zeros_like(x)), outward(torch.float32)
    lower, upper = interval_of(ops.Center(1), point, rounding).ends()
    centered = (x - one_after_the_other(x)).double()
    assert bool((lower <= centered).all() and (centered <= upper).all())
    norm = ops.RootMeanSquareNorm(1)
    found = norm_interval(norm, {}, (point,), rounding)
    lower, upper = found.ends()
    divided = (x / torch.sqrt(one_after_the_other(x * x) + norm.eps)).double()
    assert bool((lower <= divided).all() and (divided <= upper).all())
    # The same with linear bounds of every output by itself, from below and above.
    chosen = torch.arange(0, 4096, 512)
    for sign in (1.0, -1.0):
        picks = torch.zeros(6, len(chosen), 4096)
        picks[:, torch.arange(len(chosen)), chosen] = sign
        step = Step(picks, (point,), found, rounding)
        back = norm_backward(norm, {}, step)
        offset = Offset(picks, rounding)
        offset.add_layer(step, back)
        bound = offset.total(torch.einsum("bsn,bn->bs", back.coefficients[0].double(), x.double()))
        assert bool((bound <= sign * divided[:, chosen]).all())


@pytest.mark.parametrize(
    ("operation", "weights"),
    [
        (ops.Center(1), {}),
        (ops.RootMeanSquareNorm(1, 0.5), {}),
        (ops.RootMeanSquareNorm(1, 0.5), {"weight": torch.full((4,), 2.0**-80), "bias": torch.full((4,), 2.0**-149)}),
    ],
    ids=["center", "norm", "norm with weights"],
)
def test_what_underflows_may_be_lost(operation, weights):
    """A program may take subnormal numbers for 0, or not, and all that comes of them."""
    x = torch.tensor([[2.0**-149, 0.0, 2.0**-140, -3.0 * 2.0**-149], [2.0**-60, -(2.0**-70), 0.0, 0.0]])
    point, rounding = Box(x, torch.zeros_like(x)), outward(torch.float32)
    lossless = operation.evaluate({role: weight.double() for role, weight in weights.items()}, x.double())
    output = rules_for(operation).interval(operation, weights, (point,), rounding)
    assert bool((output.lower <= lossless).all() and (lossless <= output.upper).all())
    lost = torch.where(lossless.abs() < 2.0**-126, 0.0, lossless)
    assert bool((output.lower <= lost).all() and (lost <= output.upper).all())
    for sign in (1.0, -1.0):
        picks = sign * torch.eye(4).expand(2, 4, 4)
        step = Step(picks, (point,), output, rounding)
        back = rules_for(operation).linear(operation, weights, step)
        offset = Offset(picks, rounding)
        offset.add_layer(step, back)
        bound = offset.value + torch.einsum("bsn,bn->bs", back.coefficients[0].double(), x.double())
        assert bool((bound <= sign * lossless).all() and (bound <= sign * lost).all())


def test_nothing_is_known_where_squares_may_overflow_or_eps_is_lost():
    around = Box(torch.tensor([[1.0, 2.0**51], [1.0, 2.0]]), torch.zeros(2, 2))
    found = norm_interval(ops.RootMeanSquareNorm(1), {}, (around,), outward(torch.float32))
    assert torch.isinf(found.radius).tolist() == [[True, True], [False, False]]
    found = norm_interval(ops.RootMeanSquareNorm(1, 1e-30), {}, (around,), outward(torch.float32))
    assert bool(torch.isinf(found.radius).all())


def test_no_output_exceeds_the_root_of_the_size():
    around = box(0, (9,), width=1e6)
    found = norm_interval(ops.RootMeanSquareNorm(1, 1e-9), {}, (around,), IDEAL)
    assert float(found.upper.max()) <= 3.0 + 1e-9 and float(found.lower.min()) >= -3.0 - 1e-9


@law(30)
@given(seed=seeds, width=st.floats(0.0, 2.0))
def test_linear_bounds_lie_between_parallel_lines(seed, width):
    """At places of the box the lines hold, and where the box is small they are no wider than the interval."""
    wide = box(seed, (5,), width=width)
    norm = ops.RootMeanSquareNorm(1, 1e-3)
    torch.manual_seed(seed)
    weights = {"weight": torch.randn(5).double(), "bias": torch.randn(5).double()}
    output = norm_interval(norm, weights, (wide,), IDEAL)
    coefficients = torch.randn(3, 4, 5).double()
    back = norm_backward(norm, weights, Step(coefficients, (wide,), output, IDEAL))
    for _ in range(20):
        x = wide.center + wide.radius * (2 * torch.rand(3, 5).double() - 1)
        value = torch.einsum("bsn,bn->bs", coefficients, norm.evaluate(weights, x))
        bound = torch.einsum("bsn,bn->bs", back.coefficients[0], x) + back.constant
        assert bool((bound <= value + 1e-9).all())


@pytest.mark.parametrize("radius", [0.0, 1e-6, 0.3])
@pytest.mark.parametrize("size", [2, 17, 300])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_a_program_may_err_as_much_as_sums_in_any_order_do(bias, size, radius):
    """Mean, root, quotient, product and sum each take their unit, and biases may cancel what the weights make."""
    unit, rounding = 2.0**-24, outward(torch.float32)
    generator = torch.Generator().manual_seed(size)
    center = 3 + torch.randn(20, size, generator=generator)
    norm = ops.RootMeanSquareNorm(1, 1e-5)
    scale = torch.randn(size, generator=generator)
    weights = {"weight": scale, "bias": -bias * norm.evaluate({}, center).mean(0) * scale}
    around = outward_box(center, radius)
    output = norm_interval(norm, weights, (around,), rounding)
    lower, upper = output.ends()
    bounds = {}
    for sign in (1.0, -1.0):
        # One coefficient each, on every output.
        step = Step(sign * torch.eye(size).expand(20, size, size), (around,), output, rounding)
        back = norm_backward(norm, weights, step)
        offset = Offset(step.coefficients, rounding)
        offset.add_layer(step, back)
        bounds[sign] = back.coefficients[0].double(), offset.value
    exact = {role: weight.double() for role, weight in weights.items()}
    for place in (-1.0, 0.0, 0.6, 1.0):
        x = torch.clamp(center + place * radius, center - radius, center + radius).double()
        scaled = norm.evaluate({}, x) * exact["weight"]
        value = scaled + exact["bias"]
        # The sum of n squares and its division, halved by the root; root, quotient and product; and the bias.
        error = unit * ((0.5 * (size + 1) + 3) * scaled.abs() + scaled.abs() + exact["bias"].abs())
        assert bool((lower <= value - error).all() and (value + error <= upper).all())
        for sign, (slopes, shift) in bounds.items():
            assert bool((torch.einsum("bsn,bn->bs", slopes, x) + shift <= sign * value - error).all())


def test_linear_bounds_gain_from_what_layers_share():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)).eval()
    x = torch.randn(30, 5)
    traced = trace(net, x[:1])
    interval = interval_bounds(traced.graph, traced.params, ideal_box(x, 0.01))
    low, high = linear_bounds(traced.graph, traced.params, ideal_box(x, 0.01))
    assert float((high - low).mean()) < 0.8 * float(2 * interval.radius.mean())
