"""Law 4: on tiny piecewise-linear networks the bounds contain the exact range, found in rational arithmetic."""

from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from certibayes.bounds import IDEAL, ideal_box, interval_bounds, outward, outward_box
from certibayes.networks import trace

from ..strategies import exact_affine, fractions, graph_and_params, law, seeds
from .exact_cases import layers_of, network, range_on_interval, range_on_rectangle

F32 = outward(torch.float32)
slopes = st.sampled_from([0.0, 0.25, 2.0])  # of the negative side: ReLU and two leaky ones


def _assert_contains(box, exact: list[tuple], slack: Fraction = Fraction(0)) -> None:
    lower, upper = box.ends()
    for low, high, (smallest, largest) in zip(fractions(lower[0]), fractions(upper[0]), exact, strict=True):
        assert low - slack <= smallest
        assert largest <= high + slack


def _check(net: nn.Sequential, x: torch.Tensor, eps: float, exact_range) -> None:
    graph, params = graph_and_params(trace(net))
    box = outward_box(x, eps)
    # The exact ball, of the exact number eps and of the float point x.
    low = [v - Fraction(eps) for v in fractions(x[0])]
    high = [v + Fraction(eps) for v in fractions(x[0])]
    exact = exact_range(layers_of(net), low, high)
    _assert_contains(interval_bounds(graph, params, box, F32), exact)
    double = {key: value.double() for key, value in params.items()}
    ideal = interval_bounds(graph, double, ideal_box(x.double(), eps), IDEAL)
    _assert_contains(ideal, exact, slack=Fraction(1, 10**12))


@law(25)
@given(seed=seeds, slope=slopes, eps=st.sampled_from([0.01, 0.3, 2.0]), depth=st.integers(1, 3))
def test_the_exact_range_over_an_interval_is_contained(seed, slope, eps, depth):
    net = network(seed, [1, *[4] * depth, 2], slope)
    fraction = Fraction(slope)
    _check(net, torch.randn(1, 1), eps, lambda ls, lo, hi: range_on_interval(ls, fraction, lo[0], hi[0]))


@law(25)
@given(seed=seeds, slope=slopes, eps=st.sampled_from([0.01, 0.3, 2.0]))
def test_the_exact_range_over_a_rectangle_is_contained(seed, slope, eps):
    net = network(seed, [2, 5, 2], slope)
    fraction = Fraction(slope)
    _check(net, torch.randn(1, 2), eps, lambda ls, lo, hi: range_on_rectangle(ls, fraction, lo, hi))


@law(15)
@given(seed=seeds, eps=st.sampled_from([0.0, 1e-7, 0.1, 3.0]), inputs=st.sampled_from([1, 7, 40]))
def test_one_linear_layer_is_bounded_exactly_but_for_a_few_units(seed, eps, inputs):
    torch.manual_seed(seed)
    layer, x = nn.Linear(inputs, 3), torch.randn(1, inputs)
    graph, params = graph_and_params(trace(layer))
    box = outward_box(x, eps)
    bounds = interval_bounds(graph, params, box, F32)
    ((weight, bias),) = layers_of(nn.Sequential(layer))
    center, radius = fractions(box.center[0]), fractions(box.radius[0])
    middle = exact_affine(weight, bias, center)
    reach = exact_affine([[abs(w) for w in row] for row in weight], [Fraction(0)] * 3, radius)
    _assert_contains(bounds, [(m - w, m + w) for m, w in zip(middle, reach, strict=True)])
    # Not wider than the rounding of 2 (n + 8) operations, four times over, on the sum of magnitudes.
    magnitude = exact_affine(
        [[abs(w) for w in row] for row in weight],
        [abs(b) for b in bias],
        [abs(c) + r for c, r in zip(center, radius, strict=True)],
    )
    lower, upper = bounds.ends()
    for low, high, m, w, largest in zip(
        fractions(lower[0]), fractions(upper[0]), middle, reach, magnitude, strict=True
    ):
        units = largest * Fraction(8 * (inputs + 8), 2**24)
        assert m - w - low <= units
        assert high - m - w <= units


def test_an_interval_through_a_relu_by_hand():
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    with torch.no_grad():
        for layer, weight, bias in ((net[0], 2.0, -1.0), (net[2], -3.0, 4.0)):
            layer.weight.fill_(weight)
            layer.bias.fill_(bias)
    graph, params = graph_and_params(trace(net))
    box = interval_bounds(graph, params, ideal_box(torch.tensor([[0.5]]), 0.25))
    # x in [0.25, 0.75] -> [-0.5, 0.5] -> [0, 0.5] -> [2.5, 4]
    torch.testing.assert_close(box.lower, torch.tensor([[2.5]]))
    torch.testing.assert_close(box.upper, torch.tensor([[4.0]]))
