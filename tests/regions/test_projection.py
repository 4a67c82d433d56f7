"""The geometry of attacks: projections, starts and steps in three norms, against what is obviously right."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from certibayes.errors import InvalidInput
from certibayes.regions import NORMS, InputRegion

from ..strategies import law, seeds

norms = st.sampled_from(NORMS)
domains = st.sampled_from([None, (0.0, 1.0), (0.1, 0.7), (-2.0, 1.0)])
radii = st.sampled_from([0.0, 1e-7, 1e-3, 0.1, 0.7, 3.0, 50.0])
dtypes = st.sampled_from([torch.float32, torch.float64])


def generator(seed):
    return torch.Generator().manual_seed(seed)


def cases(seed, domain, dtype=torch.float32, shape=(12, 7), scale=1.0):
    """Points, some of them on the border of the domain, and others to be projected, near and far."""
    g = generator(seed)
    x = torch.rand(shape, generator=g, dtype=dtype)
    if domain is not None:
        x = x.clamp(*domain)
        x[: shape[0] // 2] = x[: shape[0] // 2].round().clamp(*domain)
    far = torch.tensor([0.01, 0.3, 3.0, 100.0], dtype=dtype).repeat(shape[0])[: shape[0]]
    noise = torch.randn(shape, generator=g, dtype=dtype) * scale * far.view(-1, *[1] * (len(shape) - 1))
    noise[torch.rand(shape, generator=g) < 0.2] = 0.0
    return x, x + noise


def is_inside(region, z, eps, domain):
    """Compared exactly: distances in float64, the domain in the inputs' own precision."""
    ok = bool((region.distance(z) <= eps).all())
    if domain is not None:
        ends = torch.tensor(domain, dtype=z.dtype)
        ok &= bool((z >= ends[0]).all() and (z <= ends[1]).all())
    return ok and bool(torch.isfinite(z).all())


@law(60)
@given(seed=seeds, norm=norms, domain=domains, eps=radii, dtype=dtypes)
def test_a_projection_is_inside_ball_and_domain_and_stays_there(seed, norm, domain, eps, dtype):
    x, z = cases(seed, domain, dtype)
    region = InputRegion.around(x, eps, norm, domain)
    found = region.project(z)
    assert found.dtype == dtype
    assert is_inside(region, found, eps, domain)
    assert torch.equal(region.project(found), found)


@law(30)
@given(seed=seeds, norm=norms, domain=domains, eps=radii)
def test_points_inside_are_left_alone(seed, norm, domain, eps):
    x, _ = cases(seed, domain)
    region = InputRegion.around(x, eps, norm, domain)
    assert torch.equal(region.project(x), x)
    inside = region.sample(generator(seed))
    assert is_inside(region, inside, eps, domain)
    assert torch.equal(region.project(inside), inside)


def bisected(z, x, low, high, eps, norm):
    """The nearest point by bisection on the multiplier of the ball, in float64, coordinate by coordinate."""

    def point(multiplier):
        away = z - x
        if norm == "l2":
            moved = away / (1.0 + multiplier)
        else:
            moved = np.sign(away) * np.maximum(np.abs(away) - multiplier, 0.0)
        return np.clip(x + moved, low, high)

    def norm_of(p):
        return np.abs(p - x).sum() if norm == "l1" else np.sqrt(((p - x) ** 2).sum())

    if norm_of(point(0.0)) <= eps:
        return point(0.0)
    small, large = 0.0, 1.0
    while norm_of(point(large)) > eps:
        large *= 2.0
    for _ in range(200):
        middle = (small + large) / 2
        small, large = (middle, large) if norm_of(point(middle)) > eps else (small, middle)
    return point(large)


@law(40)
@given(
    seed=seeds,
    norm=st.sampled_from(["l2", "l1"]),
    domain=domains,
    eps=st.sampled_from([1e-3, 0.1, 0.7, 3.0]),
)
def test_a_projection_is_the_nearest_point_found_by_bisection(seed, norm, domain, eps):
    x, z = cases(seed, domain, torch.float64)
    found = InputRegion.around(x, eps, norm, domain).project(z).numpy()
    low, high = domain if domain is not None else (-np.inf, np.inf)
    for row in range(len(x)):
        expected = bisected(z[row].numpy(), x[row].numpy(), low, high, eps, norm)
        np.testing.assert_allclose(found[row], expected, atol=1e-9)


@pytest.mark.parametrize("domain", [None, (0.0, 1.0)])
def test_an_l2_projection_solves_the_quadratic_program(domain):
    x, z = cases(3, domain, torch.float64, shape=(8, 4))
    eps = 0.4
    found = InputRegion.around(x, eps, "l2", domain).project(z).numpy()
    for row in range(len(x)):
        own, there = x[row].numpy(), z[row].numpy()
        solved = minimize(
            lambda p, there=there: ((p - there) ** 2).sum(),
            own,
            jac=lambda p, there=there: 2 * (p - there),
            bounds=None if domain is None else [domain] * 4,
            constraints={
                "type": "ineq",
                "fun": lambda p, own=own: eps**2 - ((p - own) ** 2).sum(),
                "jac": lambda p, own=own: -2 * (p - own),
            },
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        # SLSQP stops a little early; the projection must be at least as near, and near to what it found.
        assert ((found[row] - there) ** 2).sum() <= solved.fun * (1 + 1e-8) + 1e-8
        np.testing.assert_allclose(found[row], solved.x, atol=1e-3)


@law(30)
@given(seed=seeds, norm=norms, domain=domains)
def test_no_other_point_of_the_region_is_nearer(seed, norm, domain):
    x, z = cases(seed, domain, torch.float64)
    region = InputRegion.around(x, 0.5, norm, domain)
    distance = (region.project(z) - z).square().sum(-1)
    for other in range(20):
        there = region.sample(generator(seed + other))
        assert bool((distance <= (there - z).square().sum(-1) + 1e-9).all())


def best_within(gradient, z, radius, norm, low, high):
    """The largest increase of a linear function within ``radius`` of ``z`` and, for l1 and l-infinity, in the box."""
    gradient, z = gradient.double(), z.double()
    room = torch.where(gradient > 0, high - z, z - low)
    if norm == "linf":
        return (gradient.abs() * room.clamp(max=radius)).sum(-1)
    order = gradient.abs().argsort(-1, descending=True)
    left, gain = torch.full((len(z),), radius, dtype=torch.float64), torch.zeros(len(z), dtype=torch.float64)
    for rank in range(z.shape[-1]):
        where = order[:, rank : rank + 1]
        moved = torch.minimum(left, room.gather(-1, where).squeeze(-1))
        gain += moved * gradient.abs().gather(-1, where).squeeze(-1)
        left -= moved
    return gain


@law(30)
@given(seed=seeds, norm=st.sampled_from(["linf", "l1"]), domain=st.sampled_from([(0.0, 1.0), (-2.0, 1.0)]))
def test_a_step_is_the_steepest_that_ball_and_domain_allow(seed, norm, domain):
    x, _ = cases(seed, domain)
    gradient = torch.randn(x.shape, generator=generator(seed))
    region = InputRegion.around(x, 1.0, norm, domain)
    moved = torch.clamp(x + region.steepest_step(x, gradient, 0.3), *domain) - x
    gain = (gradient.double() * moved.double()).sum(-1)
    torch.testing.assert_close(gain, best_within(gradient, x, 0.3, norm, *domain), atol=1e-5, rtol=1e-5)


def test_an_l2_step_follows_the_gradient_where_the_domain_lets_it():
    x = torch.tensor([[0.0, 0.5, 1.0]])
    region = InputRegion.around(x, 2.0, "l2", (0.0, 1.0))
    step = region.steepest_step(x, torch.tensor([[3.0, 4.0, 0.0]]), 0.5)
    torch.testing.assert_close(step, torch.tensor([[0.6, 0.8, 0.0]]))
    blocked = region.steepest_step(x, torch.tensor([[-3.0, 4.0, 9.0]]), 0.5)
    torch.testing.assert_close(blocked, torch.tensor([[0.0, 1.0, 0.0]]))


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_of_any_size_give_a_full_step_and_none_gives_none(norm):
    region = InputRegion.around(torch.zeros(3, 4), 0.5, norm)
    gradient = torch.tensor([1e-38, 1.0, 0.0])[:, None] * torch.tensor([1.0, -2.0, 3.0, -4.0])
    step = region.steepest_step(region.center, gradient, 1.0)
    lengths = region.distance(step)
    torch.testing.assert_close(lengths, torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("norm", NORMS)
def test_starts_fill_the_ball(norm):
    """Not only near the middle, and on every side; l2 and l1 in six dimensions have most of their volume outside."""
    region = InputRegion.around(torch.zeros(4000, 6), 2.0, norm)
    starts = region.sample(generator(0))
    fraction = region.distance(starts) / 2.0
    # The distance of a uniform point in n dimensions has the distribution function fraction^n.
    torch.testing.assert_close(fraction.mean(), torch.tensor(6 / 7, dtype=torch.float64), atol=0.01, rtol=0)
    assert float(starts.mean(0).abs().max()) < 0.08


@pytest.mark.parametrize("norm", NORMS)
def test_images_and_radii_of_their_own(norm):
    x, z = cases(0, (0.0, 1.0), shape=(6, 2, 3, 3))
    eps = torch.linspace(0.0, 1.0, 6)
    region = InputRegion.around(x, eps, norm, (0.0, 1.0))
    found = region.project(z)
    assert bool((region.distance(found) <= eps.double()).all())
    part = torch.tensor([4, 1])
    assert torch.equal(region.take(part).project(z[part]), found[part])


def test_radii_of_pixels_are_for_l_infinity():
    x, z = cases(0, None)
    eps = torch.rand(x.shape, generator=generator(1))
    found = InputRegion.around(x, eps, "linf").project(z)
    assert bool(((found.double() - x.double()).abs() <= eps.double()).all())
    for norm in ("l2", "l1"):
        with pytest.raises(InvalidInput, match="one for each of the 12 points"):
            InputRegion.around(x, eps, norm)


def test_unknown_norms_are_refused():
    with pytest.raises(InvalidInput, match="linf, l2, l1"):
        InputRegion.around(torch.zeros(1, 2), 0.1, "l0")
