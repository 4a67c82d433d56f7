"""CROWN's bounds on the layers in between: they hold, they are not wider than intervals, and deep networks gain."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.bounds import IDEAL, LinearBounder, ideal_box, layer_boxes, linear_bounds, outward, outward_box
from certibayes.bounds.intermediate import (
    KINKED,
    NONLINEAR,
    box_between_ends,
    crown_boxes,
    first_layers,
    narrowed_layers,
)
from certibayes.bounds.registry import registered
from certibayes.networks import direct_sums, trace
from certibayes.networks.operations import Add

from ..strategies import (
    ZOO,
    Functional,
    attacked_points,
    ball,
    fractions,
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
@given(seed=seeds, eps=st.sampled_from([0.0, 1e-3, 0.1, 0.5]), steps=st.sampled_from([0, 2]))
def test_every_layer_of_every_network_stays_inside(name, seed, eps, steps):
    """In floats, without tolerance: all values in between, of points of the ball and of attacks."""
    graph, params = traced(name, seed)
    x, rounding = inputs(name, 2, seed), outward(torch.float32)
    with torch.no_grad(), direct_sums():
        boxes = layer_boxes(graph, params, outward_box(x, eps), rounding)
        boxes = crown_boxes(graph, params, boxes, rounding, 16, steps=steps)
        lower, upper = linear_bounds(graph, params, outward_box(x, eps), rounding, boxes=boxes)
    points = torch.cat([points_of(*ball(x, eps), 24, seed), x[None]])
    if eps > 0:
        points = torch.cat([points, attacked_points(lambda z: graph.evaluate(params, z), *ball(x, eps))])
    seen = {}

    def watch(node, values, output):
        seen[node.name] = output.double().unflatten(0, points.shape[:2])
        return output

    with torch.no_grad(), direct_sums():
        outputs = graph.evaluate(params, points.flatten(0, 1), watch).double().flatten(1).unflatten(0, points.shape[:2])
    assert (lower <= outputs).all()
    assert (outputs <= upper).all()
    for node in graph.nodes:
        low, high = boxes[node.name].ends()
        assert (low <= seen[node.name]).all()
        assert (seen[node.name] <= high).all()


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
    with pytest.raises(cb.errors.InvalidInput, match="intermediates must be one of ibp, crown, alpha-crown, auto"):
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


def _is_affine(operation, weights, shapes):
    """Whether the image of a mean of inputs is the mean of their images, on wide random inputs."""
    generator = torch.Generator().manual_seed(0)
    one, other = (
        [4 * torch.randn(64, *shape, generator=generator, dtype=torch.float64) for shape in shapes] for _ in range(2)
    )
    middle = [(a + b) / 2 for a, b in zip(one, other, strict=True)]
    ends = (operation.evaluate(weights, *one) + operation.evaluate(weights, *other)) / 2
    return torch.allclose(operation.evaluate(weights, *middle), ends)


def test_every_operation_that_is_not_affine_has_its_inputs_narrowed():
    """A rule for a new activation that is missing in ``NONLINEAR`` fails here, as does one without a network."""
    seen = {}
    for name in ZOO:
        graph, params = traced(name, 0, torch.float64)
        shapes = {"input": graph.input_shape, **{node.name: node.shape for node in graph.nodes}}
        for node in graph.nodes:
            inside = [shapes.get(source, graph.input_shape) for source in node.inputs]
            affine = _is_affine(node.operation, node.weights(params), inside)
            seen[type(node.operation)] = seen.get(type(node.operation), True) and affine
    ours = {kind for kind in registered() if kind.__module__.startswith("certibayes.")}
    assert ours <= seen.keys(), "the test networks lack an operation"
    assert {kind for kind, affine in seen.items() if not affine} == set(NONLINEAR)


@pytest.mark.parametrize("kind", KINKED)
def test_kinked_operations_are_linear_on_either_side_of_zero(kind):
    for name in ZOO:
        graph, params = traced(name, 0, torch.float64)
        for node in graph.nodes:
            if isinstance(node.operation, kind):
                z = torch.rand(2, 8, *node.shape, dtype=torch.float64) * 5
                for a, b in (z, -z):
                    at = [node.operation.evaluate(node.weights(params), value) for value in (a, b, (a + b) / 2)]
                    torch.testing.assert_close(at[2], (at[0] + at[1]) / 2)


def test_boxes_that_are_known_are_not_found_again(monkeypatch):
    graph, params = graph_and_params(trace(deep()))
    x, rounding = torch.rand(4, 6), outward(torch.float32)
    with torch.no_grad():
        boxes = layer_boxes(graph, params, outward_box(x, 0.1), rounding)
        tight = crown_boxes(graph, params, boxes, rounding)
        known = {name: tight[name] for name in narrowed_layers(graph)}
        monkeypatch.setattr(LinearBounder, "at_input", None)
        again = crown_boxes(graph, params, boxes, rounding, known=known)
    assert len(known) == 3
    for name, box in tight.items():
        assert torch.equal(again[name].center, box.center) and torch.equal(again[name].radius, box.radius)


def test_optimized_slopes_make_them_tighter_and_start_from_what_is_known():
    graph, params = graph_and_params(trace(deep().double(), torch.zeros(1, 6, dtype=torch.float64)))
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        boxes = layer_boxes(graph, params, ideal_box(x, 0.2), IDEAL)
        plain = crown_boxes(graph, params, boxes)
        optimized = crown_boxes(graph, params, boxes, steps=10)
        known = {name: plain[name] for name in narrowed_layers(graph)}
        begun = crown_boxes(graph, params, boxes, known=known, steps=10)
        widths = [linear_bounds(graph, params, ideal_box(x, 0.2), boxes=b) for b in (plain, optimized, begun)]
    for name, box in plain.items():
        assert (begun[name].radius <= box.radius + 1e-9).all()
    widths = [float((upper - lower).mean()) for lower, upper in widths]
    assert widths[1] < 0.97 * widths[0]
    assert abs(widths[2] - widths[1]) < 0.02 * widths[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@law(20)
@given(seed=seeds, width=st.sampled_from([0.0, 1e-9, 1e-3, 1.0, 1e6]), scale=st.sampled_from([1e-42, 1.0, 1e20]))
def test_a_box_between_two_ends_holds_both_exactly(dtype, seed, width, scale):
    """Ends are float64 numbers, whose center and radius the network's precision seldom has."""
    rng = torch.Generator().manual_seed(seed)
    low = scale * torch.randn(200, generator=rng, dtype=torch.float64)
    high = low + width * scale * torch.rand(200, generator=rng, dtype=torch.float64)
    box = box_between_ends(low[None], high[None], dtype, outward(dtype))
    assert box.center.dtype == box.radius.dtype == dtype
    rows = zip(*(fractions(part) for part in (low, high, box.center[0], box.radius[0])), strict=True)
    assert all(c - r <= one and other <= c + r for one, other, c, r in rows)
