"""Receptive fields: bounds over windows are those over the whole network, and hold as floats compute both."""

import copy
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.bounds import IDEAL, ideal_box, layer_boxes, linear_bounds, outward, outward_box, windows
from certibayes.bounds import intermediate as intermediate_bounds
from certibayes.bounds.intermediate import crown_boxes
from certibayes.bounds.windows import receptive_field
from certibayes.networks import direct_sums, trace
from certibayes.networks.operations import Conv2d

from ..strategies import attacked_points, ball, fractions, graph_and_params, law, points_of, randomise_statistics, seeds
from .exact_cases import range_on_interval

SHAPE = (2, 9, 8)


def _net(*layers: nn.Module) -> nn.Module:
    body = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
    features = body(torch.zeros(1, *SHAPE)).shape[1]
    net = nn.Sequential(*body, nn.Linear(features, 3))
    net.input_shape = SHAPE
    return net


NETS = {
    "valid": lambda: _net(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3)),
    "padded": lambda: _net(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, padding=2)),
    "strided": lambda: _net(nn.Conv2d(2, 3, 4, 2, 1), nn.ReLU(), nn.Conv2d(3, 4, (2, 3), (2, 1), (1, 2))),
    "dilated, groups": lambda: _net(
        nn.Conv2d(2, 4, 2, padding=1, dilation=2, groups=2, bias=False), nn.LeakyReLU(0.2), nn.Conv2d(4, 4, 3, 2, 1)
    ),
    "three": lambda: _net(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, 3, 1, 1), nn.Tanh(), nn.Conv2d(3, 2, 3, 2, 1)
    ),
    "batch norm": lambda: randomise_statistics(
        _net(
            cb.networks.Normalize([0.4, 0.6], [0.3, 0.2]),
            nn.Conv2d(2, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Conv2d(3, 3, 3, padding=1),
            nn.BatchNorm2d(3),
        )
    ),
}
every_net = pytest.mark.parametrize("name", NETS)


@pytest.fixture(autouse=True)
def always_worth_it(monkeypatch):
    monkeypatch.setattr(windows, "WORTH", 100.0)


def network(name: str, seed: int, dtype: torch.dtype = torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = NETS[name]().to(dtype).eval()
    net.input_shape = SHAPE
    x = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(seed + 1), dtype=dtype)
    return *graph_and_params(trace(net)), x


def windowed_layers(graph, params, boxes):
    """Names of the convolutions that have receptive fields."""
    parts = [replace(graph, nodes=graph.nodes[: i + 1]) for i in range(len(graph.nodes))]
    return [part.nodes[-1].name for part in parts if receptive_field(part, params, boxes) is not None]


@every_net
@law(4)
@given(seed=seeds, eps=st.sampled_from([0.0, 0.01, 0.1, 0.5]))
def test_they_are_what_the_whole_network_gives(name, seed, eps):
    """In float64 and exact arithmetic both say the same, unit by unit."""
    graph, params, x = network(name, seed, torch.float64)
    boxes = layer_boxes(graph, params, ideal_box(x, eps), IDEAL)
    convolutions = [node.name for node in graph.nodes if isinstance(node.operation, Conv2d)]
    assert windowed_layers(graph, params, boxes) == convolutions
    by_windows = crown_boxes(graph, params, boxes, IDEAL, at_once=5000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intermediate_bounds, "receptive_field", lambda *_: None)
        whole = crown_boxes(graph, params, boxes, IDEAL)
    for node in graph.nodes:
        torch.testing.assert_close(by_windows[node.name].lower, whole[node.name].lower, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(by_windows[node.name].upper, whole[node.name].upper, rtol=1e-9, atol=1e-9)


@every_net
@law(4)
@given(seed=seeds, eps=st.sampled_from([0.0, 1e-7, 1e-3, 0.1, 0.5]), steps=st.sampled_from([0, 2]))
def test_no_value_of_any_layer_leaves_its_box(name, seed, eps, steps):
    """In float32, without tolerance, in every batch size."""
    graph, params, x = network(name, seed)
    rounding = outward(torch.float32)
    with torch.no_grad(), direct_sums():
        boxes = layer_boxes(graph, params, outward_box(x, eps), rounding)
        boxes = crown_boxes(graph, params, boxes, rounding, steps=steps)
    points = torch.cat([points_of(*ball(x, eps), 12, seed), x[None]])
    if eps > 0:
        points = torch.cat([points, attacked_points(lambda z: graph.evaluate(params, z), *ball(x, eps))])

    def watch(node, values, output):
        low, high = boxes[node.name].ends()
        found = output.double().unflatten(0, (-1, len(x)))
        assert (low <= found).all()
        assert (found <= high).all()
        return output

    with torch.no_grad(), direct_sums():
        for batch in (points.flatten(0, 1), points[0]):
            graph.evaluate(params, batch, watch)


def test_only_units_that_may_have_either_sign_are_bounded(monkeypatch):
    graph, params, x = network("padded", 0)
    boxes = layer_boxes(graph, params, ideal_box(x, 0.02))
    name = next(node.name for node in graph.nodes[1:] if isinstance(node.operation, Conv2d))
    unstable = (boxes[name].lower < 0) & (boxes[name].upper > 0)
    asked = []
    over_windows = intermediate_bounds._Layer._over_windows

    def watched(self, how, field, rows):
        asked.append(rows[0])
        return over_windows(self, how, field, rows)

    monkeypatch.setattr(intermediate_bounds._Layer, "_over_windows", watched)
    tight = crown_boxes(graph, params, boxes)
    assert torch.equal(asked[0], unstable.flatten(1).nonzero())
    assert len(asked[1]) < len(asked[0]) < unstable.numel()
    stable = ~unstable
    assert torch.equal(tight[name].center[stable], boxes[name].center[stable])
    assert torch.equal(tight[name].radius[stable], boxes[name].radius[stable])


@every_net
def test_windows_are_left_alone_where_they_are_as_large_as_the_image(name, monkeypatch):
    graph, params, x = network(name, 0)
    monkeypatch.setattr(windows, "WORTH", 0.0)
    assert windowed_layers(graph, params, layer_boxes(graph, params, ideal_box(x, 0.1))) == []


def test_a_ball_and_other_layers_are_for_the_whole_network():
    graph, params, x = network("padded", 0)
    region = cb.regions.InputRegion.around(x, 0.3, norm="l2")
    boxes = layer_boxes(graph, params, region.ideal_box())
    assert windowed_layers(graph, params, boxes) == []
    pooled = _net(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2))
    graph, params = graph_and_params(trace(pooled))
    boxes = layer_boxes(graph, params, ideal_box(x, 0.1))
    assert windowed_layers(graph, params, boxes) == [graph.nodes[0].name]


def dense_layers(net: nn.Sequential, pixel: int, x: torch.Tensor) -> list:
    """Exact layers of a network as a function of one pixel alone: convolutions as the matrices that they are."""
    layers, size = [], (1, 4, 4)
    for module in net:
        if not isinstance(module, (nn.Conv2d, nn.Linear)):
            continue
        shape = size if isinstance(module, nn.Conv2d) else (math.prod(size),)
        units = torch.eye(math.prod(size), dtype=torch.float64).view(-1, *shape)
        # Each output of a unit vector is one weight, or the sum of zeros: nothing is rounded.
        zero = module.double()(torch.zeros(1, *shape, dtype=torch.float64))
        bare = type(module).forward(_without_bias(module), units).detach()
        layers.append((fractions(bare.flatten(1).T.contiguous()), fractions(zero.detach().flatten())))
        size = tuple(zero.shape[1:])
    (weight, bias), values = layers[0], fractions(x.flatten())
    values[pixel] = Fraction(0)
    fixed = [b + sum(w * v for w, v in zip(row, values, strict=True)) for row, b in zip(weight, bias, strict=True)]
    return [([[row[pixel]] for row in weight], fixed), *layers[1:]]


def _without_bias(module: nn.Module) -> nn.Module:
    bare = copy.deepcopy(module)
    bare.bias.data.zero_()
    return bare


@law(6)
@given(seed=seeds, eps=st.sampled_from([0.0, 0.1, 0.7]), pixel=st.integers(0, 15), steps=st.sampled_from([0, 4]))
def test_exact_ranges_of_tiny_networks_are_contained(seed, eps, pixel, steps):
    """All inputs of activations, and the outputs, over one pixel, in rational arithmetic."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(1, 2, 2, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(18, 2),
        )  # fmt: skip
    net.input_shape = (1, 4, 4)
    graph, params = graph_and_params(trace(net))
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    radii = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    radii.view(-1)[pixel] = eps
    middle = Fraction(float(x.view(-1)[pixel]))
    layers = dense_layers(copy.deepcopy(net), pixel, x)
    for dtype in (torch.float32, torch.float64):
        rounding = outward(dtype)
        weights = {name: value.to(dtype) for name, value in params.items()}
        box = cb.regions.InputRegion.around(x.to(dtype), radii).outward_box(dtype)
        boxes = layer_boxes(graph, weights, box, rounding)
        boxes = crown_boxes(graph, weights, boxes, rounding, steps=steps)
        for depth, node in enumerate((graph.nodes[0], graph.nodes[2])):
            exact = range_on_interval(layers[: depth + 1], Fraction(0), middle - Fraction(eps), middle + Fraction(eps))
            low, high = boxes[node.name].ends()
            for down, up, (smallest, most) in zip(
                fractions(low.flatten()), fractions(high.flatten()), exact, strict=True
            ):
                assert down <= smallest and most <= up
        exact = range_on_interval(layers, Fraction(0), middle - Fraction(eps), middle + Fraction(eps))
        for slopes in ("zero", "adaptive"):
            lower, upper = linear_bounds(graph, weights, box, rounding, slopes, boxes)
            for down, up, (smallest, most) in zip(fractions(lower[0]), fractions(upper[0]), exact, strict=True):
                assert down <= smallest and most <= up
