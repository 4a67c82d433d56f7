"""Bounds with sqrt(w² + τ²) in the place of |w|: as sound, a little wider, and smooth."""

import math

import pytest
import torch
from hypothesis import given

import certibayes as cb
from certibayes.bounds import IDEAL, ideal_box, interval_bounds, interval_margins
from certibayes.bounds.rounding import smoothed
from certibayes.errors import InvalidInput
from certibayes.likelihoods import Batch
from certibayes.networks import trace

from ..strategies import (
    CLASSES,
    ZOO,
    assert_inside,
    attacked_points,
    ball,
    inputs,
    law,
    make,
    points_of,
    radii,
    seeds,
    traced,
)

BATCH = 3
LABELS = torch.arange(BATCH) % CLASSES
every_network = pytest.mark.parametrize("name", ZOO)
every_tau = pytest.mark.parametrize("tau", [1e-6, 1e-3, 0.1])


def slack(box, dtype):
    """Rounding of ideal bounds, which is not theirs to cover."""
    return 64 * torch.finfo(dtype).eps * (1 + box.center.abs().amax() + box.radius.amax())


@every_network
@every_tau
@law(2)
@given(seed=seeds, eps=radii)
def test_smooth_bounds_contain_the_others(name, tau, seed, eps):
    graph, params = traced(name, seed, torch.float64)
    box = ideal_box(inputs(name, BATCH, seed, torch.float64), eps)
    plain, smooth = (interval_bounds(graph, params, box, rounding) for rounding in (IDEAL, smoothed(tau)))
    room = slack(smooth, torch.float64)
    assert (smooth.lower <= plain.lower + room).all()
    assert (smooth.upper >= plain.upper - room).all()
    margins = interval_margins(graph, params, box, LABELS)
    smooth_margins = interval_margins(graph, params, box, LABELS, smoothed(tau))
    assert (smooth_margins <= margins + room).all()
    assert (smooth_margins.gather(1, LABELS[:, None]) == 0).all()


@every_network
@law(2)
@given(seed=seeds, eps=radii)
def test_no_point_of_the_ball_leaves_them(name, seed, eps):
    graph, params = traced(name, seed, torch.float64)
    x = inputs(name, BATCH, seed, torch.float64)
    box = interval_bounds(graph, params, ideal_box(x, eps), smoothed(0.01))
    lower, upper = ball(x, eps)
    points = torch.cat(
        [points_of(lower, upper, 12, seed), attacked_points(lambda x: graph.evaluate(params, x), lower, upper, 3)]
    )
    outputs = graph.evaluate(params, points.flatten(0, 1)).unflatten(0, points.shape[:2])
    assert_inside(outputs, box, slack=1e-10)


@every_network
def test_without_smoothing_not_a_bit_changes(name):
    graph, params = traced(name, 1)
    box = ideal_box(inputs(name, BATCH, 1), 0.1)
    plain, same = (interval_bounds(graph, params, box, rounding) for rounding in (IDEAL, smoothed(0.0)))
    assert torch.equal(plain.center, same.center)
    assert torch.equal(plain.radius, same.radius)
    margins, same = (interval_margins(graph, params, box, LABELS, rounding) for rounding in (IDEAL, smoothed(0.0)))
    assert torch.equal(margins, same)


@every_network
def test_bounds_come_closer_as_tau_falls(name):
    graph, params = traced(name, 2, torch.float64)
    box = ideal_box(inputs(name, BATCH, 2, torch.float64), 0.1)
    plain = interval_bounds(graph, params, box)
    radii = [interval_bounds(graph, params, box, smoothed(tau)).radius for tau in (1e-2, 1e-4, 1e-6)]
    room = slack(plain, torch.float64)
    assert (radii[0] >= radii[1] - room).all()
    assert (radii[1] >= radii[2] - room).all()
    assert ((radii[2] - plain.radius) <= 1e-2 * (radii[0] - plain.radius) + room).all()


@every_network
@pytest.mark.parametrize("margins", [False, True])
class TestTheLikelihood:
    def case(self, name):
        network = trace(make(name, 3, torch.float64))
        x = inputs(name, BATCH, 3, torch.float64)
        return network, Batch(x, LABELS)

    def robust(self, margins, tau):
        return cb.RobustCategorical(cb.TwoPoint(0.1), cb.IBP(margins=margins, smoothing=tau), domain=None)

    def test_it_is_a_lower_bound_on_that_without_smoothing(self, name, margins):
        network, batch = self.case(name)
        weights = {**network.buffers, **network.params}
        likelihoods = [self.robust(margins, tau) for tau in (0.0, 1e-3, 0.1)]
        values = [
            each.log_likelihood(network.graph, weights, batch, each.draw(1.0, batch, None)) for each in likelihoods
        ]
        room = 1e-10 * (1 + values[0].abs())
        assert (values[1] <= values[0] + room).all()
        assert (values[2] <= values[1] + room).all()

    def test_smoothed_is_the_same_likelihood_with_that_adversary(self, name, margins):
        assert self.robust(margins, 0.0).smoothed(0.1) == self.robust(margins, 0.1)
        assert self.robust(margins, 0.1).smoothed(0.0) == self.robust(margins, 0.0)

    def test_gradients_are_finite_where_weights_are_0(self, name, margins):
        network, batch = self.case(name)
        weights = {key: torch.zeros_like(p).requires_grad_(True) for key, p in network.params.items()}
        # What is divided by cannot be 0.
        if "divisor" in weights:
            weights["divisor"] = torch.ones_like(network.params["divisor"]).requires_grad_(True)
        likelihood = self.robust(margins, 1e-3)
        noise = likelihood.draw(1.0, batch, None)
        value = likelihood.log_likelihood(network.graph, {**network.buffers, **weights}, batch, noise).sum()
        for gradient in torch.autograd.grad(value, list(weights.values()), allow_unused=True):
            assert gradient is None or torch.isfinite(gradient).all()


class TestTheMagnitude:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_it_is_never_below_the_absolute_value_also_in_floats(self, dtype):
        generator = torch.Generator().manual_seed(0)
        exponents = torch.rand(100_000, generator=generator, dtype=torch.float64) * 36 - 18
        w = (torch.randn(100_000, generator=generator, dtype=torch.float64) * 10**exponents).to(dtype)
        for tau in (1e-12, 1e-6, 1e-3, 1.0):
            assert (smoothed(tau).magnitude(w) >= w.abs()).all()

    def test_it_is_tau_at_0_with_slope_0(self):
        w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        value = smoothed(0.01).magnitude(w)
        (slope,) = torch.autograd.grad(value.sum(), w)
        torch.testing.assert_close(value.detach(), torch.full((3,), 0.01, dtype=torch.float64))
        assert (slope == 0).all()

    def test_its_slope_is_what_the_closed_form_of_the_curvature_takes(self):
        w = torch.linspace(-0.1, 0.1, 41, dtype=torch.float64, requires_grad=True)
        for tau in (0.0, 1e-3, 0.1):
            (slope,) = torch.autograd.grad(smoothed(tau).magnitude(w).sum(), w)
            torch.testing.assert_close(cb.IBP(smoothing=tau).box_rounding.slope(w.detach()), slope)

    @pytest.mark.parametrize("tau", [-1e-3, math.nan, math.inf, 1e-23, 1e-45])
    def test_a_bad_tau(self, tau):
        """The square of the last two is lost in float32, and with it the bound on small weights and the slope at 0."""
        with pytest.raises(InvalidInput, match="smoothing"):
            smoothed(tau)

    @pytest.mark.parametrize("tau", [-1e-3, math.nan, math.inf])
    def test_an_adversary_refuses_it_before_training_starts(self, tau):
        with pytest.raises(InvalidInput, match="smoothing"):
            cb.IBP(smoothing=tau)
