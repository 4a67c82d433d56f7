"""Boxes of inputs: they hold every float input of the ball, by exact and by float reading."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from certibayes.bounds import Box, ideal_box, outward_box
from certibayes.regions.box import _next_above

from ..strategies import ball, fractions, law

INFINITY = torch.tensor(torch.inf)
floats = st.floats(-4.0, 4.0, width=32, allow_subnormal=True)
anywhere = st.floats(-1e9, 1e9, width=32, allow_subnormal=True)
radii = st.one_of(
    st.sampled_from([0.0, 1e-45, 1e-40, 1e-12, 1e-7, 1 / 255, 0.1, 0.3, 8 / 255, 1e6]), st.floats(0.0, 2.0)
)
DOMAINS = [None, (0.0, 1.0), (-0.1, 0.7), (-4.0, 4.0)]


def _ends(box: Box) -> tuple[list, list]:
    """Exact ends of a box: fractions, so nothing rounds."""
    center, radius = fractions(box.center[0]), fractions(box.radius[0])
    pairs = list(zip(center, radius, strict=True))
    return [c - r for c, r in pairs], [c + r for c, r in pairs]


def _last_float_inside(x: Fraction, eps: Fraction, direction: int) -> float:
    """The float32 furthest from x within eps of it, in exact arithmetic."""
    target = x + direction * eps
    value = torch.tensor(float(target), dtype=torch.float32)
    towards = -INFINITY if direction > 0 else INFINITY
    while direction * (Fraction(float(value)) - target) > 0:
        value = torch.nextafter(value, towards)
    while True:
        further = torch.nextafter(value, -towards)
        if direction * (Fraction(float(further)) - target) > 0:
            return float(value)
        value = further


@law(300)
@given(x=st.one_of(floats, anywhere), eps=radii)
def test_the_box_holds_the_last_float_of_the_exact_ball(x, eps):
    (low,), (high,) = _ends(outward_box(torch.tensor([[x]]), eps))
    for direction in (-1, 1):
        last = Fraction(_last_float_inside(Fraction(x), Fraction(eps), direction))
        assert low <= last <= high


@law(300)
@given(x=st.one_of(floats, anywhere), eps=radii)
def test_the_box_holds_the_ball_as_floats_compute_it(x, eps):
    point = torch.tensor([[x]])
    (low,), (high,) = _ends(outward_box(point, eps))
    for corner in ball(point, eps):
        assert low <= Fraction(float(corner)) <= high
    wild = torch.tensor([[-1e30], [1e30]])
    for clamped in torch.clamp(wild, point - eps, point + eps).flatten().tolist():
        assert low <= Fraction(clamped) <= high


@law(200)
@given(x=floats, eps=radii, domain=st.sampled_from(DOMAINS[1:]))
def test_the_box_holds_ball_and_domain_together(x, eps, domain):
    point = torch.tensor([[x]]).clamp(*domain)
    if not domain[0] <= float(point) <= domain[1]:
        point = torch.tensor([[0.0]])  # the float nearest to the end lies outside; certify refuses it
    (low,), (high,) = _ends(outward_box(point, eps, domain))
    for direction in (-1, 1):
        last = _last_float_inside(Fraction(float(point)), Fraction(eps), direction)
        inside = min(max(last, domain[0]), domain[1])
        # The last float32 that lies in the domain by exact comparison.
        value = torch.tensor(inside, dtype=torch.float32)
        if not domain[0] <= float(value) <= domain[1]:
            value = torch.nextafter(value, torch.zeros(()))
        assert low <= Fraction(float(value)) <= high


@pytest.mark.parametrize("x", [0.0, 1.0])
@pytest.mark.parametrize("eps", [0.0, 1e-45, 1e-12, 0.1, 1.0, 1e9])
def test_at_the_border_of_the_domain_the_box_goes_inwards_only(x, eps):
    box = outward_box(torch.tensor([[x]]), eps, (0.0, 1.0))
    (low,), (high,) = _ends(box)
    slack = Fraction(1, 2**22)
    assert low >= -slack and high <= 1 + slack
    assert low <= Fraction(x) <= high
    if eps >= 1.0:
        assert low <= 0 and high >= 1


@law(100)
@given(x=floats, domain=st.sampled_from(DOMAINS))
def test_radius_zero_is_the_point_itself(x, domain):
    point = torch.tensor([[x]]) if domain is None else torch.tensor([[x]]).clamp(*domain)
    box = outward_box(point, 0.0, domain)
    assert torch.equal(box.center, point)
    assert torch.equal(box.radius, torch.zeros_like(point))


@law(200)
@given(x=floats, eps=st.floats(1e-6, 2.0))
def test_the_box_is_only_a_few_units_wider_than_the_ball(x, eps):
    (low,), (high,) = _ends(outward_box(torch.tensor([[x]]), eps))
    unit = Fraction(abs(x) + eps) / 2**21
    assert Fraction(x) - Fraction(eps) - low <= unit
    assert high - Fraction(x) - Fraction(eps) <= unit


@law(100)
@given(x=floats, eps=radii)
def test_float64_boxes_hold_the_ball_too(x, eps):
    point = torch.tensor([[x]], dtype=torch.float64)
    (low,), (high,) = _ends(outward_box(point, eps))
    assert low <= Fraction(x) - Fraction(eps) or eps == 0
    assert high >= Fraction(x) + Fraction(eps) or eps == 0
    for corner in ball(point, eps):
        assert low <= Fraction(float(corner)) <= high


@law(200)
@given(thirds=st.integers(-1000, 1000), fraction=st.sampled_from([0.0, 1e-8, 0.3, 0.9, 0.99, 1.0, 1.5]))
def test_points_in_float64_keep_their_own_ball(thirds, fraction):
    """The network runs in float32, but the ball is around the point as given, and the network rounds its inputs.

    Where the ball reaches almost to 0, floats lie denser than around the point, and its rounding shows.
    """
    x = thirds / 3
    eps = abs(x) * fraction
    point = torch.tensor([[x]], dtype=torch.float64)
    (low,), (high,) = _ends(outward_box(point, eps, dtype=torch.float32))
    for end in (point - eps, point, point + eps):
        assert low <= Fraction(float(end.float())) <= high
    near = point.float()
    for corner in ball(near, eps):
        assert low <= Fraction(float(corner)) <= high


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("fraction", [1e-7, 0.5, 0.99])
def test_points_in_float64_at_an_end_of_their_domain_keep_the_rest_of_their_ball(fraction, sign):
    """The box is half as wide then, and its radius has half the units that could hide how a point was rounded."""
    x = sign * (1 + torch.rand(5000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    eps = fraction * x.abs()
    domain = (x, x + 10) if sign < 0 else (x - 10, x)
    low, high = _ends_of_points(outward_box(x, eps, domain, dtype=torch.float32))
    ends = (x - sign * eps).float(), x.float()
    assert all(
        lo <= end <= hi for reached in ends for end, lo, hi in zip(fractions(reached[:, 0]), low, high, strict=True)
    )


def _ends_of_points(box: Box) -> tuple[list, list]:
    """The same of many points with one coordinate each."""
    return _ends(Box(box.center.T, box.radius.T))


def test_subnormal_points_and_radii():
    tiny = 2.0**-149
    x = torch.tensor([[0.0, tiny, -tiny, 3 * tiny, 2.0**-126]])
    for eps in (tiny, 3 * tiny, 2.0**-127):
        low, high = _ends(outward_box(x, eps))
        for point, lo, hi in zip(fractions(x[0]), low, high, strict=True):
            assert lo <= point - Fraction(eps) and point + Fraction(eps) <= hi


def test_a_radius_for_each_point():
    x, eps = torch.zeros(3, 2), torch.tensor([0.0, 0.1, 0.5])
    box = outward_box(x, eps)
    assert float(box.radius[0].max()) == 0.0
    assert bool((box.upper[1:].double() >= eps[1:, None].double()).all())


def test_ends_are_float64_and_hold_center_and_radius():
    box = Box(torch.tensor([1.0, -1e-8, 1e20]), torch.tensor([1e-9, 1.0, 1.0]))
    lower, upper = box.ends()
    assert lower.dtype == upper.dtype == torch.float64
    for low, high, c, r in zip(
        fractions(lower), fractions(upper), fractions(box.center), fractions(box.radius), strict=True
    ):
        assert low <= c - r and c + r <= high


def test_the_ideal_box_is_the_clipped_ball():
    box = ideal_box(torch.tensor([[0.0, 0.5, 1.0]], dtype=torch.float64), 0.2, (0.0, 1.0))
    torch.testing.assert_close(box.lower, torch.tensor([[0.0, 0.3, 0.8]], dtype=torch.float64))
    torch.testing.assert_close(box.upper, torch.tensor([[0.2, 0.7, 1.0]], dtype=torch.float64))


def any_floats(dtype):
    """Floats of every size and sign, with the ends of all ranges."""
    integers, info = {4: torch.int32, 8: torch.int64}[torch.finfo(dtype).bits // 8], torch.finfo(dtype)
    limits, generator = torch.iinfo(integers), torch.Generator().manual_seed(0)
    drawn = torch.randint(limits.min, limits.max, (20_000,), generator=generator, dtype=integers).view(dtype)
    ends = [0.0, info.max, info.smallest_normal, info.smallest_normal * info.eps, 1.0, 1.0 - info.eps / 2]
    ends = torch.tensor(ends, dtype=dtype)
    return torch.cat([drawn[torch.isfinite(drawn)], ends, -ends])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_next_float_above(dtype):
    x, infinity = any_floats(dtype), torch.tensor(torch.inf, dtype=dtype)
    moved = torch.arange(len(x)) % 2 == 0
    expected = torch.where(moved, torch.nextafter(x, infinity), x)
    assert torch.equal(_next_above(x, moved), expected)
    assert _next_above(infinity, torch.tensor(True)) == infinity


@pytest.mark.parametrize("eps", [0.1, 3e-8, 1e-42, 1e30])
def test_floats_of_the_network_are_subtracted_in_any_precision_alike(eps):
    """So that the corners in the network's precision are outermost: in float64 and rounded they are no further out."""
    x = any_floats(torch.float32)
    x = x[x.abs() < 2.0**100]
    exact = torch.tensor(eps, dtype=torch.float64)
    rounded = exact.float()
    rounded = torch.where(rounded.double() < exact, torch.nextafter(rounded, torch.tensor(torch.inf)), rounded)
    assert bool((x - rounded <= (x.double() - exact).float()).all())
    assert bool((x + rounded >= (x.double() + exact).float()).all())
