"""Architectures by name: shapes, numbers of weights, and initialization by seed alone."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.networks import (
    BY_NAME,
    build,
    cnn_medium,
    cnn_small,
    infer_input_shape,
    mlp,
    paper_cifar,
    paper_cifar_supplement,
    trace,
)

WEIGHTS = {
    "mlp": (lambda **kw: mlp(784, [512], 10, **kw), (784,), 784 * 512 + 512 + 512 * 10 + 10),
    "paper-cifar": (
        paper_cifar,
        (3, 32, 32),
        (48 * 32 + 32) + (16 * 32 * 32 + 32) + (32 * 13 * 13 * 512 + 512) + 5130,
    ),
    "paper-cifar-supplement": (
        paper_cifar_supplement,
        (3, 32, 32),
        (48 * 16 + 16) + (16 * 16 * 32 + 32) + (32 * 13 * 13 * 100 + 100) + 1010,
    ),
    "cnn-small": (
        cnn_small,
        (1, 28, 28),
        (16 * 16 + 16) + (16 * 16 * 32 + 32) + (32 * 10 * 10 * 100 + 100) + 1010,
    ),
    "cnn-medium": (
        cnn_medium,
        (1, 28, 28),
        (9 * 32 + 32)
        + (32 * 32 * 16 + 32)
        + (32 * 64 * 9 + 64)
        + (64 * 64 * 16 + 64)
        + (64 * 4 * 4 * 512 + 512)
        + (512 * 512 + 512)
        + 5130,
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_shapes_and_sizes(name):
    make, shape, count = WEIGHTS[name]
    net = make()
    assert infer_input_shape(net) == shape
    assert net(torch.rand(2, *shape)).shape == (2, 10)
    assert sum(p.numel() for p in net.parameters()) == count
    assert trace(net).graph.classes == 10


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_seed_decides_and_the_global_generator_is_left_alone(name):
    make, _, _ = WEIGHTS[name]
    state = torch.random.get_rng_state()
    first, again, other = make(seed=3), make(seed=3), make(seed=4)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", BY_NAME)
def test_build_by_name_for_other_data(name):
    net = build(name, (3, 32, 32), 7, seed=1)
    x = torch.rand(2, 3, 32, 32)
    assert net(x).shape == (2, 7)
    assert trace(net, x).graph.classes == 7 if name != "mlp" else True


def test_mlp_takes_units_and_activations():
    net = mlp(6, [5, 4], 3, activation="tanh")
    assert [type(layer) for layer in net[1:]] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    assert isinstance(mlp(6, [], 3)[-1], nn.Linear)
    assert build("mlp", (1, 4, 4), 2, hidden=[7])[1].out_features == 7


def test_wrong_names_are_refused():
    with pytest.raises(InvalidInput, match="relu, leaky_relu"):
        mlp(6, [5], 3, activation="gelu")
    with pytest.raises(InvalidInput, match="known are mlp"):
        build("resnet", (3, 32, 32), 10)
    with pytest.raises(InvalidInput, match="Use mlp"):
        build("cnn-small", (784,), 10)


def test_reprs_are_short():
    net = cb.networks.mlp(4, [6, 5], 3)
    network = cb.networks.trace(net)
    shown = "Graph((4,) -> (3,): Reshape, Linear, ReLU, Linear, ReLU, Linear)"
    assert repr(network.graph) == shown
    assert repr(network) == f"Network({shown}, 83 weights in 6 parameters)"
    net[1].requires_grad_(False)
    assert repr(cb.networks.trace(net)).endswith("83 weights in 6 parameters, 2 of them frozen)")
    assert repr(network.graph.body.body.body.body.body.body) == "Graph((4,), empty)"


def test_a_long_graph_is_shortened():
    graph = cb.networks.trace(cb.networks.mlp(2, [2] * 10, 3)).graph
    kinds = repr(graph).split(": ")[1].removesuffix(")").split(", ")
    assert len(graph.nodes) == 22 and kinds[-2:] == ["11 more", "Linear"]
    assert len(kinds) == 12 and kinds[:3] == ["Reshape", "Linear", "ReLU"]


def test_normalization_shows_its_numbers():
    assert repr(cb.networks.Normalize([0.5, 0.25], 0.1)) == "Normalize(mean=[0.5, 0.25], std=[0.1])"


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 9, 11)])
def test_cnn7_is_the_one_of_the_literature(shape):
    net = cb.networks.cnn7(shape, outputs=5, channels=4)
    layers = [type(layer).__name__ for layer in net]
    block = ["Conv2d", "BatchNorm2d", "ReLU"]
    assert layers == [*block * 5, "Flatten", "Linear", "BatchNorm1d", "ReLU", "Linear"]
    convolutions = [layer for layer in net if isinstance(layer, nn.Conv2d)]
    assert [c.out_channels for c in convolutions] == [4, 4, 8, 8, 8]
    assert [c.stride[0] for c in convolutions] == [1, 1, 2, 1, 1]
    assert net.eval()(torch.rand(2, *shape)).shape == (2, 5)
    assert build("cnn7", shape, 5, channels=4)(torch.rand(2, *shape)).shape == (2, 5)
