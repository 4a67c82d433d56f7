"""Linear bounds contain the exact ranges of tiny networks."""

from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from certibayes.bounds import IDEAL, LinearBounder, ideal_box, layer_boxes, linear_bounds, outward_box
from certibayes.networks import trace

from ..strategies import fractions, graph_and_params, law, seeds
from .exact_cases import layers_of, network, range_on_interval, range_on_rectangle
from .rounding_cases import F32, F64


def _assert_below_exact(net: nn.Sequential, x: Tensor, eps: float, exact_range) -> None:
    low = [v - Fraction(eps) for v in fractions(x[0])]
    high = [v + Fraction(eps) for v in fractions(x[0])]
    exact = exact_range(layers_of(net), low, high)
    graph, params = graph_and_params(trace(net))
    double = {key: value.double() for key, value in params.items()}
    cases = [
        (params, outward_box(x, eps), F32, Fraction(0)),
        (double, outward_box(x.double(), eps), F64, Fraction(0)),
        (double, ideal_box(x.double(), eps), IDEAL, Fraction(1, 10**12)),
    ]
    for weights, box, rounding, slack in cases:
        for slopes in ("zero", "adaptive"):
            lower, upper = linear_bounds(graph, weights, box, rounding, slopes)
            for down, up, (smallest, most) in zip(fractions(lower[0]), fractions(upper[0]), exact, strict=True):
                assert down - slack <= smallest and most <= up + slack


slopes_below = st.sampled_from([0.0, 0.25, 2.0])


@law(12)
@given(seed=seeds, slope=slopes_below, eps=st.sampled_from([0.0, 0.01, 0.3, 2.0]), depth=st.integers(1, 3))
def test_the_exact_range_over_an_interval_is_contained(seed, slope, eps, depth):
    net = network(seed, [1, *[4] * depth, 2], slope)
    _assert_below_exact(
        net, torch.randn(1, 1), eps, lambda ls, lo, hi: range_on_interval(ls, Fraction(slope), lo[0], hi[0])
    )


@law(12)
@given(seed=seeds, slope=slopes_below, eps=st.sampled_from([0.01, 0.3, 2.0]))
def test_the_exact_range_over_a_rectangle_is_contained(seed, slope, eps):
    net = network(seed, [2, 5, 2], slope)
    _assert_below_exact(net, torch.randn(1, 2), eps, lambda ls, lo, hi: range_on_rectangle(ls, Fraction(slope), lo, hi))


@law(12)
@given(seed=seeds, eps=st.sampled_from([0.01, 0.3, 2.0]))
def test_the_exact_minimum_of_a_margin_is_not_passed(seed, eps):
    """A margin is one more output of the network: the last layer's first row minus its second."""
    net = network(seed, [2, 5, 2], 0.0)
    x = torch.randn(1, 2)
    (first, (weight, bias)) = layers_of(net)
    difference = [[a - b for a, b in zip(*weight, strict=True)]], [bias[0] - bias[1]]
    low = [v - Fraction(eps) for v in fractions(x[0])]
    high = [v + Fraction(eps) for v in fractions(x[0])]
    ((smallest, _),) = range_on_rectangle([first, difference], Fraction(0), low, high)
    graph, params = graph_and_params(trace(net))
    boxes = layer_boxes(graph, params, outward_box(x, eps), F32)
    found = LinearBounder(graph, params, boxes, F32).lower(torch.tensor([[[1.0, -1.0]]]))
    assert fractions(found)[0][0] <= smallest
