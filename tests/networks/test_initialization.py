"""Interval-aware initialization: its law, which layers it draws, and the architectures that start with it."""

import itertools
import math

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import ideal_box, interval_bounds
from certibayes.errors import InvalidInput
from certibayes.networks import NORMED, build, init_interval_aware, trace

FACTORIES = {"cnn5": cb.networks.cnn5, "cnn7": cb.networks.cnn7, "resnet-small": cb.networks.resnet_small}


def relative_stds(net):
    """Standard deviations of weight matrices and filters, as multiples of sqrt(2 π) / fan_in."""
    weights = {name: p.detach() for name, p in net.named_parameters() if p.dim() > 1}
    return {name: float(w.std()) * w[0].numel() / math.sqrt(2 * math.pi) for name, w in weights.items()}


def test_the_law_of_the_weights():
    net = init_interval_aware(cb.networks.mlp(300, [200, 100, 150], 10))
    *hidden, last = relative_stds(net).values()
    assert hidden == pytest.approx([1.0] * 3, rel=0.05)
    torch_own = cb.networks.mlp(300, [200, 100, 150], 10)
    assert torch.equal(net[-1].weight, torch_own[-1].weight) and torch.equal(net[1].bias, torch_own[1].bias)
    assert last == relative_stds(torch_own)["7.weight"]


def test_bounds_keep_their_width_from_layer_to_layer():
    """As they do not with torch's own initialization."""
    x = torch.rand(16, 400)

    def growth(net):
        traced = trace(net)
        widths = []

        def observe(node, boxes, output):
            widths.append(float(output.radius.mean()))
            return output

        interval_bounds(traced.graph.body, traced.params, ideal_box(x, 0.01, domain=None), observe=observe)
        return widths[-1] / 0.01

    deep = [400] * 6
    assert 0.2 < growth(init_interval_aware(cb.networks.mlp(400, deep, 10))) < 5.0
    assert growth(cb.networks.mlp(400, deep, 10)) > 1000.0


def test_a_layer_that_takes_in_a_sum_has_half_the_standard_deviation():
    net = cb.networks.resnet_small((3, 16, 16), channels=32)
    found = relative_stds(net)
    halved = [name for name, value in found.items() if value == pytest.approx(0.5, rel=0.1)]
    # Both branches of the second block, and the dense layer behind it.
    assert halved == ["4.body.0.weight", "4.shortcut.0.weight", "6.weight"]


def test_a_generator_decides_and_the_global_one_is_left_alone():
    nets = [cb.networks.mlp(6, [5, 4], 3) for _ in range(3)]
    state = torch.random.get_rng_state()
    for net, seed in zip(nets, (1, 1, 2), strict=True):
        assert init_interval_aware(net, torch.Generator().manual_seed(seed)) is net
    assert torch.equal(torch.random.get_rng_state(), state)
    one, same, other = (net[1].weight for net in nets)
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_modules_whose_input_shape_is_unknown_take_an_example():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(InvalidInput):
        init_interval_aware(net)
    init_interval_aware(net, example=torch.rand(1, 2, 4, 4))
    assert relative_stds(net)["0.weight"] == pytest.approx(1.0, rel=0.3)


@pytest.mark.parametrize("name", FACTORIES)
class TestArchitectures:
    def test_they_are_made_for_intervals(self, name):
        *hidden, _ = relative_stds(FACTORIES[name]((1, 12, 12), channels=8)).values()
        assert max(hidden) < 1.3
        *hidden, _ = relative_stds(FACTORIES[name]((1, 12, 12), channels=8, init="torch")).values()
        assert max(hidden) > 2.0

    def test_widths_go_with_the_channels(self, name):
        sizes = [sum(p.numel() for p in FACTORIES[name]((1, 12, 12), channels=c).parameters()) for c in (4, 8)]
        assert 3.0 < sizes[1] / sizes[0] < 4.5

    def test_batch_norm_follows_every_layer_but_the_last(self, name):
        kinds = [type(node.operation).__name__ for node in trace(FACTORIES[name]((1, 12, 12), channels=2)).graph.nodes]
        for kind, after in itertools.pairwise(kinds):
            if kind in ("Conv2d", "Linear"):
                assert after == "BatchNorm"
        assert kinds[-1] == "Linear"

    def test_a_normalization_in_front(self, name):
        net = FACTORIES[name]((3, 12, 12), channels=2, normalize=([0.4, 0.5, 0.6], [0.2, 0.2, 0.3]))
        assert isinstance(net[0], cb.networks.Normalize)
        assert net.eval()(torch.rand(2, 3, 12, 12)).shape == (2, 10)
        assert net.training is False and FACTORIES[name]((3, 12, 12), channels=2).training

    def test_any_image_size_and_bounds_that_hold(self, name):
        for shape in ((1, 28, 28), (3, 9, 11)):
            net = FACTORIES[name](shape, outputs=4, channels=2, seed=3).eval()
            traced = trace(net)
            x = torch.rand(5, *shape)
            box = interval_bounds(traced.graph, {**traced.params, **traced.buffers}, ideal_box(x, 0.05))
            assert box.center.shape == (5, 4)
            moved = (x + 0.05 * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
            y = net(moved)
            assert bool((y >= box.lower - 1e-4).all() and (y <= box.upper + 1e-4).all())

    def test_the_seed_decides(self, name):
        state = torch.random.get_rng_state()
        one, same, other = (FACTORIES[name](channels=2, seed=seed) for seed in (3, 3, 4))
        assert torch.equal(torch.random.get_rng_state(), state)
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
        assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))

    def test_wrong_settings(self, name):
        with pytest.raises(InvalidInput, match="interval, torch"):
            FACTORIES[name](init="kaiming")
        with pytest.raises(InvalidInput, match="at least 1 channel"):
            FACTORIES[name](channels=0)


def test_by_name_with_settings():
    assert tuple(FACTORIES) == NORMED
    net = build("cnn5", (1, 28, 28), 10, channels=4, normalize=([0.1], [0.3]), init="torch")
    assert isinstance(net[0], cb.networks.Normalize) and net[1].out_channels == 4


@pytest.mark.parametrize(("name", "shape"), [("mlp", (2, 6, 6)), ("cnn-small", (1, 28, 28))])
def test_others_take_normalization_and_initialization_as_well(name, shape):
    statistics = ([0.5] * shape[0], [0.25] * shape[0])
    net = build(name, shape, 3, seed=2, normalize=statistics, init="interval")
    plain = build(name, shape, 3, seed=2)
    assert isinstance(net[0], cb.networks.Normalize) and len(net) == len(plain) + 1
    assert net(torch.rand(2, *shape)).shape == (2, 3)
    *hidden, _ = relative_stds(net).values()
    assert hidden == pytest.approx([1.0] * len(hidden), rel=0.2)
