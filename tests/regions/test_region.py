"""One set of inputs, asked in many ways: what is answered must agree."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.regions import NORMS, Box, InputRegion

from ..strategies import distance, generator, law, seeds

norms = st.sampled_from(NORMS)
radii = st.sampled_from([0.0, 1e-7, 1e-3, 0.1, 0.7, 3.0])
dtypes = st.sampled_from([torch.float32, torch.float64])
kinds = st.sampled_from(["none", "numbers", "features", "points"])
SHAPE = (6, 5)


def region_of(seed, norm, eps, kind, dtype=torch.float32):
    """Points, some of them on the border of domains that differ, or not, from feature to feature and point to point."""
    g = generator(seed)
    x = torch.rand(SHAPE, generator=g, dtype=dtype)
    low = torch.rand((1 if kind == "features" else 6, 5), generator=g, dtype=torch.float64) - 0.7
    high = low + torch.rand(low.shape, generator=g, dtype=torch.float64) * 2
    high[0, 0] = low[0, 0]  # a feature that cannot change
    domain = {"none": None, "numbers": (0.1, 0.7), "features": (low, high), "points": (low, high)}[kind]
    if domain is not None:
        ends = (torch.as_tensor(end, dtype=torch.float64).to(dtype) for end in domain)
        x = torch.clamp(x, *(end.expand(SHAPE) for end in ends))
    return InputRegion.around(x, eps, norm, domain)


def is_inside(region, z):
    """Distances in float64, the domain in the inputs' own precision; without tolerance."""
    inside = (region.distance(z)[:, None] <= region.radius.flatten(1)).all()
    if region.domain is not None:
        low, high = (torch.as_tensor(end, dtype=torch.float64).to(z.dtype) for end in region.domain)
        inside &= ((low <= z) & (z <= high)).all()
    return bool(inside)


@law(60)
@given(seed=seeds, norm=norms, eps=radii, kind=kinds, dtype=dtypes)
def test_projections_and_samples_are_inside_and_stay(seed, norm, eps, kind, dtype):
    region = region_of(seed, norm, eps, kind, dtype)
    far = region.center + torch.randn(SHAPE, generator=generator(seed + 1), dtype=dtype) * 3
    for z in (region.project(far), region.sample(generator(seed)), region.project(region.center)):
        assert z.dtype == dtype and is_inside(region, z)
        assert torch.equal(region.project(z), z)
    assert torch.equal(region.project(region.center), region.center)


@law(60)
@given(seed=seeds, norm=norms, eps=radii, kind=kinds, fraction=st.sampled_from([0.1, 1.0, 2.0]))
def test_a_steepest_step_ends_inside_and_goes_up(seed, norm, eps, kind, fraction):
    region = region_of(seed, norm, eps, kind)
    gradient = torch.randn(SHAPE, generator=generator(seed + 1))
    z = region.sample(generator(seed + 2))
    there = region.project(z + region.steepest_step(z, gradient, fraction))
    assert is_inside(region, there)
    step = region.project(region.center + region.steepest_step(region.center, gradient, fraction)) - region.center
    assert bool(((step * gradient).double().sum(-1) >= 0).all())


@law(60)
@given(seed=seeds, norm=norms, eps=radii, kind=kinds, dtype=dtypes)
def test_the_outward_box_holds_every_sample_in_floats(seed, norm, eps, kind, dtype):
    region = region_of(seed, norm, eps, kind, dtype)
    box = region.outward_box()
    lower, upper = box.ends()
    corners = [region.project(region.center + sign * 100 * torch.ones(SHAPE, dtype=dtype)) for sign in (-1, 1)]
    for z in (*(region.sample(generator(seed + k)) for k in range(5)), *corners, region.center):
        assert bool((lower <= z.double()).all() and (z.double() <= upper).all())
        if box.ball is not None:
            away = z.double() - box.ball.center
            left = away - away.clamp(-box.ball.slack, box.ball.slack)
            assert bool((distance(left, norm).flatten() <= box.ball.radius).all())


@law(30)
@given(seed=seeds, eps=radii, kind=st.sampled_from(["features", "points"]))
def test_float64_points_and_domains_are_held_as_a_float32_network_reads_them(seed, eps, kind):
    region = region_of(seed, "linf", eps, kind, torch.float64)
    lower, upper = region.outward_box(torch.float32).ends()
    for k in range(5):
        read = region.sample(generator(seed + k)).float().double()
        assert bool((lower <= read).all() and (read <= upper).all())


@law(40)
@given(seed=seeds, eps=radii, kind=st.sampled_from(["features", "points"]))
def test_the_outward_box_keeps_to_the_domain_of_each_feature(seed, eps, kind):
    """Not only sound: a box that ignored the domain would be as well. A unit beyond its ends is all it may be."""
    region = region_of(seed, "linf", eps, kind)
    low, high = (end.float().expand(SHAPE) for end in region.domain)
    box = region.outward_box()
    for row in range(SHAPE[0]):
        for at in range(SHAPE[1]):
            lower = Fraction(float(box.center[row, at])) - Fraction(float(box.radius[row, at]))
            upper = Fraction(float(box.center[row, at])) + Fraction(float(box.radius[row, at]))
            unit = Fraction(float(high[row, at] - low[row, at]) + 2.0) / 2**21
            assert lower >= Fraction(float(low[row, at])) - unit and upper <= Fraction(float(high[row, at])) + unit


@law(40)
@given(seed=seeds, norm=norms, eps=radii, kind=kinds)
def test_the_minimum_of_a_linear_function_is_below_every_sample_and_attained(seed, norm, eps, kind):
    region = region_of(seed, norm, eps, kind, torch.float64)
    coefficients = torch.randn(6, 3, 5, generator=generator(seed + 1), dtype=torch.float64)
    smallest = region.minimum(coefficients)
    for k in range(20):
        values = (coefficients * region.sample(generator(seed + k))[:, None]).sum(-1)
        assert bool((smallest <= values + 1e-9).all())
    for row in range(3):
        point = region.minimizer(coefficients[:, row])
        assert bool((region.distance(point) <= eps * (1 + 1e-6) + 1e-12).all())
        assert bool(((point - region.project(point)).abs() <= 1e-5 * (eps + 1e-6)).all())
        torch.testing.assert_close((coefficients[:, row] * point).sum(-1), smallest[:, row], atol=1e-6, rtol=0)


def test_radii_of_values_may_come_once_or_for_every_point():
    x, radii = torch.rand(4, 3, generator=generator(0)), torch.tensor([[0.0, 0.1, 0.5]])
    once, every = InputRegion.around(x, radii, domain=(0, 1)), InputRegion.around(x, radii.expand(4, 3), domain=(0, 1))
    for ask in (
        lambda region: region.outward_box().radius,
        lambda region: region.ideal_box().center,
        lambda region: region.project(x + 1),
        lambda region: region.sample(generator(1)),
        lambda region: region.take(torch.tensor([2, 1])).outward_box().center,
        lambda region: region.steepest_step(x, x, 0.5),
    ):
        assert torch.equal(ask(once), ask(every))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["none", "numbers", "features", "points"])
@pytest.mark.parametrize("index", [torch.tensor([4, 1, 1]), torch.arange(6) % 2 == 0, slice(2, 5)], ids=str)
def test_some_points_have_the_regions_they_had(norm, kind, index):
    region, z = region_of(0, norm, 0.3, kind), torch.randn(SHAPE, generator=generator(1))
    fresh, used = region.take(index), region_of(0, norm, 0.3, kind)
    found = used.project(z)  # its limits are known from here on
    for some in (fresh, used.take(index)):
        assert len(some) == len(z[index])
        assert torch.equal(some.project(z[index]), found[index])
        assert torch.equal(some.outward_box().radius, region.outward_box().radius[index])


def test_radii_of_points():
    region = InputRegion.around(torch.zeros(3, 2), torch.tensor([0.0, 0.1, 0.5]), "l2")
    assert region.take(torch.tensor([2])).radius.tolist() == [[0.5]]
    assert region.outward_box().ball.radius[0] == 0.0


@pytest.mark.parametrize("norm", NORMS)
def test_the_box_of_a_point_read_in_another_precision(norm):
    region = InputRegion.around(torch.full((2, 3), 1 / 3, dtype=torch.float64), 0.1, norm)
    assert region.to(torch.float64) is region
    assert region.to(torch.float32).ideal_box().center.dtype == torch.float32
    assert region.outward_box(torch.float32).center.dtype == torch.float32


def test_ideal_boxes_are_differentiable_under_vmap():
    """As in training: nothing is read, also of a domain that differs from feature to feature."""
    x, radius = torch.rand(4, 3, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    domain = (torch.zeros(1, 3, dtype=torch.float64), torch.tensor([[0.3, 0.6, 2.0]], dtype=torch.float64))

    def width(point):
        return InputRegion(point[None], radius, domain=domain).ideal_box().radius.sum()

    slopes = torch.vmap(torch.func.grad(width))(x)
    loop = torch.stack([torch.func.grad(width)(point) for point in x])
    assert torch.equal(slopes, loop) and bool((slopes != 0).any())


def test_boxes_are_pairs_that_may_carry_a_ball():
    box = Box(torch.zeros(2, 3), torch.ones(2, 3))
    assert box.ball is None and box.take(torch.tensor([1])).ball is None
