"""Tracing: the graph computes what the module computes, and the module is left alone."""

import copy
import json
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from torch import nn
from torch.nn import functional

import certibayes as cb
from certibayes.networks import Graph, Normalize, trace
from certibayes.networks.operations import Operation, Reshape

from ..strategies import ZOO, Functional, generator, graph_and_params, inputs, law, make, randomise_statistics, seeds

IMAGE = (4, 7, 7)
VECTOR = (6,)


def _agree(module: nn.Module, shape: tuple[int, ...], seed: int = 0) -> Graph:
    """Assert that graph and module agree on random inputs in float64, and return the graph."""
    module = module.double().eval()
    x = torch.randn(5, *shape, generator=generator(seed), dtype=torch.float64)
    network = trace(module, x)
    graph, params = graph_and_params(network)
    with torch.no_grad():
        torch.testing.assert_close(graph.evaluate(params, x), module(x))
    return graph


def _flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten())


MODULES = {
    "Linear": (lambda: nn.Linear(6, 4), VECTOR),
    "Linear without bias": (lambda: nn.Linear(6, 4, bias=False), VECTOR),
    "Conv2d": (lambda: _flat(nn.Conv2d(4, 3, 3)), IMAGE),
    "Conv2d, oblong": (lambda: _flat(nn.Conv2d(4, 3, (3, 2), stride=(2, 1), padding=(1, 0), bias=False)), IMAGE),
    "Conv2d, dilation": (lambda: _flat(nn.Conv2d(4, 3, 3, dilation=(1, 2))), IMAGE),
    "Conv2d, groups": (lambda: _flat(nn.Conv2d(4, 8, 3, groups=4)), IMAGE),
    "Conv2d, same": (lambda: _flat(nn.Conv2d(4, 3, (3, 5), padding="same", dilation=(2, 1))), IMAGE),
    "Conv2d, valid": (lambda: _flat(nn.Conv2d(4, 3, 3, padding="valid")), IMAGE),
    "ReLU": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(6, 4)), VECTOR),
    "ReLU in place": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 4)), VECTOR),
    "LeakyReLU": (lambda: nn.Sequential(nn.LeakyReLU(0.3), nn.Linear(6, 4)), VECTOR),
    "Tanh": (lambda: nn.Sequential(nn.Tanh(), nn.Linear(6, 4)), VECTOR),
    "Sigmoid": (lambda: nn.Sequential(nn.Sigmoid(), nn.Linear(6, 4)), VECTOR),
    "MaxPool2d": (lambda: _flat(nn.MaxPool2d(2)), IMAGE),
    "MaxPool2d, everything": (lambda: _flat(nn.MaxPool2d((2, 3), (1, 2), (1, 1), 2, ceil_mode=True)), IMAGE),
    "AvgPool2d": (lambda: _flat(nn.AvgPool2d(3, 2, 1)), IMAGE),
    "AvgPool2d, ceil": (lambda: _flat(nn.AvgPool2d(2, 2, 1, ceil_mode=True, count_include_pad=False)), IMAGE),
    "AvgPool2d, divisor": (lambda: _flat(nn.AvgPool2d((2, 3), divisor_override=5)), IMAGE),
    "AdaptiveAvgPool2d": (lambda: _flat(nn.AdaptiveAvgPool2d(3)), IMAGE),
    "AdaptiveAvgPool2d, None": (lambda: _flat(nn.AdaptiveAvgPool2d((None, 2))), IMAGE),
    "BatchNorm1d": (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4)), VECTOR),
    "BatchNorm2d": (lambda: _flat(nn.BatchNorm2d(4, eps=0.1)), IMAGE),
    "BatchNorm2d, not affine": (lambda: _flat(nn.BatchNorm2d(4, affine=False)), IMAGE),
    "Normalize": (lambda: _flat(Normalize([0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 3.0, 4.0])), IMAGE),
    "Normalize, one value": (lambda: nn.Sequential(Normalize(0.5, 0.1), nn.Linear(6, 4)), VECTOR),
    "Dropout": (lambda: nn.Sequential(nn.Dropout(0.9), nn.Linear(6, 4)), VECTOR),
    "Dropout2d, Identity": (lambda: _flat(nn.Dropout2d(0.9), nn.Identity(), nn.Conv2d(4, 3, 3)), IMAGE),
    "Unflatten": (lambda: _flat(nn.Flatten(), nn.Unflatten(1, (2, 98)), nn.ReLU()), IMAGE),
    "Flatten, partly": (lambda: _flat(nn.Flatten(2), nn.Tanh()), IMAGE),
}


@pytest.mark.parametrize("kind", MODULES)
def test_every_module_is_traced(kind):
    build, shape = MODULES[kind]
    torch.manual_seed(0)
    _agree(randomise_statistics(build()), shape)


FUNCTIONS = {
    "linear": lambda self, x: functional.linear(x.flatten(1), self.matrix, self.vector),
    "linear without bias": lambda self, x: functional.linear(x.flatten(1), self.matrix),
    "conv2d": lambda self, x: functional.conv2d(x, self.kernel, self.bias, 2, (1, 0), groups=2).flatten(1),
    "torch.conv2d": lambda self, x: torch.conv2d(x, self.kernel, None, 1, "valid", 2, 2).flatten(1),
    "batch_norm": lambda self, x: functional.batch_norm(x, self.mean, self.var, self.scale, self.shift).flatten(1),
    "batch_norm, bare": lambda self, x: functional.batch_norm(x, self.mean, self.var, eps=0.3).flatten(1),
    "relu": lambda self, x: functional.relu(torch.relu(x) - 0.1).relu().flatten(1),
    "relu, named input": lambda self, x: functional.relu(input=x - 0.2).flatten(1),
    "leaky_relu": lambda self, x: functional.leaky_relu(x, negative_slope=0.4).flatten(1),
    "tanh, sigmoid": lambda self, x: (torch.tanh(x) + x.sigmoid() - torch.sigmoid(x.tanh())).flatten(1),
    "max_pool2d": lambda self, x: functional.max_pool2d(x, 2, stride=1, padding=1).flatten(1),
    "avg_pool2d": lambda self, x: functional.avg_pool2d(x, 3, ceil_mode=True, divisor_override=4).flatten(1),
    "adaptive_avg_pool2d": lambda self, x: functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1),
    "dropout": lambda self, x: functional.dropout(x, 0.9, training=self.training).flatten(1),
    "view": lambda self, x: x.view(-1, 4 * 49) * 2,
    "view, size": lambda self, x: x.view(x.size(0), -1) * 2,
    "view, shape": lambda self, x: x.view(x.shape[0], x.shape[1] * 49) * 2,
    "reshape": lambda self, x: torch.reshape(x, (x.size()[0], -1)) + 1,
    "reshape method": lambda self, x: x.reshape(-1, 196) + 1,
    "flatten": lambda self, x: torch.flatten(x, start_dim=1) / 2,
    "squeeze, unsqueeze": lambda self, x: x.unsqueeze(2).squeeze(2).flatten(1) * 2,
    "contiguous, clone": lambda self, x: (x.contiguous().clone().detach() - 1).flatten(1),
    "unflatten": lambda self, x: x.flatten(1).unflatten(1, (2, -1)).flatten(1) - 1,
    "add": lambda self, x: torch.add(x, x.relu()).flatten(1),
    "subtract": lambda self, x: torch.sub(x.tanh(), x).flatten(1),
    "constants": lambda self, x: (3 - 2 * (x + 1.5) * 0.3 - 1).flatten(1),
    "parameters": lambda self, x: self.vector - (self.small(x) + self.vector) * self.vector,
    "division": lambda self, x: (self.small(x) / self.vector) / 7,
    "negation": lambda self, x: -torch.neg(-x.neg()).flatten(1),
    "augmented": lambda self, x: _augmented(self.small(x)),
    "tensor made in forward": lambda self, x: self.small(x) * torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64),
    "an unused branch": lambda self, x: _unused(self, x),
}


def _augmented(x):
    x = x + 0.0
    x += 2
    x *= 3
    x -= 0.5
    x /= 4
    return x


def _unused(self, x):
    self.small(x) * 7.0
    return self.small(x).relu()


def _functional(name: str) -> nn.Module:
    torch.manual_seed(1)
    net = Functional(
        FUNCTIONS[name],
        matrix=torch.randn(3, 196),
        vector=torch.rand(3) + 0.5,
        kernel=torch.randn(6, 2, 3, 3),
        bias=torch.randn(6),
        scale=torch.randn(4),
        shift=torch.randn(4),
        small=nn.Sequential(nn.Flatten(), nn.Linear(196, 3)),
    )
    net.register_buffer("mean", torch.randn(4))
    net.register_buffer("var", torch.rand(4) + 0.1)
    return net


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_traced(name):
    _agree(_functional(name), IMAGE)


@pytest.mark.parametrize("name", ZOO)
@law(2)
@given(seed=seeds)
def test_the_zoo_is_traced(name, seed):
    module = make(name, seed)
    graph, params = graph_and_params(trace(module))
    x = inputs(name, 4, seed)
    with torch.no_grad():
        torch.testing.assert_close(graph.evaluate(params, x), module(x))


def test_a_residual_network():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x):
            return functional.relu(self.norm(self.conv(x)) + x)

    torch.manual_seed(0)
    graph = _agree(randomise_statistics(_flat(Block(), Block(), nn.AdaptiveAvgPool2d(1))), IMAGE)
    assert [type(node.operation).__name__ for node in graph.nodes].count("Add") == 2
    assert len(graph.buffers) == 4


def test_tied_weights_are_one_parameter():
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    net[2].weight = net[0].weight
    network = trace(net)
    assert network.graph.parameters == ("0.weight", "0.bias", "2.bias")
    changed = {**network.params, "0.weight": torch.zeros(6, 6)}
    torch.testing.assert_close(network.graph.evaluate(changed, torch.randn(2, 6)), net[2].bias.expand(2, 6))


def test_the_same_module_twice():
    layer = nn.Linear(6, 6)
    _agree(nn.Sequential(layer, nn.Tanh(), layer), VECTOR)


def test_a_second_input_that_is_never_used_is_allowed():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x, mask=None):
            return self.layer(x)

    _agree(Net(), VECTOR)


class Flagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, flag=False, scale=2.0, *, pair=(1.0, 3.0)):
        if flag:
            return x
        return self.layer(x) * scale - pair[1]


class Starred(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, *inputs, **settings):
        return self.layer(inputs[0]) * settings.get("scale", 3.0)


@pytest.mark.parametrize("kind", [Flagged, Starred])
def test_other_arguments_of_forward_keep_their_defaults(kind):
    graph = _agree(kind(), VECTOR)
    assert [type(node.operation).__name__ for node in graph.nodes][:2] == ["Linear", "Multiply"]
    assert cb.supports(kind())


@pytest.mark.parametrize("name", ["dim", "size", "numel", "shape", "input", "getattr"])
def test_a_layer_may_have_the_name_of_a_method(name):
    graph = _agree(nn.Sequential(OrderedDict([("first", nn.Linear(6, 4)), (name, nn.Linear(4, 3))])), VECTOR)
    assert [type(node.operation).__name__ for node in graph.nodes] == ["Linear", "Linear"]


def test_squeeze_after_pooling_is_a_reshape():
    """For a batch of one the module drops the batch, but computes the same numbers."""
    net = Functional(lambda self, x: self.layer(self.pool(x).squeeze()), pool=nn.AvgPool2d(7), layer=nn.Linear(4, 3))
    graph = _agree(net, IMAGE)
    assert graph.nodes[1].operation == Reshape((4,))
    one = torch.randn(1, *IMAGE, dtype=torch.float64)
    with torch.no_grad():
        found = graph.evaluate(dict(net.named_parameters()), one)
        torch.testing.assert_close(found, net(one)[None])


def _with_buffer(buffer):
    net = Functional(lambda self, x: self.layer(x) * self.constant, layer=nn.Linear(6, 3))
    net.register_buffer("constant", buffer)
    return net


@pytest.mark.parametrize(
    "buffer",
    [torch.tensor([True, False, True]), torch.tensor([1, -2, 3]), torch.tensor(0.1, dtype=torch.float64)],
    ids=["mask", "whole numbers", "one double"],
)
def test_constants_become_floats_as_torch_reads_them(buffer):
    """In the precision of what they meet, so that the graph rounds them as the module does."""
    net = _with_buffer(buffer)
    x = torch.randn(4, 6)
    network = trace(net, x)
    assert network.buffers["constant"].dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(network.graph.evaluate({**network.params, **network.buffers}, x), net(x))
    predictor = cb.Point(net).predictor()
    assert bool(cb.certify(predictor, x, eps=0.0).certified.any())


def test_frozen_parameters_are_named_and_can_be_made_constants():
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    net[0].requires_grad_(False)
    network = trace(net)
    assert network.frozen == ("0.weight", "0.bias")
    assert network.graph.parameters == ("0.weight", "0.bias", "2.weight", "2.bias")
    held = network.with_constants()
    assert held.graph.parameters == tuple(held.params) == ("2.weight", "2.bias")
    assert held.graph.buffers == tuple(held.buffers) == ("0.weight", "0.bias")
    assert held.with_constants() == held


@pytest.mark.parametrize("kind", ["numpy", "list"])
def test_an_example_need_not_be_a_tensor(kind):
    x = torch.rand(2, 6)
    assert trace(nn.Linear(6, 3), x.numpy() if kind == "numpy" else x.tolist()).graph.input_shape == VECTOR


def test_shapes_are_those_of_one_example():
    network = trace(_flat(nn.Conv2d(4, 3, 3), nn.MaxPool2d(2)), torch.randn(9, *IMAGE))
    assert [node.shape for node in network.graph.nodes] == [(3, 5, 5), (3, 2, 2), (12,)]
    assert network.graph.input_shape == IMAGE
    assert network.graph.output_shape == (12,) and network.graph.classes == 12


@pytest.mark.parametrize("name", ZOO)
def test_a_graph_survives_json(name):
    graph, params = graph_and_params(trace(make(name)))
    again = Graph.from_json(json.loads(json.dumps(graph.to_json())))
    assert again == graph
    x = inputs(name, 3, 0)
    assert torch.equal(again.evaluate(params, x), graph.evaluate(params, x))


def test_an_unknown_operation_in_json_says_what_to_do():
    with pytest.raises(NotImplementedError, match=r"'Nonsense'.*import"):
        Operation.from_json({"type": "Nonsense"})


def test_the_module_is_left_alone():
    net = randomise_statistics(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)))
    net.train()
    net[3].requires_grad_(False)
    net(torch.randn(8, 6)).sum().backward()
    calls = []
    handle = net[0].register_full_backward_hook(lambda *_: calls.append(1))
    before = copy.deepcopy(net.state_dict())
    gradient = net[0].weight.grad.clone()
    network = trace(net)
    assert net.training and net[1].training
    assert net[0].weight.requires_grad and not net[3].weight.requires_grad
    assert torch.equal(net[0].weight.grad, gradient)
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert not calls
    network.params["0.weight"].zero_()
    assert torch.equal(net[0].weight, before["0.weight"])
    handle.remove()


def test_the_example_is_left_alone():
    x = torch.randn(3, 6)
    before = x.clone()
    trace(nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)), x)
    assert torch.equal(x, before)


def test_tracing_draws_no_random_numbers():
    state = torch.random.get_rng_state()
    trace(nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)))
    after_layers = torch.random.get_rng_state()
    assert not torch.equal(state, after_layers)  # building the layers did
    trace(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Tanh()), torch.randn(1, 6, generator=generator(0)))
    assert torch.equal(torch.random.get_rng_state(), after_layers)


def test_params_require_no_gradient_and_share_nothing():
    net = nn.Linear(6, 2)
    network = trace(net)
    assert not network.params["weight"].requires_grad
    assert network.params["weight"].data_ptr() != net.weight.data_ptr()


def test_observers_see_every_node_and_may_change_it():
    graph, params = graph_and_params(trace(make("relu")))
    seen = []

    def observe(node, values, output):
        seen.append(node.name)
        return torch.zeros_like(output)

    result = graph.evaluate(params, inputs("relu", 2, 0), observe)
    assert seen == [node.name for node in graph.nodes]
    assert bool((result == 0).all())


def test_the_check_runs_without_the_rounding_of_low_precision_products():
    """A caller who lets products be rounded coarsely must not read that the network mixes its batch."""
    seen = []

    def forward(self, x):
        seen.append(torch.get_float32_matmul_precision())
        return self.layer(x)

    net = Functional(forward, layer=nn.Linear(3, 2))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        trace(net, torch.rand(2, 3))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert "highest" in seen
