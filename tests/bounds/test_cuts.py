"""Cuts are above their ReLU unit everywhere, whatever the coefficients; bounds with them hold and are tighter."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from certibayes.attacks import ascend
from certibayes.bounds import IDEAL, Box, LinearBounder, ideal_box, layer_boxes, outward, outward_box
from certibayes.bounds.cuts import Cuts, apply_cuts, chord_cuts, cut_values
from certibayes.bounds.linear import margin_specification
from certibayes.bounds.optimize import optimized_lower, start_relaxation
from certibayes.networks import direct_sums, trace

from ..strategies import ZOO, attacked_points, ball, inputs, law, outputs_at, points_of, seeds, traced


def unit(seed, width=4, units=3):
    """A layer, a box, and cuts above all its units, with random coefficients."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    weights = {"weight": normal(units, width), "bias": normal(units)}
    box = Box(normal(2, width), normal(2, width).abs())
    units_of = torch.arange(units).expand(2, 1, units).contiguous()
    coefficients = torch.rand(2, 1, units, width, generator=g, dtype=torch.float64)
    return weights, box, Cuts(units_of, torch.ones_like(units_of, dtype=torch.bool), coefficients)


def corners(box):
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=box.center.shape[1])), dtype=torch.float64)
    return box.center + signs[:, None] * box.radius


@law(50)
@given(seed=seeds)
def test_a_cut_is_above_its_unit_in_the_whole_box_whatever_the_coefficients(seed):
    weights, box, cuts = unit(seed)
    inside = points_of(box.lower, box.upper, 200, seed)
    for x in torch.cat([corners(box), inside]):
        values = torch.relu(x @ weights["weight"].T + weights["bias"])
        assert (cut_values(cuts, weights, box, x)[:, 0] >= values - 1e-12).all()


@law(30)
@given(seed=seeds)
def test_every_cut_touches_its_unit(seed):
    """The constant is the smallest there is: at some corner the cut and the unit meet."""
    weights, box, cuts = unit(seed)
    gaps = [
        cut_values(cuts, weights, box, x)[:, 0] - torch.relu(x @ weights["weight"].T + weights["bias"])
        for x in corners(box)
    ]
    assert (torch.stack(gaps).amin(0) <= 1e-12).all()


@law(30)
@given(seed=seeds)
def test_equal_coefficients_are_the_chord(seed):
    weights, box, _ = unit(seed)
    middle = box.center @ weights["weight"].T + weights["bias"]
    reach = box.radius @ weights["weight"].abs().T
    low, high = middle - reach, middle + reach
    chords = chord_cuts(-torch.ones(2, 1, 3, dtype=torch.float64), Box(middle, reach), 4, 3)
    for x in points_of(box.lower, box.upper, 20, seed):
        chord = high / (high - low) * (x @ weights["weight"].T + weights["bias"] - low)
        heights = cut_values(chords, weights, box, x)[:, 0]
        wanted = chord.gather(1, chords.units[:, 0])
        torch.testing.assert_close(heights[chords.in_use[:, 0]], wanted[chords.in_use[:, 0]])


def test_only_units_of_either_sign_with_negative_coefficients_are_chosen():
    box = Box(torch.tensor([[0.0, 5.0, -5.0, 0.5]]), torch.ones(1, 4))
    cuts = chord_cuts(torch.tensor([[[-1.0, -1.0, -1.0, 1.0]]]), box, 2, 128)
    assert cuts.units.tolist() == [[[0]]]
    assert cuts.in_use.all()


def test_none_are_chosen_where_nothing_can_be_gained():
    cuts = chord_cuts(torch.ones(2, 3, 5), Box(torch.zeros(2, 5), torch.ones(2, 5)), 7, 128)
    assert cuts.coefficients.shape == (2, 3, 0, 7)


def test_units_that_fill_up_the_list_are_left_as_they_are():
    """Two examples, one of which has no unit to cut: nothing of it may move."""
    weights = {"weight": torch.eye(2), "bias": torch.zeros(2)}
    inputs_box = Box(torch.tensor([[0.0, 0.0], [5.0, 5.0]]), torch.ones(2, 2))
    coefficients = -torch.ones(2, 1, 2)
    cuts = chord_cuts(coefficients, inputs_box, 2, 128)
    relaxed = apply_cuts(cuts, coefficients, weights, inputs_box, inputs_box, IDEAL)
    assert relaxed.rest[0].eq(0).all()
    assert relaxed.rest[1].eq(-1).all()
    assert relaxed.coefficients[1].eq(0).all()
    assert relaxed.constant[1].eq(0).all()


MLPS = ["relu", "no bias", "residual", "convolution, stride and padding", "batch norm on images", "residual images"]


def odd_coefficients(shape, sharpness, g):
    """Coefficients in [0, 1]; the larger the sharpness, the more of them are 0 or 1."""
    return (sharpness * (torch.rand(shape, generator=g) - 0.5) + 0.5).clamp(0, 1)


@pytest.mark.parametrize("name", MLPS)
@law(3)
@given(seed=seeds, eps=st.sampled_from([0.0, 1e-3, 0.1, 0.5]))
def test_no_point_of_the_ball_is_below_the_bound(name, seed, eps):
    """In floats, without tolerance; also with coefficients that nobody would choose."""
    assert name in ZOO
    graph, params = traced(name, seed)
    x, labels = inputs(name, 2, seed), torch.tensor([0, 1])
    rounding = outward(torch.float32)
    with torch.no_grad(), direct_sums():
        boxes = layer_boxes(graph, params, outward_box(x, eps), rounding)
        specification, rivals = margin_specification(labels, graph.classes, x.dtype)
        bounder = LinearBounder(graph, params, boxes, rounding)
        found = [optimized_lower(bounder, specification, 10, hull=True)]
        start = start_relaxation(bounder, specification, True, {})
        g = torch.Generator().manual_seed(seed)
        for sharpness in (1.0, 20.0):
            odd = {
                layer: cuts._replace(coefficients=odd_coefficients(cuts.coefficients.shape, sharpness, g))
                for layer, cuts in start.cuts.items()
            }
            found.append(bounder.lower(specification, replace(start, cuts=odd)))
    points = torch.cat([points_of(*ball(x, eps), 48, seed), x[None]])
    if eps > 0:
        points = torch.cat([points, attacked_points(lambda z: graph.evaluate(params, z), *ball(x, eps))])
    outputs = outputs_at(graph, params, points).double()
    own = outputs.gather(-1, labels.expand(len(outputs), 2)[..., None])
    smallest = (own - outputs).gather(-1, rivals.expand(len(outputs), -1, -1)).amin(0)
    for lower in found:
        assert (lower <= smallest).all()


def test_they_close_much_of_the_gap_that_slopes_leave():
    """On one hidden layer, where the box of the inputs is exact; the gap is to the worst corner that climbing finds."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3)).double()
        x = torch.rand(16, 20, dtype=torch.float64)
    network = trace(net, x[:1])
    labels = torch.arange(16) % 3
    specification, rivals = margin_specification(labels, 3, x.dtype)
    with torch.no_grad():
        boxes = layer_boxes(network.graph, network.params, ideal_box(x, 0.5), IDEAL)
        bounder = LinearBounder(network.graph, network.params, boxes)
        slopes = optimized_lower(bounder, specification, steps=60)
        hull = optimized_lower(bounder, specification, steps=60, hull=True)

    def margins(z):
        outputs = net(z)
        return outputs.gather(1, labels[:, None]) - outputs.gather(1, rivals)

    lower, upper = ball(x, 0.5)
    worst = torch.stack(
        [
            torch.stack(
                [
                    margins(ascend(lambda z, r=r: -margins(z)[:, r], start, lower, upper, 40, 0.1))[:, r].detach()
                    for start in points_of(lower, upper, 8, 0)
                ]
            ).amin(0)
            for r in range(2)
        ],
        1,
    )
    assert (hull <= worst + 1e-9).all()
    assert (hull >= slopes - 0.01).all()
    closed = (hull - slopes).sum() / (worst - slopes).sum()
    assert closed > 0.4
