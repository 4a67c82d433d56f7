"""Batch norm: statistics of a batch with gradient, and those of the training data for prediction."""

import copy

import pytest
import torch
from torch import nn

from certibayes.networks import batch_norm, trace
from certibayes.networks.batch_norm import (
    BITS,
    CHUNK,
    clean_pass,
    evenly_spaced,
    follows_data,
    has_statistics,
    normalizes_by_batch,
    statistics_depend_on,
    statistics_of,
    training_graph,
)
from certibayes.networks.moments import moments

LAYERS = ("1", "4", "7")
ROUNDING = 2.0 ** (1 - BITS)


def dense(dtype=torch.float64, affine=True):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6, affine=affine), nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(),
            nn.Linear(5, 3),
        )  # fmt: skip
        for layer in net:
            if isinstance(layer, nn.BatchNorm1d) and layer.affine:
                nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
        return net.to(dtype)


def images(dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3, stride=2),
            nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3),
        ).to(dtype)  # fmt: skip


NETS = {"dense": (dense, (4,)), "without weights": (lambda dtype=torch.float64: dense(dtype, False), (4,)),
        "images": (images, (2, 5, 5))}  # fmt: skip


def inputs(shape, number=20, dtype=torch.float64):
    return torch.rand(number, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def everything(network):
    return {**network.params, **network.buffers}


def norms(net):
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))}


class TestMoments:
    @pytest.mark.parametrize("shape", [(7, 3), (4, 3, 5), (4, 3, 2, 5)], ids=str)
    def test_value_and_gradient(self, shape):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
        dims = [d for d in range(x.dim()) if d != 1]
        variance, mean = torch.var_mean(x, dims, correction=0)
        for found, expected in zip(moments(x), (mean, variance), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert torch.autograd.gradcheck(moments, (x,))

    @pytest.mark.parametrize("dim", [0, 1, 2])
    def test_several_networks_at_once(self, dim):
        x = torch.randn(6, 5, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

        def value(x):
            mean, variance = moments(x)
            return (mean.sin() + mean * variance.exp()).sum()

        found = torch.vmap(torch.func.grad(value), in_dims=dim)(x.movedim(0, dim))
        expected = torch.stack([torch.func.grad(value)(one) for one in x])
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NETS)
class TestTraining:
    def test_outputs_and_gradient_are_those_of_torch_in_training_mode(self, name):
        make, shape = NETS[name]
        net, x = make(), inputs(shape)
        network = trace(net, x)
        weight = torch.randn(len(x), 3, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
        marked = training_graph(network.graph)

        def value(params):
            return (clean_pass(marked, {**network.buffers, **params}, x).outputs * weight).sum()

        gradient, found = torch.func.grad_and_value(value)(network.params)
        expected = (net.train()(x) * weight).sum()
        expected.backward()
        torch.testing.assert_close(found, expected.detach(), rtol=1e-10, atol=1e-10)
        for key, parameter in net.named_parameters():
            torch.testing.assert_close(gradient[key], parameter.grad, rtol=1e-8, atol=1e-10)

    def test_other_passes_are_normalized_as_the_clean_one(self, name):
        """What the clean pass found, as constants of the module in eval mode."""
        make, shape = NETS[name]
        net, x = make(), inputs(shape)
        network = trace(net, x)
        marked = training_graph(network.graph)
        params = clean_pass(marked, everything(network), x).params
        for layer in norms(net).values():
            layer.momentum = 1.0
        net.train()(x)
        for key, layer in norms(net).items():
            number = len(x) * (1 if isinstance(layer, nn.BatchNorm1d) else _pixels(network.graph, key))
            layer.running_var *= (number - 1) / number
        other = inputs(shape, 7) + 0.3
        torch.testing.assert_close(marked.evaluate(params, other), net.eval()(other), rtol=1e-10, atol=1e-10)

    def test_the_statistics_of_one_chunk_are_those_of_torch_in_training_mode(self, name):
        """Torch's own after one batch with momentum 1, up to its unbiased variance and our rounding."""
        make, shape = NETS[name]
        net, x = make(), inputs(shape)
        network = trace(net, x)
        outputs = copy.deepcopy(net).train()(x)
        found = {**everything(network), **statistics_of(network.graph, everything(network), x)}
        torch.testing.assert_close(network.graph.evaluate(found, x), outputs, rtol=0.0, atol=5e-3)
        for layer in norms(net).values():
            layer.momentum = 1.0
        net.train()(x)
        for key, layer in norms(net).items():
            number = len(x) * (1 if isinstance(layer, nn.BatchNorm1d) else _pixels(network.graph, key))
            variance = layer.running_var * (number - 1) / number
            off = (found[f"{key}.running_var"] - variance) / (variance + layer.eps)
            assert float(off.abs().max()) <= ROUNDING
            off = (found[f"{key}.running_mean"] - layer.running_mean) / (variance + layer.eps).sqrt()
            assert float(off.abs().max()) <= ROUNDING

    def test_nothing_is_changed_in_place(self, name):
        make, shape = NETS[name]
        network = trace(make(), inputs(shape))
        before = {key: tensor.clone() for key, tensor in everything(network).items()}
        statistics_of(network.graph, everything(network), inputs(shape))
        assert all(torch.equal(tensor, before[key]) for key, tensor in everything(network).items())


def _pixels(graph, module):
    node = next(n for n in graph.nodes if n.roles.get("running_mean") == f"{module}.running_mean")
    return node.shape[1] * node.shape[2] if len(node.shape) == 3 else 1


def test_many_examples_are_normalized_chunk_by_chunk_and_pooled():
    net, x = dense(), inputs((4,), 2 * CHUNK + 3)
    network = trace(net, x[:2])
    found = statistics_of(network.graph, everything(network), x)
    hidden, seen = net[0](x), []
    variance, mean = torch.var_mean(hidden, 0, correction=0)
    torch.testing.assert_close(found["1.running_mean"], mean, rtol=ROUNDING, atol=ROUNDING)
    torch.testing.assert_close(found["1.running_var"], variance, rtol=ROUNDING, atol=ROUNDING)
    for part in hidden.tensor_split(3):
        seen.append(net[3](net[2](net[1].train()(part))))
    variance, mean = torch.var_mean(torch.cat(seen), 0, correction=0)
    torch.testing.assert_close(found["4.running_mean"], mean, rtol=ROUNDING, atol=ROUNDING)
    torch.testing.assert_close(found["4.running_var"], variance, rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_statistics_are_the_same_bits_however_they_are_summed(dtype, monkeypatch):
    """Another number of threads and another order of the channels' sums: what floats disagree on is rounded away."""
    net, x = images(dtype), inputs((2, 5, 5), 300, dtype)
    network = trace(net, x[:2])
    expected = statistics_of(network.graph, everything(network), x)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert all(torch.equal(t, expected[k]) for k, t in statistics_of(network.graph, everything(network), x).items())
    finally:
        torch.set_num_threads(threads)

    def noisy(x):
        mean, variance = moments(x)
        return mean * (1 + 1e-13), variance * (1 - 1e-13)

    monkeypatch.setattr(batch_norm, "moments", noisy)
    assert all(torch.equal(t, expected[k]) for k, t in statistics_of(network.graph, everything(network), x).items())


def test_a_constant_channel_has_no_variance_and_not_what_rounding_left_of_it():
    net = dense()
    with torch.no_grad():
        net[0].weight[0] = 0.0
        net[0].bias[0] = 0.1
    network = trace(net, inputs((4,)))
    found = statistics_of(network.graph, everything(network), inputs((4,)))
    assert float(found["1.running_var"][0]) == 0.0
    torch.testing.assert_close(float(found["1.running_mean"][0]), 0.1, rtol=0.0, atol=1e-5)


def test_a_frozen_batch_norm_keeps_its_own():
    net, x = dense(), inputs((4,))
    net[1].requires_grad_(False)
    network = trace(net, x).with_constants()
    assert has_statistics(network.graph)
    assert statistics_of(network.graph, everything(network), x).keys() == {"4.running_mean", "4.running_var"}
    marked = training_graph(network.graph)
    assert [dict(node.roles) for node in marked.nodes[:2]] == [dict(node.roles) for node in network.graph.nodes[:2]]
    net[4].requires_grad_(False)
    frozen = trace(net, x).with_constants().graph
    assert not has_statistics(frozen)
    assert training_graph(frozen) == frozen


def test_a_network_without_batch_norm_is_left_alone():
    network = trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), inputs((4,), dtype=torch.float32))
    assert not has_statistics(network.graph)
    assert training_graph(network.graph) == network.graph
    x, params = inputs((4,), dtype=torch.float32), everything(network)
    outputs, same = clean_pass(network.graph, params, x)
    assert same is params and torch.equal(outputs, network.graph.evaluate(params, x))


def test_a_marked_network_has_no_outputs_without_a_clean_pass():
    """Statistics of whatever came along would be a silent mistake."""
    network = trace(dense(), inputs((4,)))
    marked = training_graph(network.graph)
    assert normalizes_by_batch(marked) and not normalizes_by_batch(network.graph)
    with pytest.raises(KeyError):
        marked.evaluate(everything(network), inputs((4,)))


def test_which_statistics_depend_on_which_weights():
    graph = trace(dense(), inputs((4,))).graph
    assert statistics_depend_on(graph, ["0.weight"])
    assert statistics_depend_on(graph, ["1.bias"])  # of the second
    assert not statistics_depend_on(graph, ["4.weight", "6.weight", "6.bias"])
    assert not statistics_depend_on(graph, [])
    assert [follows_data(graph, node) for node in graph.nodes] == [False, True, False, False, True, False, False]


def test_examples_come_from_all_over_the_data():
    x = torch.arange(10)
    assert evenly_spaced(x, 4).tolist() == [0, 2, 5, 7]
    assert evenly_spaced(x, 10) is x
    assert evenly_spaced(x, 11) is x
