"""Optimized slopes: never worse than slopes 0, sound on the zoo, and close to the best that the relaxation allows."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor, nn

from certibayes.bounds import LinearBounder, ideal_box, layer_boxes, outward, outward_box
from certibayes.bounds.linear import margin_specification
from certibayes.bounds.optimize import optimized_lower
from certibayes.bounds.slopes import better_lower
from certibayes.networks import direct_sums, trace

from ..strategies import ZOO, attacked_points, ball, graph_and_params, inputs, law, outputs_at, points_of, seeds, traced

F32 = outward(torch.float32)
LABELS = torch.tensor([0, 1, 2])


def _margins(outputs: Tensor, rivals: Tensor) -> Tensor:
    """z_y - z_c of every rival: (..., B, C) and (B, C - 1) -> (..., B, C - 1)."""
    own = outputs.gather(-1, LABELS[: len(rivals)].expand(*outputs.shape[:-2], -1)[..., None])
    return own - outputs.gather(-1, rivals.expand(*outputs.shape[:-1], -1))


@pytest.mark.parametrize("name", ZOO)
@law(2)
@given(seed=seeds, eps=st.sampled_from([1e-3, 0.1, 0.5]))
def test_they_are_sound_in_floats_and_never_worse_than_slopes_zero(name, seed, eps):
    graph, params = traced(name, seed)
    x = inputs(name, 3, seed)
    specification, rivals = margin_specification(LABELS, 3, torch.float32)
    with direct_sums():
        boxes = layer_boxes(graph, params, outward_box(x, eps), F32)
        bounder = LinearBounder(graph, params, boxes, F32)
        plain, found = bounder.lower(specification), optimized_lower(bounder, specification, steps=5)
    assert found.dtype == torch.float64
    assert bool((found >= plain).all())
    lower, upper = ball(x, eps)
    points = torch.cat([
        points_of(lower, upper, 8, seed),
        attacked_points(lambda x: graph.evaluate(params, x), lower, upper, steps=3),
    ])  # fmt: skip
    outputs = outputs_at(graph, params, points).double()
    assert all(bool((_margins(each, rivals) >= found).all()) for each in outputs)


def _mlp(units: list[int], seed: int):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [part for n, m in pairwise(units) for part in (nn.Linear(n, m), nn.ReLU())][:-1]
        x = torch.rand(1, units[0], dtype=torch.float64)
    return nn.Sequential(*layers).double(), x


def _best_of_relaxation(net: nn.Sequential, boxes, specification: Tensor) -> Tensor:
    """Minimize a specification over the triangle relaxation of a network with one hidden layer, by linear programming.

    Variables are the input x and the hidden activations h, with h >= 0, h >= z and h below the chord, z = W x + b.
    """
    graph, _ = graph_and_params(trace(net))
    weight, bias = (p.detach().numpy() for p in (net[0].weight, net[0].bias))
    last, offset = (p.detach().numpy() for p in (net[2].weight, net[2].bias))
    low, high = (end[0].numpy() for end in (boxes["input"].lower, boxes["input"].upper))
    hidden = boxes[graph.nodes[0].name]
    below, above = hidden.lower[0].numpy(), hidden.upper[0].numpy()
    inputs_, units = weight.shape[1], weight.shape[0]
    rows, limits, ranges = [], [], [*zip(low, high, strict=True)]
    for j in range(units):
        unit = np.eye(units)[j]
        if above[j] <= 0:
            ranges.append((0.0, 0.0))
            continue
        ranges.append((0.0, None))
        rows.append(np.concatenate([weight[j], -unit]))  # z - h <= 0
        limits.append(-bias[j])
        chord = 1.0 if below[j] >= 0 else above[j] / (above[j] - below[j])
        shift = 0.0 if below[j] >= 0 else -chord * below[j]
        rows.append(np.concatenate([-chord * weight[j], unit]))  # h <= chord z + shift
        limits.append(chord * bias[j] + shift)
    found = []
    for row in specification[0].numpy():
        goal = np.concatenate([np.zeros(inputs_), row @ last])
        found.append(linprog(goal, np.array(rows), np.array(limits), bounds=ranges).fun + row @ offset)
    return torch.tensor([found])


@pytest.mark.parametrize("eps", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("units", [[6, 12, 3], [20, 16, 3]])
def test_with_one_hidden_layer_they_come_within_two_percent_of_the_best_relaxation(units, eps):
    """Two percent of what separates slopes 0 from the center's own value, with steps to spare."""
    gained = 0.0
    for seed in range(4):
        net, x = _mlp(units, seed)
        graph, params = graph_and_params(trace(net))
        boxes = layer_boxes(graph, params, ideal_box(x, eps))
        specification, rivals = margin_specification(LABELS[:1], 3, torch.float64)
        bounder = LinearBounder(graph, params, boxes)
        plain, found = bounder.lower(specification), optimized_lower(bounder, specification, steps=40)
        best = _best_of_relaxation(net, boxes, specification)
        scale = _margins(graph.evaluate(params, x), rivals) - best
        assert bool((found <= best + 1e-7).all())
        assert bool((found >= best - 0.02 * scale).all())
        assert bool((found >= plain).all())
        gained = max(gained, float(((found - plain) / scale).max()))
    assert gained > 0.02  # there was something to find


def test_the_default_number_of_steps_finds_most_of_it():
    net, x = _mlp([20, 16, 3], 0)
    graph, params = graph_and_params(trace(net))
    boxes = layer_boxes(graph, params, ideal_box(x, 0.2))
    specification, _ = margin_specification(LABELS[:1], 3, torch.float64)
    bounder = LinearBounder(graph, params, boxes)
    plain = bounder.lower(specification)
    gap = _best_of_relaxation(net, boxes, specification) - plain
    left = _best_of_relaxation(net, boxes, specification) - optimized_lower(bounder, specification)
    assert float(left.sum()) < 0.3 * float(gap.sum())


def test_without_steps_or_kinks_they_are_the_plain_bounds():
    for name, steps in (("relu", 0), ("tanh", 3)):
        graph, params = traced(name, 0)
        boxes = layer_boxes(graph, params, ideal_box(inputs(name, 3, 0), 0.1))
        specification, _ = margin_specification(LABELS, 3, torch.float32)
        bounder = LinearBounder(graph, params, boxes)
        found = optimized_lower(bounder, specification, steps=steps)
        torch.testing.assert_close(found, better_lower(bounder, specification))


@pytest.mark.parametrize("name", ["relu", "leaky relu", "convolution, stride and padding", "residual"])
def test_samples_may_be_vmapped(name):
    graph, params = traced(name, 0)
    x = inputs(name, 3, 0)
    specification, _ = margin_specification(LABELS, 3, torch.float32)
    stacked = {key: torch.stack([p, 1.1 * p]) for key, p in params.items()}

    def bound(weights):
        boxes = layer_boxes(graph, weights, outward_box(x, 0.2), F32)
        return optimized_lower(LinearBounder(graph, weights, boxes, F32), specification, steps=3)

    with torch.no_grad():
        mapped = torch.vmap(bound)(stacked)
        alone = [bound({key: p[i] for key, p in stacked.items()}) for i in range(2)]
    torch.testing.assert_close(mapped, torch.stack(alone), rtol=1e-3, atol=1e-3)


def test_every_quantity_has_slopes_of_its_own():
    """What is found for one margin does not depend on which others are asked about."""
    net, x = _mlp([6, 12, 3], 1)
    graph, params = graph_and_params(trace(net))
    boxes = layer_boxes(graph, params, ideal_box(x, 0.3))
    specification, _ = margin_specification(LABELS[:1], 3, torch.float64)
    bounder = LinearBounder(graph, params, boxes)
    mapped = optimized_lower(bounder, specification)
    alone = [optimized_lower(bounder, specification[:, k : k + 1]) for k in range(2)]
    torch.testing.assert_close(mapped, torch.cat(alone, 1))
