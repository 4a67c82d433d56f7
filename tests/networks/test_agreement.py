"""A graph that computes something else than its module is noticed, whatever the example."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import Lowered, Operation, lowering, operations, trace

from ..strategies import Functional, inputs, make

FLAT = torch.full((1, 1, 4, 4), 0.5)


def _transposed() -> nn.Module:
    net = Functional(lambda self, x: self.layer(x.transpose(2, 3).flatten(1)), layer=nn.Linear(16, 3))
    net.input_shape = (1, 4, 4)
    return net


@pytest.mark.parametrize("example", [None, FLAT, torch.rand(1, 1, 4, 4)], ids=["none", "constant", "random"])
def test_a_transpose_that_passes_for_a_reshape_is_noticed(monkeypatch, example):
    """On a constant image the two are the same."""
    monkeypatch.setitem(lowering.functions, "transpose", lambda x, *dims: Lowered(None, (x,), reshapes=True))
    with pytest.raises(UnsupportedLayer, match="transpose is taken for Reshape"):
        trace(_transposed(), example)


@pytest.mark.parametrize("example", [None, torch.ones(1, 6)], ids=["none", "ones"])
def test_an_entry_is_compared_by_its_own_values_not_by_what_later_layers_leave_of_them(monkeypatch, example):
    """Behind a layer whose units are all dead, any mistake gives the right outputs."""
    monkeypatch.setitem(lowering.modules, nn.LeakyReLU, lambda module: (operations.ReLU(), {}))
    net = nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(0.3), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        net[2].bias.fill_(-1e6)
    with pytest.raises(UnsupportedLayer, match="is taken for ReLU"):
        trace(net, example)


def test_outputs_that_are_all_small_are_no_excuse(monkeypatch):
    monkeypatch.setitem(lowering.modules, nn.Tanh, lambda module: (operations.Sigmoid(), {}))
    net = nn.Sequential(nn.Tanh(), nn.Linear(6, 3))
    with torch.no_grad():
        net[1].weight.mul_(1e-8)
        net[1].bias.mul_(1e-8)
    with pytest.raises(UnsupportedLayer, match="does not compute"):
        trace(net)


def test_an_rms_norm_without_eps_is_that_of_its_own_precision_when_it_is_compared():
    """Torch's default: of numbers whose squares are near 1e-7, another precision would have another eps."""
    net = nn.Sequential(nn.Linear(6, 3), nn.RMSNorm(3))
    with torch.no_grad():
        for parameter in net[0].parameters():
            parameter.mul_(1e-3)
    traced = trace(net)
    assert traced.graph.nodes[-1].operation.eps == torch.finfo(torch.float32).eps
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(traced.graph.evaluate(traced.params, x), net(x))
    assert net[1].eps is None
    assert trace(net.double()).graph.nodes[-1].operation.eps == torch.finfo(torch.float64).eps


def test_a_forward_that_changes_from_call_to_call_is_noticed():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(6, 3), 0

        def forward(self, x):
            self.calls += 1
            return self.layer(x) * self.calls

    with pytest.raises(UnsupportedLayer, match="something other than its input"):
        trace(Counting())


def test_random_numbers_in_forward_are_noticed():
    net = Functional(lambda self, x: self.layer(x) + 1e-3 * torch.randn(3), layer=nn.Linear(6, 3))
    with pytest.raises(UnsupportedLayer, match="random numbers"):
        trace(net, torch.rand(1, 6))


def test_rounding_is_not_taken_for_a_mistake():
    """Large values that cancel: in float32 a batch and its examples one by one differ by more than the output."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 2))
    with torch.no_grad():
        net[0].weight.mul_(1e6)
        net[1].weight[:, 150:] = -net[1].weight[:, :150]
        net[0].weight[150:] = net[0].weight[:150] * (1 + 1e-6)
    trace(net)


def test_a_constant_of_its_own_precision_made_in_forward():
    """Such a network cannot be run in float64; it is compared as it is."""
    net = Functional(lambda self, x: self.layer(functional.linear(x, torch.eye(6)[:4])), layer=nn.Linear(4, 3))
    network = trace(net, torch.rand(1, 6))
    x = torch.randn(3, 6)
    with torch.no_grad():
        torch.testing.assert_close(network.graph.evaluate({**network.params, **network.buffers}, x), net(x))


def test_the_global_generator_is_left_alone():
    net, x = make("relu"), inputs("relu", 1, 0)
    before = torch.random.get_rng_state()
    trace(net)
    trace(net, x)
    assert torch.equal(torch.random.get_rng_state(), before)


@dataclass(frozen=True)
class Centered(Operation):
    def evaluate(self, weights, *inputs):
        return inputs[0] - inputs[0].mean(0)


class Center(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def test_examples_that_are_mixed_are_noticed_without_an_example(monkeypatch):
    monkeypatch.setitem(lowering.modules, Center, lambda module: (Centered(), {}))
    with pytest.raises(UnsupportedLayer, match="mixes the examples"):
        trace(nn.Sequential(nn.Linear(3, 2), Center()))
