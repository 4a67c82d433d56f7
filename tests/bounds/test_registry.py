"""Users add layers of their own: an operation, how a module becomes it, and its bounds."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import certibayes as cb
from certibayes.bounds import Box, interval_bounds, outward, outward_box, register, registered, rules_for
from certibayes.bounds import registry as registry_module
from certibayes.bounds.rules.activation import monotone
from certibayes.errors import UnsupportedLayer
from certibayes.networks import Graph, Lowered, Operation, lower_function, lower_module, lowering, trace

from ..strategies import Functional, assert_inside, graph_and_params


@pytest.fixture(autouse=True)
def registries_as_before(monkeypatch):
    """Registrations of a test do not outlive it."""
    monkeypatch.setattr(registry_module, "_rules", dict(registry_module._rules))
    monkeypatch.setattr(Operation, "known", dict(Operation.known))
    tables = lowering.modules, lowering.functions
    before = [dict(table) for table in tables]
    # A layer that is known already, as if it were not.
    for entry in (nn.Hardtanh, torch.clamp):
        for table in tables:
            table.pop(entry, None)
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


def _register_hardtanh() -> type[Operation]:
    @dataclass(frozen=True)
    class Clip(Operation):
        """Clip values to an interval."""

        low: float = -1.0
        high: float = 1.0

        def evaluate(self, weights, *inputs: Tensor) -> Tensor:
            return inputs[0].clamp(self.low, self.high)

    lower_module(nn.Hardtanh)(lambda module: (Clip(module.min_val, module.max_val), {}))
    lower_function(torch.clamp)(lambda x, min, max: Lowered(Clip(min, max), (x,)))
    return Clip


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Hardtanh(-0.3, 0.4), nn.Linear(6, 3))


def test_a_layer_without_an_entry_is_refused():
    assert not cb.supports(nn.Sequential(nn.Linear(4, 6), nn.Softsign(), nn.Linear(6, 3)))


def test_an_operation_without_bounds_is_refused_by_name():
    clip = _register_hardtanh()
    with pytest.raises(UnsupportedLayer, match=r"Clip has no bounds.*Linear.*certibayes\.bounds\.register"):
        rules_for(clip())
    support = cb.supports(_network())
    assert not support and "Clip" in support.reason


def test_a_custom_layer_works_from_module_to_certificate():
    clip = _register_hardtanh()
    register(clip, monotone(ulps=1), "nn.Hardtanh, torch.clamp")
    net = _network()
    assert cb.supports(net)
    graph, params = graph_and_params(trace(net))
    assert Graph.from_json(graph.to_json()) == graph
    x = torch.rand(5, 4)
    box = interval_bounds(graph, params, outward_box(x, 0.1), outward(torch.float32))
    noise = torch.rand(200, 5, 4) * 0.2 - 0.1
    assert_inside(torch.stack([graph.evaluate(params, torch.clamp(x + n, x - 0.1, x + 0.1)) for n in noise]), box)
    certificate = cb.certify(cb.Point(net).predictor(), x, eps=1e-4)
    assert certificate.certified.all()
    assert "Clip" in cb.bounds.support_table()


def test_a_custom_function_works_too():
    clip = _register_hardtanh()
    register(clip, monotone(ulps=1))
    net = Functional(lambda self, x: torch.clamp(self.layer(x), -0.1, 0.1), layer=nn.Linear(4, 3))
    graph, params = graph_and_params(trace(net))
    assert [type(node.operation) for node in graph.nodes][-1] is clip
    assert float(graph.evaluate(params, torch.rand(5, 4) * 100).abs().max()) <= 0.1 + 1e-6


def test_later_bounds_win():
    def everything(operation, weights, boxes, rounding):
        output = operation.evaluate(weights, boxes[0].center)
        return Box(torch.zeros_like(output), torch.full_like(output, 1e9))

    kind = next(kind for kind in registered() if kind.__name__ == "ReLU")
    before = registered()[kind]
    register(kind, everything, "looser")
    assert registered()[kind] != before
    graph, params = graph_and_params(trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU())))
    box = interval_bounds(graph, params, outward_box(torch.rand(2, 4), 0.1))
    assert bool((box.radius == 1e9).all())


def test_later_entries_win():
    first = trace(nn.Sequential(nn.Linear(4, 3), nn.Tanh())).graph.nodes[-1].operation
    lower_module(nn.Tanh)(lambda module: (cb.networks.operations.Sigmoid(), {}))
    with pytest.raises(UnsupportedLayer, match="does not compute what the module computes"):
        trace(nn.Sequential(nn.Linear(4, 3), nn.Tanh()))
    assert type(first).__name__ == "Tanh"


def test_registered_is_a_copy():
    registered().clear()
    assert registered()


def test_the_support_table_lists_every_operation():
    table = cb.bounds.support_table()
    for kind, rules in registered().items():
        assert f"| {kind.__name__} | {rules.description} |" in table
        assert rules.description
