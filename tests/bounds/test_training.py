"""The backward pass that is written out is that of autograd, for every network of the zoo."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import Box, TrainingPass, ideal_box, interval_bounds, point_and_box
from certibayes.bounds.rounding import smoothed
from certibayes.bounds.rules import activation
from certibayes.networks import trace
from certibayes.networks.batch_norm import clean_pass, training_graph
from certibayes.support.arithmetic import repeatable_kernels

from ..strategies import ZOO, inputs, traced

EPS = 0.1
PASSES = ("both", "points", "boxes")


def sent(passes, x):
    """Inputs of the clean pass and the box."""
    return x if passes != "boxes" else None, ideal_box(x, EPS) if passes != "points" else None


def by_definition(graph, tensors, passes, x, rounding):
    """Centers with points first, and radii, as functions that torch can differentiate."""
    if passes == "points":
        outputs = clean_pass(graph, tensors, x).outputs
        return Box(outputs, outputs[:0])
    if passes == "boxes":
        return interval_bounds(graph, tensors, ideal_box(x, EPS), rounding)
    point, box = point_and_box(graph, tensors, x, ideal_box(x, EPS), rounding)
    return Box(torch.cat([point, box.center]), box.radius)


def derivative_like(output):
    """Another number for each output, so that nothing cancels."""
    center, radius = (torch.linspace(-1.0, 2.0, part.numel(), dtype=part.dtype) for part in output[:2])
    return Box(center.view_as(output.center), radius.flip(0).view_as(output.radius))


def gradient_by_torch(graph, params, constants, passes, x, rounding):
    def total(weights):
        output = by_definition(graph, {**constants, **weights}, passes, x, rounding)
        derivative = derivative_like(output)
        return (output.center * derivative.center).sum() + (output.radius * derivative.radius).sum()

    return torch.func.grad(total)(params)


def agrees(graph, tensors, learned, passes, x, rounding):
    params = {name: tensors[name] for name in learned}
    constants = {name: tensor for name, tensor in tensors.items() if name not in params}
    found = TrainingPass(graph, params, constants, *sent(passes, x), rounding)
    expected = by_definition(graph, tensors, passes, x, rounding)
    torch.testing.assert_close(found.output.center, expected.center, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.output.radius, expected.radius, rtol=1e-12, atol=1e-12)
    gradient = found.gradient(derivative_like(found.output))
    slopes = gradient_by_torch(graph, params, constants, passes, x, rounding)
    assert list(gradient) == list(params)
    for name in params:
        torch.testing.assert_close(gradient[name], slopes[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("tau", [0.0, 0.01])
@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("name", ZOO)
def test_the_gradient_is_that_of_autograd(name, passes, tau):
    graph, tensors = traced(name, dtype=torch.float64)
    agrees(graph, tensors, graph.parameters, passes, inputs(name, 3, 1, torch.float64), smoothed(tau))


@pytest.mark.parametrize("name", ["relu", "residual", "batch norm on images"])
def test_any_of_the_parameters_may_be_constants(name):
    graph, tensors = traced(name, dtype=torch.float64)
    x = inputs(name, 3, 1, torch.float64)
    for learned in graph.parameters:
        agrees(graph, tensors, [learned], "both", x, smoothed(0.0))


@pytest.mark.parametrize("tau", [0.0, 0.01])
@pytest.mark.parametrize("passes", ["both", "points"])
@pytest.mark.parametrize("name", [name for name in ZOO if "norm" in name and "batch" in name])
def test_statistics_of_the_batch_have_the_gradient_of_autograd(name, passes, tau):
    graph, tensors = traced(name, dtype=torch.float64)
    agrees(training_graph(graph), tensors, graph.parameters, passes, inputs(name, 5, 1, torch.float64), smoothed(tau))


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("name", ["relu", "residual", "batch norm on images"])
def test_what_a_gpu_computes_has_the_gradient_of_autograd(name, passes, monkeypatch):
    monkeypatch.setattr(activation, "is_fused", lambda *tensors, mapped=False: True)
    graph, tensors = traced(name, dtype=torch.float64)
    agrees(graph, tensors, graph.parameters, passes, inputs(name, 3, 1, torch.float64), smoothed(0.0))


class Odd(nn.Module):
    """A layer that is used twice, and the sum of a value with itself."""

    def __init__(self):
        super().__init__()
        self.twice, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.relu(self.twice(x))
        h = torch.tanh(self.twice(h)) + h
        return self.last(h + h)


def test_derivatives_add_up_where_a_value_or_a_weight_is_used_twice():
    torch.manual_seed(0)
    network = trace(Odd().double(), torch.rand(2, 4, dtype=torch.float64))
    tensors = {**network.buffers, **network.params}
    agrees(network.graph, tensors, network.params, "both", torch.rand(3, 4, dtype=torch.float64), smoothed(0.0))


def test_weights_of_zero_have_the_derivative_of_autograd():
    graph, tensors = traced("relu", dtype=torch.float64)
    for name in graph.parameters:
        tensors[name].flatten()[::2] = 0.0
    agrees(graph, tensors, graph.parameters, "both", inputs("relu", 3, 1, torch.float64), smoothed(0.0))


@pytest.mark.parametrize("name", ["relu", "residual", "batch norm on images"])
def test_networks_go_through_vmap(name, recwarn):
    graph, tensors = traced(name, dtype=torch.float64)
    x = inputs(name, 3, 1, torch.float64)
    constants = {key: tensor for key, tensor in tensors.items() if key not in graph.parameters}
    stacked = {key: torch.stack([tensors[key], 1.5 * tensors[key]]) for key in graph.parameters}

    def gradient(params):
        found = TrainingPass(graph, params, constants, *sent("both", x))
        return found.gradient(derivative_like(found.output))

    many = torch.vmap(gradient)(stacked)
    for index in range(2):
        one = gradient({key: tensor[index] for key, tensor in stacked.items()})
        for key in one:
            torch.testing.assert_close(many[key][index], one[key], rtol=1e-12, atol=1e-12)
    # Torch warns where vmap has no rule and makes a loop.
    assert not [str(warning.message) for warning in recwarn if "performance" in str(warning.message)]


def test_layers_that_are_watched_show_their_uses():
    graph, tensors = traced("relu", dtype=torch.float64)
    x = inputs("relu", 3, 1, torch.float64)
    layers = [node for node in graph.nodes if node.roles]
    found = TrainingPass(graph, {}, tensors, *sent("both", x), watched=frozenset(node.name for node in layers))
    derivative = derivative_like(found.output)
    assert found.gradient(derivative) == {}
    assert found.uses.keys() == {node.name for node in layers}
    expected = gradient_by_torch(graph, {name: tensors[name] for name in graph.parameters}, {}, "both", x, smoothed(0))
    for node in layers:
        value, slope = found.uses[node.name]
        assert value.center.shape[0] == slope.center.shape[0] == 6
        torch.testing.assert_close(slope.center.sum(0), expected[node.roles["bias"]])
    torch.testing.assert_close(found.uses[layers[-1].name].derivative.center, derivative.center)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestRoundedProducts:
    """On a GPU convolutions may round what they multiply; what comes out has the precision that went in."""

    @staticmethod
    def gradient(precision, watched=frozenset()):
        network = trace(
            cb.networks.cnn7((3, 32, 32), channels=16, seed=0).cuda(), torch.rand(2, 3, 32, 32, device="cuda")
        )
        x = torch.rand(64, 3, 32, 32, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
        params, constants = network.params, network.buffers
        graph = training_graph(network.graph)
        images = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), repeatable_kernels(precision):
            passes = TrainingPass(graph, params, constants, images, ideal_box(images, 2 / 255), watched=watched)
            assert passes.output.center.dtype == passes.output.radius.dtype == torch.float32
            output = Box(passes.output.center.clone(), passes.output.radius.clone())
            derivative = Box(output.center.softmax(-1) / 64, torch.ones_like(output.radius) / 64)
            return output, passes.gradient(derivative), passes.uses

    @pytest.mark.parametrize("precision, error", [("high", 0.02), ("medium", 0.1)])
    def test_the_gradient_is_near_that_of_full_precision(self, precision, error):
        exact, slopes, _ = self.gradient("highest")
        rounded, near, _ = self.gradient(precision)
        for one, other in ((exact.center, rounded.center), (exact.radius, rounded.radius)):
            assert float((one - other).norm() / one.norm()) < error
        for name, slope in slopes.items():
            assert near[name].dtype == torch.float32
            # Batch norm takes the biases of convolutions out again: their gradients are rounding errors.
            if float(slope.norm()) > 1e-4:
                assert float((slope - near[name]).norm() / slope.norm()) < 5 * error, name

    def test_what_is_watched_has_the_precision_that_went_in(self):
        network = trace(cb.networks.cnn7((3, 32, 32), channels=16, seed=0), torch.rand(2, 3, 32, 32))
        names = frozenset(node.name for node in network.graph.nodes if "weight" in node.roles)
        _, _, uses = self.gradient("medium", names)
        for use in uses.values():
            assert {part.dtype for part in (*use.value[:2], *use.derivative[:2])} == {torch.float32}
