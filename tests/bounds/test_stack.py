"""CROWN's intermediate bounds of many networks at once: those of each by itself, for as much work, and sound."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.bounds import by_name, intermediate, layer_boxes, outward_box
from certibayes.bounds.intermediate import crown_boxes, crown_boxes_of_all
from certibayes.bounds.stack import Stack
from certibayes.networks import INPUT, direct_sums, trace
from certibayes.support.stacks import stack

from ..strategies import ZOO, attacked_points, ball, few_of, graph_and_params, inputs, points_of, traced
from .test_windows import NETS, SHAPE

FAST = ["relu", "tanh", "residual", "residual images", "batch norm on images", "max pool, padded, ceil", "layer norm"]
NETWORKS = 3


def networks(name, dtype):
    """Graph, samples that differ, and points."""
    if name in NETS:
        found = []
        for seed in range(NETWORKS):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                found.append(graph_and_params(trace(NETS[name]().to(dtype).eval())))
        x = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0), dtype=dtype)
    else:
        found, x = [traced(name, seed, dtype) for seed in range(NETWORKS)], inputs(name, 2, 0).to(dtype)
    return found[0][0], [params for _, params in found], x


def each_and_all(graph, samples, box, rounding, **settings):
    """Boxes of each network by itself, and those of all at once."""
    with torch.no_grad(), direct_sums():
        each = [
            crown_boxes(graph, params, layer_boxes(graph, params, box, rounding), rounding, **settings)
            for params in samples
        ]
        together = crown_boxes_of_all(graph, Stack.of(stack(samples)), box, rounding, **settings)
    return each, together


def assert_same(each, together, tolerance):
    for name in together.keys() - {INPUT}:
        for part in ("center", "radius"):
            alone = torch.cat([getattr(boxes[name], part) for boxes in each])
            scale = 1 + alone.abs().amax()
            torch.testing.assert_close(
                getattr(together[name], part) / scale, alone / scale, atol=tolerance, rtol=0, msg=name
            )


WAYS = [*ZOO, *(f"window: {name}" for name in NETS)]


@pytest.mark.parametrize("at_once", [64, None])
@pytest.mark.parametrize("kind", [(torch.float32, "outward"), (torch.float64, "ideal")], ids=str)
@pytest.mark.parametrize("name", few_of(WAYS, fast=[*FAST, *WAYS[len(ZOO) :]]))
def test_every_network_has_the_boxes_that_it_has_alone(name, kind, at_once):
    dtype, rounding = kind
    graph, samples, x = networks(name.removeprefix("window: "), dtype)
    mode = by_name(rounding, dtype)
    eps = torch.tensor([0.0, 0.1], dtype=torch.float64)
    box = outward_box(x, eps)
    each, together = each_and_all(graph, samples, box, mode, at_once=at_once)
    assert_same(each, together, 1e-4 if dtype == torch.float32 else 1e-11)


def test_with_slopes_that_are_optimized():
    graph, samples, x = networks("relu", torch.float64)
    each, together = each_and_all(graph, samples, outward_box(x, 0.2), by_name("outward", torch.float64), steps=3)
    assert_same(each, together, 1e-9)
    known = {name: torch.cat([boxes[name].radius for boxes in each]) for name in together}
    plain = each_and_all(graph, samples, outward_box(x, 0.2), by_name("outward", torch.float64))[1]
    assert any(bool((known[name] < 0.99 * plain[name].radius).any()) for name in known)


@pytest.mark.parametrize("name", ["relu", "tanh", "residual images", "window: padded", "window: batch norm"])
def test_every_layer_of_every_network_stays_inside(name):
    """In floats, without tolerance."""
    graph, samples, x = networks(name.removeprefix("window: "), torch.float32)
    mode = by_name("outward", torch.float32)
    _, together = each_and_all(graph, samples, outward_box(x, 0.1), mode, at_once=64)
    for number, params in enumerate(samples):
        attacked = attacked_points(lambda z, params=params: graph.evaluate(params, z), *ball(x, 0.1))
        points = torch.cat([points_of(*ball(x, 0.1), 24, 0), x[None], attacked])

        def watch(node, values, output, number=number):
            low, high = together[node.name].take(slice(number * len(x), (number + 1) * len(x))).ends()
            found = output.double().unflatten(0, (-1, len(x)))
            assert (low <= found).all() and (found <= high).all()
            return output

        with torch.no_grad(), direct_sums():
            graph.evaluate(params, points.flatten(0, 1), watch)


def _dense(seed: int, shift: float):
    """Biases of the second layer decide how many of its units are unstable."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        net[2].bias.add_(shift)
    return net


def _images(seed: int, shift: float):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(64, 3),
        )  # fmt: skip
    net.input_shape = (2, 8, 8)
    with torch.no_grad():
        net[2].bias.add_(shift)
    return net


@pytest.mark.parametrize("made", [_dense, _images])
def test_what_is_bounded_is_what_may_have_either_sign(made, monkeypatch):
    """One network has many such units, one some, and one none at all, as one of the points has."""
    found = [graph_and_params(trace(made(seed, shift))) for seed, shift in enumerate((0.0, 0.3, 50.0))]
    graph, samples = found[0][0], [params for _, params in found]
    x = torch.rand(4, *graph.input_shape, generator=torch.Generator().manual_seed(0))
    box = outward_box(x, torch.tensor([0.0, 0.1, 0.2, 0.3], dtype=torch.float64))
    rows: list[int] = []
    real = intermediate._Layer._lower

    def counted(self, how, graph, boxes, specification, inside):
        rows.append(specification.shape[0] * specification.shape[1] // 2)
        return real(self, how, graph, boxes, specification, inside)

    monkeypatch.setattr(intermediate._Layer, "_lower", counted)
    mode = by_name("outward", torch.float32)
    alone = []
    for params in samples:
        rows.clear()
        with torch.no_grad(), direct_sums():
            crown_boxes(graph, params, layer_boxes(graph, params, box, mode), mode, 4096)
        alone.append(sum(rows))
    assert alone[2] == 0 < alone[1] < alone[0]
    rows.clear()
    with torch.no_grad(), direct_sums():
        together = crown_boxes_of_all(graph, Stack.of(stack(samples)), box, mode, 3 * 4096)
    # Filled up to the network that has most.
    assert sum(alone) < sum(rows) <= len(samples) * (alone[0] + 20)
    each, again = each_and_all(graph, samples, box, mode)
    assert_same(each, together, 1e-5)
    assert_same(each, again, 1e-5)
    rows.clear()
    each, together = each_and_all(graph, samples[2:] * 2, box, mode)
    assert not rows
    assert_same(each, together, 1e-6)


def test_networks_alike_cost_together_what_they_cost_alone(monkeypatch):
    point = cb.networks.mlp(6, [20, 20], 3, seed=0)
    params = {name: 2 * value.detach() for name, value in point.named_parameters()}
    std = {name: torch.full_like(value, 0.02) for name, value in params.items()}
    predictor = cb.DiagonalGaussian(point, params, std).predictor(6, seed=0)
    x = torch.rand(10, 6, generator=torch.Generator().manual_seed(0))
    counts: list[int] = []
    real = intermediate._Layer._lower

    def counted(self, how, graph, boxes, specification, inside):
        counts.append(specification.shape[0] * specification.shape[1])
        return real(self, how, graph, boxes, specification, inside)

    monkeypatch.setattr(intermediate._Layer, "_lower", counted)
    mode, box = by_name("outward", torch.float32), outward_box(x, 0.05)
    samples = [{name: tensor[i] for name, tensor in predictor.samples.items()} for i in range(6)]
    with torch.no_grad(), direct_sums():
        for one in samples:
            crown_boxes(predictor.graph, one, layer_boxes(predictor.graph, one, box, mode), mode, 512)
        alone = sum(counts)
        counts.clear()
        crown_boxes_of_all(predictor.graph, Stack.of(predictor.samples), box, mode, 6 * 512)
    assert alone < sum(counts) < 1.5 * alone
    # Layers have 20 units, so there is never room for more rows.
    assert 20 * max(counts) <= 6 * 512
