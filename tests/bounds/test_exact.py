"""Law 4: on tiny piecewise-linear networks the bounds contain the exact range, found in rational arithmetic."""

from fractions import Fraction
from itertools import combinations, pairwise, product

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from certibayes.bounds import IDEAL, ideal_box, interval_bounds, outward, outward_box
from certibayes.networks import trace

from ..strategies import exact_affine, fractions, graph_and_params, law, seeds

F32 = outward(torch.float32)
slopes = st.sampled_from([0.0, 0.25, 2.0])  # of the negative side: ReLU and two leaky ones


def _activation(slope: float) -> nn.Module:
    return nn.LeakyReLU(slope) if slope else nn.ReLU()


def _bend(slope: Fraction, values: list) -> list:
    return [v if v > 0 else slope * v for v in values]


def _layers(net: nn.Sequential) -> list[tuple[list, list]]:
    return [(fractions(m.weight.detach()), fractions(m.bias.detach())) for m in net if isinstance(m, nn.Linear)]


def _forward(layers: list, slope: Fraction, x: list, upto: int | None = None) -> list:
    """Exact output; with ``upto``, the exact pre-activations of that layer."""
    for index, (weight, bias) in enumerate(layers):
        x = exact_affine(weight, bias, x)
        if index == upto or index == len(layers) - 1:
            return x
        x = _bend(slope, x)
    return x


def _range_on_interval(layers: list, slope: Fraction, low: Fraction, high: Fraction) -> list[tuple]:
    """Exact range of a one-input network: it is linear between the points where some pre-activation is 0."""
    knots = [low, high]
    for depth in range(len(layers) - 1):
        found = set(knots)
        for left, right in pairwise(knots):
            at_left, at_right = (_forward(layers, slope, [p], depth) for p in (left, right))
            for a, b in zip(at_left, at_right, strict=True):
                if a * b < 0:  # linear in between, so it has one zero
                    found.add(left + (right - left) * a / (a - b))
        knots = sorted(found)
    outputs = [_forward(layers, slope, [p]) for p in knots]
    return [(min(column), max(column)) for column in zip(*outputs, strict=True)]


def _range_on_rectangle(layers: list, slope: Fraction, low: list, high: list) -> list[tuple]:
    """Exact range of a two-input network with one hidden layer.

    It is linear on every cell of the arrangement of the hidden units' lines and the rectangle's sides, so its
    extremes are at crossings of two of those lines inside the rectangle.
    """
    lines = [(w[0], w[1], b) for w, b in zip(*layers[0], strict=True)]
    for axis, value in product((0, 1), (0, 1)):
        bound = (low, high)[value][axis]
        lines.append((Fraction(1 - axis), Fraction(axis), -bound))
    outputs = []
    for (a, b, c), (d, e, f) in combinations(lines, 2):
        determinant = a * e - b * d
        if determinant == 0:
            continue
        point = [(b * f - c * e) / determinant, (c * d - a * f) / determinant]
        if all(lo <= p <= hi for lo, p, hi in zip(low, point, high, strict=True)):
            outputs.append(_forward(layers, slope, point))
    return [(min(column), max(column)) for column in zip(*outputs, strict=True)]


def _assert_contains(box, exact: list[tuple], slack: Fraction = Fraction(0)) -> None:
    lower, upper = box.ends()
    for low, high, (smallest, largest) in zip(fractions(lower[0]), fractions(upper[0]), exact, strict=True):
        assert low - slack <= smallest
        assert largest <= high + slack


def _network(seed: int, widths: list[int], slope: float) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = []
    for n, m in pairwise(widths):
        layers += [nn.Linear(n, m), _activation(slope)]
    return nn.Sequential(*layers[:-1])


def _check(net: nn.Sequential, x: torch.Tensor, eps: float, exact_range) -> None:
    graph, params = graph_and_params(trace(net))
    box = outward_box(x, eps)
    # The exact ball, of the exact number eps and of the float point x.
    low = [v - Fraction(eps) for v in fractions(x[0])]
    high = [v + Fraction(eps) for v in fractions(x[0])]
    exact = exact_range(_layers(net), low, high)
    _assert_contains(interval_bounds(graph, params, box, F32), exact)
    double = {key: value.double() for key, value in params.items()}
    ideal = interval_bounds(graph, double, ideal_box(x.double(), eps), IDEAL)
    _assert_contains(ideal, exact, slack=Fraction(1, 10**12))


@law(25)
@given(seed=seeds, slope=slopes, eps=st.sampled_from([0.01, 0.3, 2.0]), depth=st.integers(1, 3))
def test_the_exact_range_over_an_interval_is_contained(seed, slope, eps, depth):
    net = _network(seed, [1, *[4] * depth, 2], slope)
    fraction = Fraction(slope)
    _check(net, torch.randn(1, 1), eps, lambda ls, lo, hi: _range_on_interval(ls, fraction, lo[0], hi[0]))


@law(25)
@given(seed=seeds, slope=slopes, eps=st.sampled_from([0.01, 0.3, 2.0]))
def test_the_exact_range_over_a_rectangle_is_contained(seed, slope, eps):
    net = _network(seed, [2, 5, 2], slope)
    fraction = Fraction(slope)
    _check(net, torch.randn(1, 2), eps, lambda ls, lo, hi: _range_on_rectangle(ls, fraction, lo, hi))


@law(15)
@given(seed=seeds, eps=st.sampled_from([0.0, 1e-7, 0.1, 3.0]), inputs=st.sampled_from([1, 7, 40]))
def test_one_linear_layer_is_bounded_exactly_but_for_a_few_units(seed, eps, inputs):
    torch.manual_seed(seed)
    layer, x = nn.Linear(inputs, 3), torch.randn(1, inputs)
    graph, params = graph_and_params(trace(layer))
    box = outward_box(x, eps)
    bounds = interval_bounds(graph, params, box, F32)
    ((weight, bias),) = _layers(nn.Sequential(layer))
    centre, radius = fractions(box.centre[0]), fractions(box.radius[0])
    middle = exact_affine(weight, bias, centre)
    width = exact_affine([[abs(w) for w in row] for row in weight], [Fraction(0)] * 3, radius)
    _assert_contains(bounds, [(m - w, m + w) for m, w in zip(middle, width, strict=True)])
    # Not wider than the rounding of 2 (n + 8) operations, four times over, on the sum of magnitudes.
    magnitude = exact_affine(
        [[abs(w) for w in row] for row in weight],
        [abs(b) for b in bias],
        [abs(c) + r for c, r in zip(centre, radius, strict=True)],
    )
    lower, upper = bounds.ends()
    for low, high, m, w, size in zip(fractions(lower[0]), fractions(upper[0]), middle, width, magnitude, strict=True):
        units = size * Fraction(8 * (inputs + 8), 2**24)
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
