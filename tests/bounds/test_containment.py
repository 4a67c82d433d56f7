"""Law 1: no point of the ball, sampled, corner or attacked, ever leaves its bounds."""

import pytest
import torch
from hypothesis import given

from certibayes.bounds import IDEAL, ideal_box, interval_bounds, outward, outward_box
from certibayes.networks import direct_sums

from ..strategies import (
    ZOO,
    assert_inside,
    attacked_points,
    ball,
    inputs,
    law,
    outputs_at,
    points_of,
    radii,
    seeds,
    traced,
)

pytestmark = pytest.mark.parametrize("name", ZOO)


def _points(graph, params, lower, upper, seed):
    """Outputs at sampled, corner and attacked points of the ball, (points, B, C)."""
    points = torch.cat(
        [
            points_of(lower, upper, 24, seed),
            attacked_points(lambda x: graph.evaluate(params, x), lower, upper),
        ]
    )
    return outputs_at(graph, params, points)


@law(6)
@given(seed=seeds, eps=radii)
def test_ideal_bounds_hold_every_point_of_the_ball(name, seed, eps):
    graph, params = traced(name, seed, torch.float64)
    x = inputs(name, 3, seed, torch.float64)
    box = interval_bounds(graph, params, ideal_box(x, eps), IDEAL)
    assert_inside(_points(graph, params, *ball(x, eps), seed), box, slack=1e-11)


@law(6)
@given(seed=seeds, eps=radii)
def test_outward_bounds_hold_every_point_of_the_ball_without_tolerance(name, seed, eps):
    graph, params = traced(name, seed)
    x = inputs(name, 3, seed)
    with direct_sums():
        box = interval_bounds(graph, params, outward_box(x, eps), outward(torch.float32))
    assert_inside(_points(graph, params, *ball(x, eps), seed), box)


@law(3)
@given(seed=seeds, eps=radii)
def test_outward_bounds_hold_the_float64_program_too(name, seed, eps):
    graph, params = traced(name, seed, torch.float64)
    x = inputs(name, 3, seed, torch.float64)
    box = interval_bounds(graph, params, outward_box(x, eps), outward(torch.float64))
    assert_inside(_points(graph, params, *ball(x, eps), seed), box)


@law(3)
@given(seed=seeds, eps=radii)
def test_bounds_hold_the_points_of_the_domain_when_the_ball_is_clipped(name, seed, eps):
    graph, params = traced(name, seed)
    x = inputs(name, 3, seed).sigmoid()
    x[0, ..., 0], x[1, ..., 0] = 0.0, 1.0
    domain = (0.0, 1.0)
    box = interval_bounds(graph, params, outward_box(x, eps, domain), outward(torch.float32))
    assert_inside(_points(graph, params, *ball(x, eps, domain), seed), box)


@law(3)
@given(seed=seeds, eps=radii)
def test_outward_bounds_contain_ideal_bounds(name, seed, eps):
    graph, params = traced(name, seed)
    x = inputs(name, 3, seed)
    double = {key: value.double() for key, value in params.items()}
    ideal = interval_bounds(graph, double, ideal_box(x.double(), eps), IDEAL)
    wide = interval_bounds(graph, params, outward_box(x, eps), outward(torch.float32))
    assert_inside(torch.stack([ideal.lower, ideal.upper]), wide)


@law(4)
@given(seed=seeds, eps=radii)
def test_ideal_bounds_shrink_when_the_ball_shrinks(name, seed, eps):
    graph, params = traced(name, seed, torch.float64)
    x = inputs(name, 3, seed, torch.float64)
    large = interval_bounds(graph, params, ideal_box(x, eps), IDEAL)
    small = interval_bounds(graph, params, ideal_box(x, eps / 2), IDEAL)
    assert_inside(torch.stack([small.lower, small.upper]), large, slack=1e-12)


@law(4)
@given(seed=seeds, eps=radii)
def test_outward_bounds_shrink_when_the_ball_shrinks(name, seed, eps):
    graph, params = traced(name, seed)
    x = inputs(name, 3, seed)
    large = interval_bounds(graph, params, outward_box(x, eps), outward(torch.float32))
    small = interval_bounds(graph, params, outward_box(x, eps / 2), outward(torch.float32))
    largest = large.radius.double() + large.center.double().abs()
    room = 1e-5 * float(largest.max())  # what rounding of two different computations may leave
    assert bool((small.ends()[0] >= large.ends()[0] - room).all())
    assert bool((small.ends()[1] <= large.ends()[1] + room).all())


def test_bounds_at_radius_zero_are_the_output(name):
    graph, params = traced(name, 3, torch.float64)
    x = inputs(name, 4, 3, torch.float64)
    box = interval_bounds(graph, params, ideal_box(x, 0.0), IDEAL)
    torch.testing.assert_close(box.center, graph.evaluate(params, x))
    torch.testing.assert_close(box.radius, torch.zeros_like(box.radius), atol=1e-10, rtol=0)
