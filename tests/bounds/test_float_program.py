"""Law 1 at eps = 0: whatever way the float32 program is run, its outputs lie inside its own bounds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from certibayes.bounds import interval_bounds, outward, outward_box
from certibayes.networks import direct_sums, trace

from ..strategies import ZOO, assert_inside, graph_and_params, input_shape, inputs, law, seeds, threads, traced
from .float_programs import run_otherwise

F32 = outward(torch.float32)
BATCH_SIZES = (1, 3, 7, 64, 500)


def _bounds(graph, params, x):
    with direct_sums():
        return interval_bounds(graph, params, outward_box(x, 0.0), F32)


def _outputs(graph, params, x, batch_size):
    with direct_sums():
        return torch.cat([graph.evaluate(params, part) for part in x.split(batch_size)])


@pytest.mark.parametrize("name", ZOO)
def test_outputs_lie_inside_for_every_batch_size_and_thread_count(name):
    graph, params = traced(name, 1)
    x = inputs(name, 128, 1)
    box = _bounds(graph, params, x)
    for count in (1, 2):
        with threads(count):
            for batch_size in BATCH_SIZES:
                part = x if batch_size > 1 else x[:16]
                outputs = _outputs(graph, params, part, batch_size)
                assert_inside(outputs, type(box)(box.center[: len(part)], box.radius[: len(part)]))


@pytest.mark.parametrize("name", ZOO)
@law(8)
@given(
    seed=seeds,
    weights=st.sampled_from([1e-6, 1e-3, 1.0, 1e2, 1e3]),
    points=st.sampled_from([1e-30, 1e-6, 1e-2, 1.0, 1e3, 1e6]),
)
def test_outputs_lie_inside_at_every_scale(name, seed, weights, points):
    graph, params = traced(name, seed)
    scaled = {key: value * weights if key in graph.parameters else value for key, value in params.items()}
    if name == "arithmetic":
        scaled["divisor"] = params["divisor"]  # dividing by 1e-6 five times over leaves the floats
    x = inputs(name, 30, seed, scale=points)
    box = _bounds(graph, scaled, x)
    for batch_size in (1, 7):
        assert_inside(_outputs(graph, scaled, x, batch_size), box)


@pytest.mark.parametrize("name", [name for name in ZOO if len(input_shape(name)) == 3])
def test_outputs_lie_inside_in_other_memory_formats(name):
    graph, params = traced(name, 2)
    x = inputs(name, 32, 2)
    box = _bounds(graph, params, x)
    strange = torch.stack([x, x], -1)[..., 0]
    assert not strange.is_contiguous()
    for other in (x.to(memory_format=torch.channels_last), strange, x.transpose(2, 3).contiguous().transpose(2, 3)):
        assert_inside(_outputs(graph, params, other, 32), box)
        assert_inside(_outputs(graph, params, x, 32), _bounds(graph, params, other))


@pytest.mark.parametrize("name", [name for name in ZOO if len(input_shape(name)) == 1])
def test_outputs_lie_inside_for_transposed_inputs(name):
    graph, params = traced(name, 2)
    x = inputs(name, 32, 2)
    assert_inside(_outputs(graph, params, x.T.contiguous().T, 32), _bounds(graph, params, x))


@pytest.mark.parametrize("outputs", [1, 10, 300])
def test_wide_layers(outputs):
    torch.manual_seed(0)
    network = trace(nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, outputs)))
    graph, params = graph_and_params(network)
    x = torch.randn(40, 2048)
    box = _bounds(graph, params, x)
    for batch_size in (1, 7, 40):
        assert_inside(_outputs(graph, params, x, batch_size), box)


@law(15)
@given(seed=seeds, scale=st.sampled_from([1.0, 1e-10, 1e-20, 1e6]))
def test_sums_that_cancel(seed, scale):
    """Large terms that add up to almost nothing, so the result is all rounding error."""
    torch.manual_seed(seed)
    half = torch.randn(4, 300) * scale
    layer = nn.Linear(601, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.cat([half, -half, torch.full((4, 1), 1e-7 * scale)], 1))
        layer.bias.zero_()
    x = torch.randn(20, 300)
    x = torch.cat([x, x, torch.ones(20, 1)], 1)
    graph, params = graph_and_params(trace(layer))
    box = _bounds(graph, params, x)
    for batch_size in (1, 3, 20):
        assert_inside(_outputs(graph, params, x, batch_size), box)
    order = torch.randperm(601)
    shuffled = {**params, "weight": params["weight"][:, order]}
    assert_inside(_outputs(graph, shuffled, x[:, order], 20), box)


# The bounds promise more than torch's own kernels need: any order of summation and any textbook formula.


@pytest.mark.parametrize("name", ZOO)
@law(4)
@given(seed=seeds, scale=st.sampled_from([1e-20, 1e-3, 1.0, 1e4]))
def test_outputs_of_other_float_programs_lie_inside(name, seed, scale):
    torch.manual_seed(seed)  # of the random orders
    graph, params = traced(name, seed)
    x = inputs(name, 8, seed, scale=scale)
    box = _bounds(graph, params, x)
    for order in (torch.arange, lambda n: torch.arange(n).flip(0), torch.randperm):
        assert_inside(run_otherwise(graph, params, x, order), box)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_sum_that_stagnates(sign):
    """Added to 1 one after the other, halves of a unit are all lost; added first, they do not."""
    n = 4096
    layer = nn.Linear(n, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(sign * 2.0**-24)
        layer.weight[0, 0] = sign
    graph, params = graph_and_params(trace(layer))
    x = torch.ones(1, n)
    box = _bounds(graph, params, x)
    for order in (torch.arange, lambda k: torch.arange(k).flip(0)):
        assert_inside(run_otherwise(graph, params, x, order), box)
    deviation = abs(float(run_otherwise(graph, params, x, torch.arange)) - sign * (1 + (n - 1) * 2.0**-24))
    assert deviation > 1e-4  # the law was worth testing


@law(10)
@given(seed=seeds, scale=st.sampled_from([2.0**-149, 2.0**-140, 2.0**-126, 1e-30]))
def test_underflow(seed, scale):
    """Inputs and weights whose products are subnormal or underflow."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(50, 20), nn.LeakyReLU(0.3), nn.Linear(20, 3))
    with torch.no_grad():
        net[0].weight.mul_(1e-5)
        net[0].bias.mul_(scale)
        net[2].weight.mul_(2.0**29)
    graph, params = graph_and_params(trace(net))
    x = torch.randn(10, 50) * scale
    box = _bounds(graph, params, x)
    for batch_size in (1, 10):
        assert_inside(_outputs(graph, params, x, batch_size), box)
    assert_inside(run_otherwise(graph, params, x, torch.randperm), box)


def test_flushing_subnormals_is_covered_in_affine_layers():
    torch.set_flush_denormal(False)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 3))
    with torch.no_grad():
        net[0].bias.zero_()
    graph, params = graph_and_params(trace(net))
    x = torch.randn(10, 50) * 2.0**-126
    box = _bounds(graph, params, x)
    try:
        torch.set_flush_denormal(True)
        outputs = _outputs(graph, params, x, 10)
    finally:
        torch.set_flush_denormal(False)
    assert_inside(outputs, box)
