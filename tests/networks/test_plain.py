"""What a trace would not show is found and refused, with the remedy."""

import re
import types

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

import certibayes as cb
from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.networks import trace

X = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))


def _net() -> nn.Sequential:
    """A layer, and a block of two more."""
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)))


def _rarely(values):
    """Another value far away from all examples, so that no comparison on examples can tell."""
    return torch.where(values.abs() > 1e6, -values, values)


def _hook(part):
    part.register_forward_hook(lambda module, args, output: _rarely(output))


def _pre_hook(part):
    part.register_forward_pre_hook(lambda module, args: (_rarely(args[0]),))


def _patched(part):
    own = type(part).forward
    part.forward = types.MethodType(lambda self, x: _rarely(own(self, x)), part)


@pytest.mark.parametrize("change", [_hook, _pre_hook, _patched])
@pytest.mark.parametrize("where", ["", "0", "1", "2", "2.1"])
def test_hooks_and_patched_forwards_are_refused_wherever_they_are(change, where):
    net = _net()
    change(net.get_submodule(where))
    with pytest.raises(
        UnsupportedLayer, match="replaced on the instance" if change is _patched else "forward hook"
    ) as e:
        trace(net, X)
    assert not where or f"(at {where!r})" in str(e.value)
    assert str(e.value) == cb.supports(net).reason == cb.supports(net, X).reason
    with pytest.raises(UnsupportedLayer, match=re.escape(str(e.value))):
        cb.fit(net, (X, torch.zeros(4, dtype=torch.int64)), algorithm=cb.MAP(), progress=False)


def test_another_method_of_a_layer_may_not_be_replaced_either():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    net[0]._conv_forward = lambda x, weight, bias: functional.conv2d(_rarely(x), weight, bias)
    with pytest.raises(UnsupportedLayer, match=r"_conv_forward of Conv2d \(at '0'\)"):
        trace(net, torch.rand(1, 1, 4, 4))


def test_a_hook_on_all_modules_is_refused():
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        assert "register_module_forward_hook" in cb.supports(_net(), X).reason
    finally:
        handle.remove()
    assert cb.supports(_net(), X)


def test_hooks_that_were_removed_and_hooks_of_gradients_do_no_harm():
    net = _net()
    net[0].register_forward_hook(lambda module, args, output: 2 * output).remove()
    net[0].register_full_backward_hook(lambda *_: None)
    assert cb.supports(net, X)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (lambda layer: prune.l1_unstructured(layer, "weight", 0.3), "torch.nn.utils.prune.remove(LAYER, 'weight')"),
        (lambda layer: prune.random_unstructured(layer, "bias", 2), "torch.nn.utils.prune.remove(LAYER, 'bias')"),
        (nn.utils.weight_norm, "torch.nn.utils.remove_weight_norm(LAYER)"),
        (nn.utils.spectral_norm, "torch.nn.utils.remove_spectral_norm(LAYER)"),
        (
            parametrizations.weight_norm,
            "torch.nn.utils.parametrize.remove_parametrizations(LAYER, 'weight')",
        ),
        (
            parametrizations.spectral_norm,
            "torch.nn.utils.parametrize.remove_parametrizations(LAYER, 'weight')",
        ),
    ],
    ids=["pruned", "pruned bias", "weight norm", "spectral norm", "parametrized weight", "parametrized spectrum"],
)
def test_weights_that_are_computed_anew_are_refused_and_the_remedy_works(change, remedy):
    net = _net()
    change(net[2][0])
    net(X)
    remedy = remedy.replace("LAYER", "net.get_submodule('2.0')")
    for support in (cb.supports(net), cb.supports(net, X)):
        assert not support and remedy in support.reason
    with pytest.raises(UnsupportedLayer, match="Make"):
        trace(net, X)
    eval(remedy, {"torch": torch, "net": net})
    network = trace(net, X)
    with torch.no_grad():
        torch.testing.assert_close(network.graph.evaluate(network.params, X), net(X))


def test_lazy_layers_must_have_been_run():
    net = nn.Sequential(nn.LazyLinear(3))
    for support in (cb.supports(net), cb.supports(net, X)):
        assert not support and "net(x)" in support.reason
    with pytest.raises(InvalidInput, match="no shape yet"):
        cb.fit(net, (X, torch.zeros(4, dtype=torch.int64)), algorithm=cb.MAP(), progress=False)
    net(X)
    assert cb.supports(net, X)


@pytest.mark.parametrize(("wrap", "inner"), [(torch.compile, "net._orig_mod"), (nn.DataParallel, "net.module")])
def test_of_a_wrapped_network_the_network_is_asked_for(wrap, inner):
    support = cb.supports(wrap(_net()), X)
    assert not support and inner in support.reason


def test_a_class_that_overrides_forward_is_looked_into():
    class Doubled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    graph = trace(nn.Sequential(Doubled(6, 3)), X).graph
    assert [type(node.operation).__name__ for node in graph.nodes] == ["Linear", "Multiply"]


class Called(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def __call__(self, x):
        return super().__call__(x) * 2.0

    def forward(self, x):
        return self.layer(x)


def test_a_call_of_its_own_is_seen_inside_a_network_and_refused_outside():
    graph = trace(nn.Sequential(Called()), X).graph
    assert [type(node.operation).__name__ for node in graph.nodes] == ["Linear", "Multiply"]
    with pytest.raises(UnsupportedLayer, match="__call__"):
        trace(Called(), X)


def test_a_network_that_torch_fx_has_traced_already():
    assert cb.supports(torch.fx.symbolic_trace(_net()), X)
