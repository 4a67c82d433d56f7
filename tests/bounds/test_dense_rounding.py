"""The rounding error of a dense layer counts the inputs that are not off, and covers every order of summation."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import ideal_box, interval_margins, layer_boxes, linear_bounds, outward, outward_box
from certibayes.bounds._backward import Step
from certibayes.bounds.linear import LinearBounder
from certibayes.bounds.rules.affine import MANY, linear_backward
from certibayes.bounds.sums import LONG
from certibayes.certification.network_bounds import margin_coefficients
from certibayes.networks import direct_sums, trace
from certibayes.networks.operations import Linear
from certibayes.regions import Box

from ..strategies import fractions, graph_and_params
from .rounding_cases import F32, ORDERS, run_in_order, sum_of_products

TERMS = LONG + 500


def error_of(weight, x, quantities=1, dtype=torch.float32):
    """What a dense layer's rule says of its rounding error at one point, (outputs,)."""
    rounding = outward(dtype)
    inputs = Box(x[None], torch.zeros_like(x)[None], largest=x[None].abs())
    output = Box(torch.zeros(1, len(weight), dtype=dtype), torch.ones(1, len(weight), dtype=dtype))
    step = Step(torch.ones(1, quantities, len(weight), dtype=dtype), (inputs,), output, rounding)
    return linear_backward(Linear(), {"weight": weight}, step).output_error()[0]


def worst_error(row, x):
    """How far some programs stray from the exact sum: one term after the other in several orders, and in pairs."""
    exact = sum_of_products(fractions(row), fractions(x))
    products = (row * x).numpy()
    found = [np.cumsum(products[order(len(row)).numpy()], dtype=products.dtype)[-1] for order in ORDERS.values()]
    pairs = products
    while len(pairs) > 1:
        pairs = np.append(pairs, np.zeros(len(pairs) % 2, pairs.dtype))
        pairs = pairs[::2] + pairs[1::2]
    return max(abs(Fraction(float(value)) - exact) for value in (*found, pairs[0]))


@pytest.mark.parametrize("active", [1, 2, 50, 700, TERMS])
@pytest.mark.parametrize("quantities", [1, MANY + 1])
def test_sums_that_lose_all_they_can_are_covered(active, quantities):
    """1 + u + u + ... stays 1: as much is lost as there are terms, and no less is allowed for."""
    x, weight = torch.zeros(TERMS), torch.ones(1, TERMS)
    x[torch.randperm(TERMS, generator=torch.Generator().manual_seed(active))[:active]] = F32.unit
    first = int(x.nonzero()[0])
    x[first] = 1.0
    weight[0, :first], weight[0, first + 1 :] = -1.0, 1.0
    error = Fraction(float(error_of(weight, x, quantities)[0]))
    assert worst_error(weight[0], x) <= error
    # No more than what so few terms can lose, and a little.
    assert error <= Fraction(F32.unit) * (active + 40) * 2


def test_the_test_above_loses_what_it_can():
    x = torch.full((TERMS,), F32.unit)
    x[0] = 1.0
    assert worst_error(torch.ones(TERMS), x) >= Fraction(F32.unit) * (TERMS - 1)


@pytest.mark.parametrize("scale", [1.0, 2.0**28])
@pytest.mark.parametrize("active", [0, 1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_tiny_inputs_that_do_not_count_as_terms_are_covered(active, scale, seed):
    """Beside numbers of all magnitudes, in every order."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(TERMS, generator=generator) * F32.underflow
    x[::3] = F32.underflow
    x[:active] = torch.exp2(-20.0 * torch.arange(active)) * (1 + torch.rand(active, generator=generator))
    weight = torch.randn(2, TERMS, generator=generator) * scale
    errors = error_of(weight, x)
    for row, error in zip(weight, errors, strict=True):
        assert worst_error(row, x) <= Fraction(float(error))


@pytest.mark.parametrize("eps", [0.0, 1e-6, 1e-3])
def test_networks_with_units_that_are_off_stay_inside_in_every_order(eps):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, TERMS), nn.ReLU(), nn.Linear(TERMS, 3))
    with torch.no_grad():
        net[0].bias.copy_(torch.where(torch.rand(TERMS) < 0.6, -20.0, net[0].bias.double()))
        # Much of what is summed cancels, or is far below the rest.
        net[2].weight.copy_(torch.where(torch.rand(3, TERMS) < 0.5, net[2].weight, net[2].weight * F32.unit))
    graph, params = graph_and_params(trace(net))
    x = torch.randn(6, 4)
    lower, upper = linear_bounds(graph, params, outward_box(x, eps), F32)
    strayed = 0.0
    for order in ORDERS.values():
        output = run_in_order(graph, params, x, order)[graph.nodes[-1].name][1].double()
        assert bool((output >= lower).all() and (output <= upper).all())
        strayed = max(strayed, float((output - graph.evaluate(params, x).double()).abs().max()))
    assert strayed > 0.0
    if eps == 0.0:
        assert float((upper - lower).max()) < 2e-3


def test_tiny_inputs_may_lose_all_they_can_among_themselves():
    x = torch.full((TERMS,), F32.underflow * F32.unit)
    x[0] = F32.underflow
    weight = torch.full((1, TERMS), 2.0**28)
    lost = worst_error(weight[0], x)
    assert Fraction(2) * Fraction(F32.underflow) < lost <= Fraction(float(error_of(weight, x)[0]))


def test_elided_margins_lose_as_little_to_rounding_as_those_of_intervals():
    """The last layer has few outputs: there the error is a product, as intervals have it, and not one of lengths."""
    x, labels = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 4, 9])
    net = cb.networks.mlp(784, [512], 10, seed=0)
    with torch.no_grad():
        # Four fifths of the units are off, as many are in networks that were trained: they do not count as terms.
        net[1].bias[torch.arange(512) % 5 > 0] -= 20.0
    traced = trace(net, x)
    graph, params, box = traced.graph, traced.params, outward_box(x, 0.1)
    with direct_sums():
        exact = interval_margins(graph, params, ideal_box(x, 0.1), labels).double()
        lost = exact - interval_margins(graph, params, box, labels, F32)
        specification = margin_coefficients(graph, labels[:, None], torch.arange(10).expand(3, -1), torch.float32)
        bounder = LinearBounder(graph, params, layer_boxes(graph, params, box, F32), F32)
        lost_by_elision = exact - bounder.elided(specification)
    assert lost_by_elision.max() < 0.95 * lost.max()
