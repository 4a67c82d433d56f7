import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.likelihoods import Batch

BATCH = Batch(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))

FAMILIES = [
    pytest.param(cb.Rayleigh, stats.rayleigh, id="rayleigh"),
    pytest.param(cb.Exponential, stats.expon, id="exponential"),
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def quadrature_mean(distribution, function):
    nodes = distribution.nodes(None)
    return float((nodes.log_weights.double().exp() * function(nodes.radii.double())).sum())


@pytest.mark.parametrize(("family", "exact"), FAMILIES)
class TestContinuousFamilies:
    def test_draws_follow_the_distribution(self, family, exact):
        radii = family(0.3, draws=5000).nodes(generator()).radii.numpy()
        assert stats.kstest(radii, exact(scale=0.3).cdf).pvalue > 0.01

    def test_quadrature_reproduces_a_smooth_expectation(self, family, exact):
        """A likelihood falls smoothly with the radius; so does this."""
        found = quadrature_mean(family(0.1, quadrature=8), lambda r: torch.exp(-5 * r))
        expected = exact(scale=0.1).expect(lambda r: np.exp(-5 * r))
        assert found == pytest.approx(expected, rel=2e-3)

    def test_quadrature_reproduces_mean_and_variance_with_many_nodes(self, family, exact):
        distribution = family(0.2, quadrature=200)
        mean = quadrature_mean(distribution, lambda r: r)
        second = quadrature_mean(distribution, lambda r: r**2)
        assert mean == pytest.approx(exact(scale=0.2).mean(), rel=1e-3)
        assert second - mean**2 == pytest.approx(exact(scale=0.2).var(), rel=1e-2)

    def test_more_nodes_come_closer(self, family, exact):
        errors = [
            abs(quadrature_mean(family(0.2, quadrature=k), lambda r: r) - exact(scale=0.2).mean()) for k in (2, 8, 32)
        ]
        assert errors[0] > errors[1] > errors[2]

    def test_quadrature_needs_no_generator_and_never_changes(self, family, exact):
        one, other = family(0.1, quadrature=8).nodes(None), family(0.1, quadrature=8).nodes(generator(5))
        assert torch.equal(one.radii, other.radii)
        assert len(one.radii) == 8

    def test_ten_draws_by_default(self, family, exact):
        nodes = family(0.1).nodes(generator())
        assert len(nodes.radii) == 10
        assert float(nodes.log_weights.exp().sum()) == pytest.approx(1.0)

    def test_draws_depend_on_the_generator_alone(self, family, exact):
        state = torch.get_rng_state()
        one, same, other = (family(0.1).nodes(generator(s)).radii for s in (1, 1, 2))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
        assert torch.equal(state, torch.get_rng_state())

    def test_every_draw_is_fresh(self, family, exact):
        stream = generator()
        distribution = family(0.1)
        assert not torch.equal(distribution.nodes(stream).radii, distribution.nodes(stream).radii)

    def test_for_radius_trains_for_a_tenth_more(self, family, exact):
        assert family.for_radius(0.1).eta == pytest.approx(0.11)
        assert family.for_radius(0.1, multiplier=1.0).eta == pytest.approx(0.1)

    @pytest.mark.parametrize("eta", [-0.1, math.nan, math.inf])
    def test_bad_eta(self, family, exact, eta):
        with pytest.raises(InvalidInput, match="eta"):
            family(eta)

    @pytest.mark.parametrize("settings", [{"draws": 0}, {"quadrature": 0}, {"draws": -1}])
    def test_bad_counts(self, family, exact, settings):
        with pytest.raises(InvalidInput, match="at least 1"):
            family(0.1, **settings)

    def test_metadata(self, family, exact):
        record = family(0.1, quadrature=8).describe()
        assert record == {"name": family.__name__, "eta": 0.1, "draws": 10, "quadrature": 8}

    def test_equal_settings_are_equal(self, family, exact):
        assert family(0.1) == family(0.1)


class TestTwoPoint:
    @settings(deadline=None)
    @given(eta=st.floats(1e-6, 1.0), lam=st.floats(0.0, 0.999))
    def test_masses_sum_to_one(self, eta, lam):
        p_eps = cb.TwoPoint(eta, lam)
        assert p_eps.clean + float(p_eps.nodes(None).log_weights.exp().sum()) == pytest.approx(1.0)
        assert p_eps.nodes(None).radii.tolist() == pytest.approx([eta])

    @pytest.mark.parametrize("p_eps", [cb.TwoPoint(0.0), cb.TwoPoint(0.1, 1.0), cb.TwoPoint(0.0, 0.0)], ids=str)
    def test_all_mass_at_zero_needs_no_bounds(self, p_eps):
        assert p_eps.clean == 1.0
        assert len(p_eps.nodes(None).radii) == 0

    def test_the_default_is_the_papers(self):
        assert cb.TwoPoint(0.1).lam == 0.25

    def test_for_radius_trains_for_a_tenth_more(self):
        assert cb.TwoPoint.for_radius(0.1) == cb.TwoPoint(0.1 * 1.1, 0.25)
        assert cb.TwoPoint.for_radius(0.1, lam=0.5, multiplier=2.0) == cb.TwoPoint(0.2, 0.5)

    @pytest.mark.parametrize("eta", [-1e-9, math.nan, math.inf])
    def test_bad_eta(self, eta):
        with pytest.raises(InvalidInput, match="eta"):
            cb.TwoPoint(eta)

    @pytest.mark.parametrize("lam", [-0.01, 1.01, math.nan])
    def test_bad_lam(self, lam):
        with pytest.raises(InvalidInput, match="lam"):
            cb.TwoPoint(0.1, lam)


def uniform(probabilities):
    return 0.2 * probabilities


def constant_sampler(number, generator):
    return torch.full((number,), 0.3)


class TestQuantiles:
    def test_draws_by_inverse_cdf(self):
        radii = cb.Quantiles(inverse_cdf=uniform, draws=3000).nodes(generator()).radii.numpy()
        assert stats.kstest(radii, stats.uniform(scale=0.2).cdf).pvalue > 0.01

    def test_quadrature_is_exact_for_a_polynomial(self):
        nodes = cb.Quantiles(inverse_cdf=uniform, quadrature=3)
        assert quadrature_mean(nodes, lambda r: r**4) == pytest.approx(0.2**4 / 5, rel=1e-5)

    def test_a_sampler_is_asked_for_the_draws_with_the_generator(self):
        asked = []

        def sampler(number, source):
            asked.append(number)
            return torch.rand(number, generator=source)

        p_eps = cb.Quantiles(sampler=sampler, draws=7)
        assert torch.equal(p_eps.nodes(generator(1)).radii, p_eps.nodes(generator(1)).radii)
        assert asked == [7, 7]

    def test_a_custom_distribution_works_in_a_likelihood(self):
        found = cb.RobustCategorical(cb.Quantiles(sampler=constant_sampler, draws=2), ramp=None).draw(0.0, BATCH, None)
        assert found.radii.tolist() == pytest.approx([0.3, 0.3])

    @pytest.mark.parametrize("given", [{}, {"inverse_cdf": uniform, "sampler": constant_sampler}], ids=["none", "both"])
    def test_exactly_one_of_inverse_cdf_and_sampler(self, given):
        with pytest.raises(InvalidInput, match="either inverse_cdf or sampler"):
            cb.Quantiles(**given)

    def test_a_sampler_has_no_quadrature(self):
        with pytest.raises(InvalidInput, match="quadrature needs inverse_cdf"):
            cb.Quantiles(sampler=constant_sampler, quadrature=8)

    @pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
    def test_bad_radii_are_refused(self, bad):
        p_eps = cb.Quantiles(sampler=lambda number, _: torch.full((number,), bad))
        with pytest.raises(InvalidInput, match="radii"):
            p_eps.nodes(generator())

    def test_a_sampler_that_gives_too_few_is_refused(self):
        with pytest.raises(InvalidInput):
            cb.Quantiles(sampler=lambda number, _: torch.full((3,), 0.1)).nodes(generator())

    def test_metadata_name_the_function(self):
        assert cb.Quantiles(inverse_cdf=uniform).describe()["function"] == "uniform"


class TestRamp:
    @settings(deadline=None)
    @given(progress=st.floats(0.0, 1.0))
    def test_over_all_of_training_by_default(self, progress):
        assert cb.LinearRamp()(progress) == progress

    @settings(deadline=None)
    @given(start=st.floats(0.0, 0.4), end=st.floats(0.5, 1.0), progress=st.floats(0.0, 1.0))
    def test_zero_before_linear_between_one_after(self, start, end, progress):
        factor = cb.LinearRamp(start, end)(progress)
        if progress <= start:
            assert factor == 0.0
        elif progress >= end:
            assert factor == 1.0
        else:
            assert factor == pytest.approx((progress - start) / (end - start))

    @pytest.mark.parametrize(
        "p_eps",
        [cb.TwoPoint(0.2), cb.Rayleigh(0.2), cb.Exponential(0.2, quadrature=4), cb.Quantiles(inverse_cdf=uniform)],
        ids=["two-point", "rayleigh", "exponential", "quantiles"],
    )
    @pytest.mark.parametrize("likelihood", [cb.RobustCategorical, cb.RobustGaussian])
    def test_every_distribution_is_scaled(self, p_eps, likelihood):
        ramped = likelihood(p_eps=p_eps, ramp=cb.LinearRamp(0.2, 0.6))
        full = ramped.draw(1.0, BATCH, generator())
        for progress, factor in ((0.1, 0.0), (0.3, 0.25), (0.4, 0.5), (0.6, 1.0)):
            part = ramped.draw(progress, BATCH, generator())
            torch.testing.assert_close(part.radii, full.radii * factor)
            assert torch.equal(part.log_weights, full.log_weights)

    def test_no_ramp_means_full_radii_from_the_start(self):
        noise = cb.RobustCategorical(cb.TwoPoint(0.2), ramp=None).draw(0.0, BATCH, None)
        assert noise.radii.tolist() == pytest.approx([0.2])

    @pytest.mark.parametrize(("start", "end"), [(0.5, 0.5), (-0.1, 1.0), (0.0, 1.1), (0.8, 0.2), (math.nan, 1.0)])
    def test_bad_ramps(self, start, end):
        with pytest.raises(InvalidInput, match="ramp"):
            cb.LinearRamp(start, end)


class TestNoise:
    def test_draw_is_deterministic_given_the_generator(self):
        likelihood = cb.RobustCategorical(cb.Rayleigh(0.1), cb.PGD())
        one, same, other = (likelihood.draw(1.0, BATCH, generator(s)) for s in (1, 1, 2))
        assert torch.equal(one.radii, same.radii)
        assert torch.equal(one.starts, same.starts)
        assert not torch.equal(one.starts, other.starts)

    def test_starts_fill_the_whole_ball(self):
        big = Batch(torch.zeros(500, 4), torch.zeros(500, dtype=torch.long))
        starts = cb.RobustCategorical(cb.TwoPoint(0.1), cb.PGD()).draw(1.0, big, generator()).starts
        assert starts.shape == big.inputs.shape
        assert stats.kstest(starts.flatten().numpy(), stats.uniform(-1, 2).cdf).pvalue > 0.01

    def test_intervals_need_no_starts(self):
        assert cb.RobustCategorical(cb.TwoPoint(0.1)).draw(1.0, BATCH, None).starts is None

    def test_noise_has_the_precision_of_the_inputs(self):
        batch = Batch(BATCH.inputs.double(), BATCH.targets)
        noise = cb.RobustCategorical(cb.TwoPoint(0.1), cb.PGD()).draw(1.0, batch, generator())
        assert {noise.radii.dtype, noise.log_weights.dtype, noise.starts.dtype} == {torch.float64}

    def test_float64_radii_are_not_rounded_to_float32(self):
        batch = Batch(BATCH.inputs.double(), BATCH.targets)
        noise = cb.RobustCategorical(cb.TwoPoint(0.1)).draw(1.0, batch, None)
        assert float(noise.radii[0]) == 0.1

    def test_the_standard_likelihood_has_none(self):
        noise = cb.Categorical().draw(1.0, BATCH, None)
        assert len(noise.radii) == 0
        assert noise.starts is None
