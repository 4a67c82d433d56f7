"""The laws for l2 and l1 balls: every layer, every kind of bound, no point of the ball outside."""

from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import nn

from certibayes.bounds import (
    IDEAL,
    Ball,
    Box,
    interval_bounds,
    layer_boxes,
    linear_bounds,
    outward,
    outward_box,
)
from certibayes.bounds import ideal_box as ideal
from certibayes.bounds._ball_box import concretize_over_ball_box
from certibayes.bounds.linear import LinearBounder, concretize
from certibayes.bounds.optimize import optimized_lower
from certibayes.errors import InvalidInput
from certibayes.networks import direct_sums, trace
from certibayes.regions import lowest_point

from ..strategies import (
    ZOO,
    assert_inside,
    distance,
    fractions,
    generator,
    graph_and_params,
    in_turn,
    inputs,
    into_ball,
    law,
    outputs_at,
    radii,
    seeds,
    traced,
)

F32, F64 = outward(torch.float32), outward(torch.float64)
norms = pytest.mark.parametrize("norm", ["l2", "l1"])
zoo = pytest.mark.parametrize("name", ZOO)
zoo_and_norms = pytest.mark.parametrize(("name", "norm"), in_turn(ZOO, ["l2", "l1"]))


def _directions(graph, params, x, seed, count=12):
    """Directions (points, B, ...): random ones, single coordinates, and the gradients of all outputs."""
    found = [torch.randn(count, *x.shape, generator=generator(seed + 5), dtype=torch.float64)]
    width = x[0].numel()
    single = torch.randint(0, width, (count,), generator=generator(seed + 6))
    signed = torch.eye(width, dtype=torch.float64)[single] * (2 * (single % 2) - 1)[:, None]
    found.append(signed.view(count, 1, *x.shape[1:]).expand(count, *x.shape))
    for index in range(graph.classes):
        moving = x.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(graph.evaluate(params, moving).flatten(1)[:, index].sum(), moving)
        slope = slope.double()[None] + 1e-12
        largest = slope.abs() == slope.abs().flatten(2).amax(-1).view(1, -1, *[1] * (x.dim() - 1))
        found += [slope, -slope, slope * largest, -slope * largest]
    return torch.cat(found)


def _outputs_in_ball(graph, params, x, eps, norm, seed, domain=None):
    """Outputs of the program at points of the ball's surface, inside as float64 computes it, (points, B, C)."""
    directions = _directions(graph, params, x, seed)
    around, direction = x.expand_as(directions).flatten(0, 1), directions.flatten(0, 1)
    far = (around.double() + direction / distance(direction, norm) * eps).to(x.dtype)
    far = far if domain is None else far.clamp(*domain)
    points = into_ball(far, around, torch.full((len(far), *[1] * (x.dim() - 1)), eps, dtype=torch.float64), norm)
    assert bool((distance(points.double() - around.double(), norm) <= eps).all())
    return outputs_at(graph, params, points.view_as(directions))


def _every_bound(graph, params, box, rounding):
    """Bounds by intervals, CROWN and CROWN with optimized slopes, as (lower, upper)."""
    with torch.no_grad(), direct_sums():
        found = [interval_bounds(graph, params, box, rounding).ends(), linear_bounds(graph, params, box, rounding)]
        boxes = layer_boxes(graph, params, box, rounding)
        unit = torch.eye(graph.classes, dtype=box.center.dtype).view(graph.classes, *graph.output_shape)
        both = torch.cat([unit, -unit]).expand(len(box.center), 2 * graph.classes, *graph.output_shape)
        lower, negative = optimized_lower(LinearBounder(graph, params, boxes, rounding), both, steps=3).split(
            graph.classes, 1
        )
    return [*found, (lower, -negative)]


@zoo_and_norms
@law(3)
@given(seed=seeds, eps=radii)
def test_no_point_of_the_ball_leaves_any_bound(name, norm, seed, eps):
    graph, params = traced(name, seed)
    x = inputs(name, 3, seed)
    values = _outputs_in_ball(graph, params, x, eps, norm, seed).double()
    for lower, upper in _every_bound(graph, params, outward_box(x, eps, norm=norm), F32):
        assert bool((lower <= values).all() and (values <= upper).all())


@zoo_and_norms
@law(2)
@given(seed=seeds, eps=radii)
def test_nor_in_float64_nor_where_the_domain_cuts_the_ball(name, norm, seed, eps):
    graph, params = traced(name, seed, torch.float64)
    x = inputs(name, 3, seed, torch.float64).sigmoid()
    x[0, ..., 0], x[1, ..., 0] = 0.0, 1.0
    values = _outputs_in_ball(graph, params, x, eps, norm, seed, (0.0, 1.0))
    for lower, upper in _every_bound(graph, params, outward_box(x, eps, (0.0, 1.0), norm=norm), F64):
        assert bool((lower <= values).all() and (values <= upper).all())


@zoo_and_norms
def test_at_radius_zero_every_float_output_is_inside(name, norm):
    graph, params = traced(name, 1)
    x = inputs(name, 40, 1)
    with direct_sums():
        values = torch.cat([graph.evaluate(params, part) for part in x.split(7)]).double()
    for lower, upper in _every_bound(graph, params, outward_box(x, 0.0, norm=norm), F32):
        assert bool((lower <= values).all() and (values <= upper).all())


@zoo
@law(2)
@given(seed=seeds, eps=radii)
def test_balls_within_balls_have_bounds_within_bounds(name, seed, eps):
    """l1 in l2 in l-infinity, and half the radius in the whole; in exact arithmetic, so but for float64's rounding."""
    graph, params = traced(name, seed, torch.float64)
    x = inputs(name, 3, seed, torch.float64)
    chain = [(eps, "linf"), (eps, "l2"), (eps, "l1"), (eps / 2, "l1")]
    halves = [(eps, "l2"), (eps / 2, "l2")]
    for larger, smaller in [*pairwise(chain), tuple(halves)]:
        wide, narrow = (ideal(x, radius, None, norm) for radius, norm in (larger, smaller))
        outer, inner = interval_bounds(graph, params, wide), interval_bounds(graph, params, narrow)
        assert_inside(torch.stack([inner.lower, inner.upper]), outer, slack=1e-9)
        # CROWN's chords are not nested in general, but every bound of the inner ball beats the outer interval.
        lower, upper = linear_bounds(graph, params, narrow)
        assert_inside(torch.stack([lower, upper]), outer, slack=1e-9)


@zoo
@norms
def test_outward_bounds_contain_ideal_bounds(name, norm):
    graph, params = traced(name, 4)
    x = inputs(name, 3, 4)
    double = {key: value.double() for key, value in params.items()}
    exact = interval_bounds(graph, double, ideal(x.double(), 0.1, None, norm), IDEAL)
    wide = interval_bounds(graph, params, outward_box(x, 0.1, norm=norm), F32)
    assert_inside(torch.stack([exact.lower, exact.upper]), wide)


# One linear function


def _ball_box(seed, norm, width=7, dtype=torch.float64, radius=0.7):
    """A ball whose box is cut by the domain [0, 1], with centers at the walls and in between."""
    x = torch.rand(2, width, generator=generator(seed), dtype=dtype)
    x[:, 0], x[:, 1] = 0.0, 1.0
    return x, radius, ideal(x, radius, (0.0, 1.0), norm)


@law(20)
@given(seed=seeds, radius=st.sampled_from([0.05, 0.7, 1.5, 5.0]))
def test_the_smallest_value_over_box_and_l1_ball_is_that_of_the_linear_program(seed, radius):
    x, radius, box = _ball_box(seed, "l1", radius=radius)
    coefficients = torch.randn(2, 3, 7, generator=generator(seed + 1), dtype=torch.float64)
    found = concretize_over_ball_box(coefficients, box, IDEAL)
    for point, rows, row_values in zip(x, coefficients, found, strict=True):
        for row, value in zip(rows, row_values, strict=True):
            # x' = x + up - down, up and down within the walls, their sum within the radius.
            walls = [(0.0, float(1 - v)) for v in point] + [(0.0, float(v)) for v in point]
            best = linprog(torch.cat([row, -row]).tolist(), [[1.0] * 14], [radius], bounds=walls)
            assert abs(float(value) - float(row @ point) - best.fun) < 1e-8


@law(20)
@given(seed=seeds, radius=st.sampled_from([0.05, 0.7, 1.5, 5.0]))
def test_the_smallest_value_over_box_and_l2_ball_is_where_the_budget_is_spent(seed, radius):
    x, radius, box = _ball_box(seed, "l2", radius=radius)
    coefficients = torch.randn(2, 3, 7, generator=generator(seed + 1), dtype=torch.float64)
    found = concretize_over_ball_box(coefficients, box, IDEAL)
    room = torch.where(coefficients > 0, x[:, None], 1 - x[:, None])
    low, high = torch.zeros(2, 3, 1), torch.full((2, 3, 1), 1e9, dtype=torch.float64)
    for _ in range(200):  # bisect the multiplier of ||u||^2 <= radius^2
        middle = (low + high) / 2
        spent = torch.minimum(room, coefficients.abs() / middle.clamp(min=1e-300)).square().sum(-1, keepdim=True)
        low, high = torch.where(spent > radius**2, middle, low), torch.where(spent > radius**2, high, middle)
    moves = torch.minimum(room, coefficients.abs() / high.clamp(min=1e-300))
    best = (coefficients * x[:, None]).sum(-1) - (coefficients.abs() * moves).sum(-1)
    torch.testing.assert_close(found, best, atol=1e-7, rtol=0)


@norms
@law(15)
@given(seed=seeds)
def test_the_lowest_point_lies_in_box_and_ball_and_attains_the_bound(norm, seed):
    x, radius, box = _ball_box(seed, norm)
    coefficients = torch.randn(2, 7, generator=generator(seed + 1), dtype=torch.float64)
    point = lowest_point(coefficients, box)
    assert bool((point >= -1e-12).all() and (point <= 1 + 1e-12).all())
    assert bool((distance(point - x, norm) <= radius * (1 + 1e-6)).all())
    smallest = concretize_over_ball_box(coefficients[:, None], box, IDEAL)[:, 0]
    torch.testing.assert_close((coefficients * point).sum(-1), smallest, atol=1e-6, rtol=0)


def test_without_a_ball_the_lowest_point_is_a_corner():
    box = Box(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.25]]))
    assert lowest_point(torch.tensor([[2.0, -1.0]]), box).tolist() == [[0.5, 2.25]]


@norms
def test_the_slope_of_the_bound_is_the_lowest_point_and_never_nan(norm):
    _, _, box = _ball_box(3, norm)
    zero = torch.zeros(2, 2, 7, dtype=torch.float64)
    for coefficients in (zero, torch.randn(2, 2, 7, generator=generator(9), dtype=torch.float64)):
        # Under no_grad, as certificates call it.
        with torch.no_grad():
            slope = torch.func.grad(lambda c: concretize(c, box, IDEAL).sum())(coefficients)
        assert bool(torch.isfinite(slope).all())
    for index in range(2):
        expected = lowest_point(coefficients[:, index], box)
        torch.testing.assert_close(slope[:, index], expected, atol=1e-6, rtol=0)


@norms
@law(30)
@given(seed=seeds, scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]), radius=st.sampled_from([1e-7, 1e-2, 3.0]))
def test_rounding_of_the_smallest_value_in_fractions(norm, seed, scale, radius):
    """Coefficients may be 16 units off, and points in the corners of the ball: exactly computed, none is below."""
    x = torch.randn(1, 60, generator=generator(seed)) * scale
    box = outward_box(x, radius * scale, norm=norm)
    coefficients = torch.randn(1, 1, 60, generator=generator(seed + 1))
    found = fractions(concretize_over_ball_box(coefficients, box, F32))[0][0]
    row, point = fractions(coefficients[0, 0]), fractions(x[0])
    row = [c * (1 + (1 if c * v < 0 else -1) * Fraction(16, 2**24)) for c, v in zip(row, point, strict=True)]
    eps, magnitudes = Fraction(radius * scale), [abs(c) for c in row]
    if norm == "l1":
        fall = eps * max(magnitudes)
    else:
        # A rational number below the root is enough of a test, and exact.
        square = sum(c * c for c in magnitudes)
        fall = eps * Fraction(float(square) ** 0.5) * (1 - Fraction(1, 2**48))
    assert found <= sum(c * v for c, v in zip(row, point, strict=True)) - fall


@norms
@law(20)
@given(seed=seeds, radius=st.sampled_from([1e-6, 1e-2, 3.0]), wide=st.booleans())
def test_the_ball_holds_what_an_attacker_reaches_in_floats(norm, seed, radius, wide):
    """Points given in float64 and read in float32; also around what the point is rounded to."""
    given = torch.randn(4, 30, generator=generator(seed), dtype=torch.float64) * (100.0 if wide else 1.0)
    box = outward_box(given, radius, None, torch.float32, norm)
    ball = box.ball
    for start in (given, given.float().double()):
        direction = torch.randn(4, 30, generator=generator(seed + 2), dtype=torch.float64)
        read = (start + direction / distance(direction, norm) * radius).float().double()
        # Some v within the slack brings it into the ball proper.
        away = read - ball.center
        left = away - away.clamp(-ball.slack, ball.slack)
        assert bool((distance(left, norm).flatten() <= ball.radius).all())
        lower, upper = box.ends()
        assert bool((lower <= read).all() and (read <= upper).all())
    assert bool((ball.radius >= radius).all())


# Odds and ends


@norms
def test_a_ball_passes_through_normalisation_and_reshaping(norm):
    graph, params = traced("normalize", 2)
    x = inputs("normalize", 3, 2)
    boxes = layer_boxes(graph, params, outward_box(x, 0.1, norm=norm), F32)
    first = graph.nodes[0].name
    assert isinstance(boxes[first].ball, Ball)
    with_ball = boxes[graph.nodes[1].name].radius
    without = layer_boxes(graph, params, outward_box(x, 0.1), F32)[graph.nodes[1].name].radius
    assert float((with_ball / without).max()) < 0.7


def test_a_convolution_at_its_border_is_as_wide_as_its_rows():
    """Zero padding takes part of the kernel away; in l2 that part does not count."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.Flatten()).double()
    net.input_shape = (1, 4, 4)
    graph, params = graph_and_params(trace(net))
    x = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    box = interval_bounds(graph, params, ideal(x, 0.5, None, "l2"))
    matrix = torch.func.jacrev(lambda v: graph.evaluate(params, v).flatten())(x).flatten(1)
    torch.testing.assert_close(box.radius.flatten(), 0.5 * matrix.norm(dim=1), atol=1e-9, rtol=0)


@norms
def test_samples_may_be_vmapped(norm):
    graph, params = traced("relu", 0)
    stacked = {key: torch.stack([value, value * 1.1]) for key, value in params.items()}
    box = outward_box(inputs("relu", 3, 0), 0.1, norm=norm)
    mapped = torch.vmap(lambda p: linear_bounds(graph, p, box, F32)[0])(stacked)
    apart = [linear_bounds(graph, {k: v[i] for k, v in stacked.items()}, box, F32)[0] for i in range(2)]
    torch.testing.assert_close(mapped, torch.stack(apart), atol=1e-4, rtol=1e-4)


def test_taking_points_takes_their_balls():
    x = inputs("relu", 5, 0)
    box = outward_box(x, torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]), norm="l2")
    part = box.take(torch.tensor([3, 1]))
    assert part.ball.radius.tolist() == box.ball.radius[[3, 1]].tolist()
    torch.testing.assert_close(part.ball.center, x[[3, 1]].double())
    assert Box(x, x.abs()).take(torch.tensor([0])).ball is None


def test_an_unknown_norm_is_refused():
    x = inputs("relu", 2, 0)
    for make in (lambda: outward_box(x, 0.1, norm="l3"), lambda: ideal(x, 0.1, None, "l3")):
        with pytest.raises(InvalidInput, match="linf, l2, l1"):
            make()


class _Shifted(nn.Module):
    """What is added to the input is taken away again, and almost all digits with it; then pixels are stretched."""

    def __init__(self):
        super().__init__()
        self.conv, self.factor = nn.Conv2d(2, 4, 3, groups=2), nn.Parameter(torch.rand(2, 4, 4) * 3)
        self.last, self.input_shape = nn.Linear(16, 3), (2, 4, 4)

    def forward(self, x):
        return self.last(self.conv(((x + 1000.0) - 1000.0) * self.factor).flatten(1))


@norms
@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.3])
def test_what_rounding_does_before_the_first_affine_layer_is_covered(norm, eps):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        graph, params = graph_and_params(trace(_Shifted()))
    x = torch.randn(40, 2, 4, 4, generator=generator(1))
    values = _outputs_in_ball(graph, params, x, eps, norm, 0).double()
    boxes = layer_boxes(graph, params, outward_box(x, eps, norm=norm), F32)
    assert boxes[graph.nodes[2].name].ball is not None
    for lower, upper in _every_bound(graph, params, outward_box(x, eps, norm=norm), F32):
        assert bool((lower <= values).all() and (values <= upper).all())
    # The first affine layer by itself, whose slack no later layer hides, where each coordinate moves alone.
    name = graph.nodes[3].name
    lower, upper = boxes[name].ends()
    for index in range(64):
        far = x.flatten(1).clone()
        far[:, index // 2] += 2 * eps * (-1) ** index
        point = into_ball(far.view_as(x), x, torch.full((40, 1, 1, 1), eps, dtype=torch.float64), norm)
        found = {}
        graph.evaluate(params, point, lambda node, _, output, found=found: found.setdefault(node.name, output))
        assert bool((lower <= found[name]).all() and (found[name] <= upper).all())


@law(10)
@given(seed=seeds)
def test_coordinates_that_are_left_to_the_box_are_covered(seed):
    graph, params = traced("one linear layer", seed, torch.float64)
    x = torch.rand(4, 5, generator=generator(seed), dtype=torch.float64)
    box = ideal(x, 0.8, (0.0, 1.0), "l2")
    rows = params["weight"].expand(4, -1, -1)
    smallest = concretize_over_ball_box(rows, box, IDEAL) + params["bias"]
    with pytest.MonkeyPatch.context() as patch:
        for closed in (2.0**-20, 0.3, 0.6):
            patch.setattr("certibayes.bounds._ball_box.CLOSED", closed)
            assert bool((interval_bounds(graph, params, box).lower <= smallest + 1e-9).all())
