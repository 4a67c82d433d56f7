"""CROWN's bounds on the layers in between: they hold, they are not wider than intervals, and deep networks gain."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.bounds import IDEAL, LinearBounder, ideal_box, layer_boxes, linear_bounds, outward, outward_box
from certibayes.bounds.intermediate import crown_boxes, first_layers
from certibayes.networks import direct_sums, trace
from certibayes.networks.operations import Add

from ..strategies import (
    ZOO,
    Functional,
    attacked_points,
    ball,
    graph_and_params,
    inputs,
    law,
    points_of,
    randomise_statistics,
    seeds,
    traced,
)


@pytest.mark.parametrize("name", sorted(ZOO))
@law(2)
@given(seed=seeds, eps=st.sampled_from([0.0, 1e-3, 0.1, 0.5]))
def test_every_layer_of_every_network_stays_inside(name, seed, eps):
    """In floats, without tolerance: all values in between, of points of the ball and of attacks."""
    graph, params = traced(name, seed)
    x, rounding = inputs(name, 2, seed), outward(torch.float32)
    with torch.no_grad(), direct_sums():
        boxes = crown_boxes(graph, params, layer_boxes(graph, params, outward_box(x, eps), rounding), rounding, 16)
        lower, upper = linear_bounds(graph, params, outward_box(x, eps), rounding, boxes=boxes)
    points = torch.cat([points_of(*ball(x, eps), 24, seed), x[None]])
    if eps > 0:
        points = torch.cat([points, attacked_points(lambda z: graph.evaluate(params, z), *ball(x, eps))])
    seen = {}

    def watch(node, values, output):
        seen[node.name] = output
        return output

    with torch.no_grad(), direct_sums():
        for z in points:
            outputs = graph.evaluate(params, z, watch).double().flatten(1)
            assert (lower <= outputs).all()
            assert (outputs <= upper).all()
            for node in graph.nodes:
                low, high = boxes[node.name].ends()
                assert (low <= seen[node.name].double()).all()
                assert (seen[node.name].double() <= high).all()


@pytest.mark.parametrize("name", ["relu", "tanh", "residual", "convolution, stride and padding"])
def test_they_are_not_wider_than_intervals(name):
    assert name in ZOO
    graph, params = traced(name, 0, torch.float64)
    x = inputs(name, 3, 0).double()
    with torch.no_grad():
        boxes = layer_boxes(graph, params, ideal_box(x, 0.3), IDEAL)
        tight = crown_boxes(graph, params, boxes)
    for node in graph.nodes:
        assert (tight[node.name].lower >= boxes[node.name].lower - 1e-9).all()
        assert (tight[node.name].upper <= boxes[node.name].upper + 1e-9).all()


def deep():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(6, 20), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Linear(20, 20), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(20, 4))


def test_deep_networks_gain_and_shallow_ones_pay_nothing():
    network = trace(deep().double(), torch.zeros(1, 6, dtype=torch.float64))
    x = torch.rand(4, 6, dtype=torch.float64)
    with torch.no_grad():
        boxes = layer_boxes(network.graph, network.params, ideal_box(x, 0.1), IDEAL)
        tight = crown_boxes(network.graph, network.params, boxes)
        plain = linear_bounds(network.graph, network.params, ideal_box(x, 0.1))
        better = linear_bounds(network.graph, network.params, ideal_box(x, 0.1), boxes=tight)
    assert (better[1] - better[0]).mean() < 0.7 * (plain[1] - plain[0]).mean()
    shallow = trace(nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 4)).double(), x[:1])
    with torch.no_grad():
        boxes = layer_boxes(shallow.graph, shallow.params, ideal_box(x, 0.1), IDEAL)
        assert torch.equal(crown_boxes(shallow.graph, shallow.params, boxes)["_0"].radius, boxes["_0"].radius)


@pytest.mark.parametrize("method", [cb.Theorem1, cb.Elided, cb.Joint, cb.Best])
def test_certify_proves_more_with_them(method):
    predictor = cb.Samples.from_modules([deep()]).predictor(1)
    x = torch.rand(60, 6, generator=torch.Generator().manual_seed(1))
    plain = cb.certify(predictor, x, eps=0.3, method=method("crown"))
    better = cb.certify(predictor, x, eps=0.3, method=method("crown", "crown"))
    assert (better.certified | ~plain.certified).all()
    assert int(better.certified.sum()) > int(plain.certified.sum())
    assert cb.attack(predictor, x[better.certified], eps=0.3).robust_accuracy == 1.0


def test_unknown_ones_are_refused():
    with pytest.raises(cb.errors.InvalidInput, match="intermediates must be one of ibp, crown, auto"):
        cb.Theorem1("crown", intermediates="magic")


def test_a_sum_with_the_input_is_bounded_like_any_other_layer():
    """What is added to the input is as deep as any layer, whichever of the two is written first."""

    def around(forward):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = Functional(forward, first=nn.Linear(4, 4), second=nn.Linear(4, 4), last=nn.Linear(4, 3))
        net.input_shape = (4,)
        graph, params = graph_and_params(trace(net.double()))
        x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        with torch.no_grad():
            boxes = crown_boxes(graph, params, layer_boxes(graph, params, ideal_box(x, 0.5), IDEAL))
        return next(boxes[node.name].radius for node in graph.nodes if isinstance(node.operation, Add))

    before = around(lambda net, x: net.last(torch.relu(x + net.second(torch.relu(net.first(x))))))
    after = around(lambda net, x: net.last(torch.relu(net.second(torch.relu(net.first(x))) + x)))
    torch.testing.assert_close(before, after)


def test_intervals_of_the_first_layer_are_known_to_be_exact():
    """With what normalizes around it: CROWN would find the same ends again."""
    net = nn.Sequential(
        cb.networks.Normalize([0.4, 0.6], [0.3, 0.2]), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(),
        nn.Conv2d(3, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3),
    )  # fmt: skip
    net.input_shape = (2, 6, 6)
    graph, params = graph_and_params(trace(randomise_statistics(net.double()).eval()))
    exact = first_layers(graph)
    assert exact - {"input"} == {node.name for node in graph.nodes[:3]}
    x = torch.rand(2, 2, 6, 6, dtype=torch.float64)
    boxes = layer_boxes(graph, params, ideal_box(x, 0.1))
    name = graph.nodes[2].name
    bounder = LinearBounder(replace(graph, nodes=graph.nodes[:3]), params, boxes)
    unit = torch.eye(48, dtype=torch.float64).view(48, 3, 4, 4).expand(2, 48, 3, 4, 4)
    torch.testing.assert_close(bounder.at_input(unit), boxes[name].lower.flatten(1))
