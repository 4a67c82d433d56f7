"""Linear bounds hold for float programs that lose as many digits as they can, and are not absurdly loose."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from certibayes.bounds import ideal_box, layer_boxes, linear_bounds, outward, outward_box, within_range
from certibayes.bounds.rounding import LARGEST_BOUND, SMALLEST_VARIANCE
from certibayes.bounds.sums import LONG
from certibayes.networks import direct_sums, trace

from ..strategies import Functional, ball, graph_and_params, law, points_of, seeds, threads
from .rounding_cases import F32, LENGTHS, ORDERS, UNIT, random_numbers, run_in_order

# Whole networks that lose as many digits as they can


def _sum_in_order(x: Tensor, weight: Tensor, order: Tensor) -> Tensor:
    """Products rounded, and added one after the other: (B, n) and (m, n) -> (B, m)."""
    products = (x[:, None, :] * weight)[..., order].numpy()
    return torch.from_numpy(np.cumsum(products, -1, dtype=products.dtype)[..., -1].copy())


def _linear_case(weight: Tensor):
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False).to(weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return graph_and_params(trace(layer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", LENGTHS)
def test_long_sums_stay_inside_in_every_order(length, dtype):
    """At the corners of the ball, where a linear layer reaches its bound but for rounding."""
    unit = outward(dtype).unit
    stagnant = torch.full((1, length), unit, dtype=dtype)
    stagnant[0, 0] = 1.0
    half = random_numbers(0, 1, length // 2, dtype=dtype)
    cancelling = torch.cat([half, -half, torch.full((1, length % 2), unit, dtype=dtype)], 1)
    weight = torch.cat([stagnant, -stagnant, cancelling, random_numbers(1, 1, length, octaves=10, dtype=dtype)])
    graph, params = _linear_case(weight)
    x = torch.stack([torch.ones(length, dtype=dtype), random_numbers(2, length, dtype=dtype)])
    x[1, length // 2 : 2 * (length // 2)] = x[1, : length // 2]
    strayed = torch.zeros((), dtype=torch.float64)
    for eps in (0.0, 1e-6, 0.1):
        lower, upper = linear_bounds(graph, params, outward_box(x, eps), outward(dtype))
        for row in range(len(weight)):
            for sign in (1.0, -1.0):
                low, high = ball(x, eps)
                corner = torch.where(sign * weight[row] > 0, low, high)
                for order in ORDERS.values():
                    found = _sum_in_order(corner, weight[row : row + 1], order(length)).double()[:, 0]
                    assert bool((found >= lower[:, row]).all() and (found <= upper[:, row]).all())
                    exact = (corner.double() * weight[row].double()).sum(-1)
                    strayed = torch.maximum(strayed, (found - exact).abs().max())
    if dtype == torch.float32 and length > LONG:
        assert float(strayed) > 4 * UNIT  # the law was worth testing


@pytest.mark.parametrize("length", [784, 3072, 5000])
def test_wide_networks_stay_inside_for_every_batch_size_and_thread_count(length):
    torch.manual_seed(0)
    graph, params = graph_and_params(trace(nn.Sequential(nn.Linear(length, 40), nn.ReLU(), nn.Linear(40, 3))))
    x = torch.rand(9, length)
    with torch.no_grad(), direct_sums():
        lower, upper = linear_bounds(graph, params, outward_box(x, 0.0), F32)
        for count in (1, 2):
            with threads(count):
                for count in (1, 4, 9):
                    outputs = torch.cat([graph.evaluate(params, part) for part in x.split(count)]).double()
                    assert bool((outputs >= lower).all() and (outputs <= upper).all())
        parts = [linear_bounds(graph, params, outward_box(part, 0.0), F32) for part in x.split(2)]
        alone = torch.cat([low for low, _ in parts])
        assert bool((outputs >= alone).all())


@law(40)
@given(
    exponents=st.lists(st.integers(-80, 30), min_size=2, max_size=7),
    mantissas=st.lists(st.floats(1.0, 2.0, width=32), min_size=7, max_size=7),
    scale=st.sampled_from([1.0, 2.0**29, 2.0**-100, 2.0**-149]),
)
def test_small_weights_may_follow_large_ones(exponents, mantissas, scale):
    """Products of weights underflow in the backward pass though no value does in the forward pass."""
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in exponents])
    with torch.no_grad():
        for layer, exponent, mantissa in zip(net, exponents, mantissas, strict=False):
            layer.weight.fill_(mantissa * 2.0**exponent)
    graph, params = graph_and_params(trace(net))
    x = torch.tensor([[scale], [-scale]])
    boxes = layer_boxes(graph, params, outward_box(x, 0.0), F32)
    assume(all(bool(within_range(box)[0].all()) for box in boxes.values()))
    lower, upper = linear_bounds(graph, params, outward_box(x, 0.0), F32)
    outputs = graph.evaluate(params, x).double()
    assert bool((outputs >= lower).all() and (outputs <= upper).all())


def test_coefficients_that_underflow_by_hand():
    """1.2 2^-75 times 1.2 2^-74 is 0.72 2^-148, which as a float32 is 39% too large or too small."""
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(6)])
    with torch.no_grad():
        for layer, weight in zip(net, (2.0**30, 2.0**30, 2.0**29, 1.2 * 2.0**-75, 1.2 * 2.0**-74, 1.0), strict=True):
            layer.weight.fill_(weight)
    graph, params = graph_and_params(trace(net))
    lower, upper = linear_bounds(graph, params, outward_box(torch.ones(1, 1), 0.0), F32)
    output = float(graph.evaluate(params, torch.ones(1, 1)))
    assert float(lower) <= output <= float(upper)


@pytest.mark.parametrize("mapped", [False, True], ids=["loop", "vmap"])
def test_coefficients_that_underflow_inside_a_batch_norm(mapped):
    """The coefficient 2^-67 times the weight 2^-60 may be flushed to 0 before the smallest deviation makes it count.

    Under torch.vmap, as on a GPU, coefficients are multiplied by the weight first.
    """
    norm, last = nn.BatchNorm1d(1, eps=0.0), nn.Linear(1, 1, bias=False)
    norm.running_var.fill_(SMALLEST_VARIANCE)
    with torch.no_grad():
        norm.weight.fill_(2.0**-60)
        last.weight.fill_(2.0**-67)
    large = LARGEST_BOUND * SMALLEST_VARIANCE**0.5 / 8
    net = Functional(lambda self, x: self.last(self.norm(x * large)), norm=norm, last=last).eval()
    graph, params = graph_and_params(trace(net, torch.ones(1, 1)))
    output = float(graph.evaluate(params, torch.ones(1, 1)))
    assert output > 2.0**-31

    def bounds(params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return linear_bounds(graph, params, outward_box(torch.ones(1, 1), 0.0), F32)

    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush subnormal numbers")
    try:
        stacked = {name: torch.stack([tensor, tensor]) for name, tensor in params.items()}
        lower, upper = torch.vmap(bounds)(stacked) if mapped else bounds(params)
    finally:
        torch.set_flush_denormal(False)
    assert float(lower.flatten()[0]) <= output <= float(upper.flatten()[0])


@law(15)
@given(seed=seeds, scale=st.sampled_from([2.0**-140, 2.0**-126, 1e-20, 1.0, 1e6]), eps=st.sampled_from([0.0, 0.01]))
def test_tiny_and_huge_inputs_stay_inside(seed, scale, eps):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(20, 10), nn.LeakyReLU(0.3), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        net[0].bias.mul_(scale)
        net[2].weight.mul_(2.0**28)
    graph, params = graph_and_params(trace(net))
    x = torch.randn(4, 20) * scale
    lower, upper = linear_bounds(graph, params, outward_box(x, eps * scale), F32)
    for point in points_of(*ball(x, eps * scale), 6, seed):
        for order in ORDERS.values():
            ((_, output),) = [run_in_order(graph, params, point, order)[graph.nodes[-1].name]]
            assert bool((output.double() >= lower).all() and (output.double() <= upper).all())


def _residual(small: float) -> nn.Module:
    """relu(h) minus almost itself: coefficients A and -A meet at h, and at the input."""

    def forward(self: Functional, x: Tensor) -> Tensor:
        hidden = self.first(x)
        bent = functional.relu(hidden)
        return self.last(bent - self.second(bent) + 0.5 * functional.relu(hidden) - 0.5 * hidden)

    second = nn.Linear(12, 12)
    with torch.no_grad():
        second.weight.copy_(torch.eye(12) * (1 + small))
        second.bias.zero_()
    return Functional(forward, first=nn.Linear(6, 12), second=second, last=nn.Linear(12, 3))


@law(15)
@given(seed=seeds, small=st.sampled_from([0.0, 2.0**-23, 1e-5]), eps=st.sampled_from([0.0, 1e-6, 0.1]))
def test_coefficients_that_cancel_where_they_meet(seed, small, eps):
    torch.manual_seed(seed)
    net = _residual(small)
    net.input_shape = (6,)
    with torch.no_grad():
        net.first.bias.mul_(1e4)
    graph, params = graph_and_params(trace(net))
    x = torch.randn(3, 6)
    lower, upper = linear_bounds(graph, params, outward_box(x, eps), F32)
    for point in points_of(*ball(x, eps), 6, seed):
        for order in ORDERS.values():
            output = run_in_order(graph, params, point, order)[graph.nodes[-1].name][1].double()
            assert bool((output >= lower).all() and (output <= upper).all())


CHAINS = {
    "leaky": lambda: [nn.LeakyReLU(0.3) for _ in range(9)],
    "steep": lambda: [nn.LeakyReLU(3.0) for _ in range(6)],
    "relu and shape": lambda: [nn.ReLU(), nn.Unflatten(1, (1, 6, 6)), nn.ReLU(), nn.Flatten(), nn.ReLU(), nn.ReLU()],
    "pooling": lambda: [
        nn.Unflatten(1, (1, 6, 6)),
        *[layer for _ in range(5) for layer in (nn.ReLU(), nn.MaxPool2d(3, 1, 1))],
        nn.Flatten(),
    ],
    "mixed": lambda: [nn.LeakyReLU(0.7), nn.ReLU(), nn.Unflatten(1, (1, 6, 6)), nn.MaxPool2d(1), nn.Flatten()] * 3,
}


@pytest.mark.parametrize("chain", CHAINS)
def test_long_chains_of_layers_without_parameters(chain):
    for seed, eps in ((0, 0.0), (1, 1e-6), (2, 0.05)):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(5, 36), *CHAINS[chain](), nn.Linear(36, 3))
        graph, params = graph_and_params(trace(net))
        x = torch.randn(3, 5)
        with direct_sums():
            for slopes in ("zero", "adaptive"):
                lower, upper = linear_bounds(graph, params, outward_box(x, eps), F32, slopes)
                for point in points_of(*ball(x, eps), 8, seed):
                    output = run_in_order(graph, params, point, torch.arange)[graph.nodes[-1].name][1].double()
                    assert bool((output >= lower).all() and (output <= upper).all())
        if eps == 0.0:
            assert float((upper - lower).max()) < 1e-3 * 3 ** (6 * (chain == "steep"))


# And not absurdly loose


@pytest.mark.parametrize(
    ("units", "fraction"), [([784, 64, 10], 0.05), ([784, 64, 32, 10], 0.15), ([3072, 64, 10], 0.15)]
)
def test_rounding_costs_a_small_fraction_of_the_interval(units, fraction):
    """Of random weights, whose sums of magnitudes are large beside what the small radius does."""
    torch.manual_seed(0)
    layers = [part for n, m in pairwise(units) for part in (nn.Linear(n, m), nn.ReLU())][:-1]
    graph, params = graph_and_params(trace(nn.Sequential(*layers)))
    x = torch.rand(2, units[0])
    lower, upper = linear_bounds(graph, params, outward_box(x, 0.01, (0.0, 1.0)), F32)
    double = {name: p.double() for name, p in params.items()}
    low, high = linear_bounds(graph, double, ideal_box(x.double(), 0.01, (0.0, 1.0)))
    assert bool((lower <= low).all() and (upper >= high).all())
    assert float(((upper - lower) / (high - low)).max()) < 1 + fraction


def test_an_image_of_any_size_can_be_shifted():
    """The sum over a large layer's offsets is long, but it is made in float64."""
    net = nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net[0].running_mean.fill_(0.5)
    net.eval()
    graph, params = graph_and_params(trace(net, torch.zeros(1, 3, 96, 96)))
    x = torch.rand(1, 3, 96, 96)
    lower, upper = linear_bounds(graph, params, outward_box(x, 0.0), F32)
    output = graph.evaluate(params, x).double()
    assert bool((output >= lower).all() and (output <= upper).all())
