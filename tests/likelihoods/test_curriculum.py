"""The curriculum: ramps that end where they should, lam = 0 as a weight of nothing, and the target at the end."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.likelihoods import Batch, Noise, per_example_gradients

from .cases import Case, assert_same, case_of, conv_net, images, mlp_case

BATCH = Batch(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long))
FRACTIONS = st.floats(0.0, 1.0)


def weights_of(likelihood, progress):
    return likelihood.draw(progress, BATCH, None).log_weights.exp().tolist()


class TestSmoothRamp:
    @settings(deadline=None)
    @given(start=st.floats(0.0, 0.4), end=st.floats(0.5, 1.0), progress=FRACTIONS)
    def test_zero_before_one_after_and_never_beyond(self, start, end, progress):
        factor = cb.SmoothRamp(start, end)(progress)
        assert 0.0 <= factor <= 1.0
        if progress <= start:
            assert factor == 0.0
        if progress >= end:
            assert factor == 1.0

    @settings(deadline=None)
    @given(one=FRACTIONS, other=FRACTIONS)
    def test_it_grows(self, one, other):
        ramp = cb.SmoothRamp()
        assert (ramp(one) <= ramp(other)) == (one <= other) or math.isclose(ramp(one), ramp(other), abs_tol=1e-12)

    def test_quartic_for_a_quarter_then_linear(self):
        ramp = cb.SmoothRamp()
        assert ramp(0.2) / ramp(0.1) == pytest.approx(16.0)
        assert ramp(0.25) == pytest.approx(1 / 13)
        assert ramp(0.5) == pytest.approx((ramp(0.25) * 2 + ramp(1.0)) / 3)

    def test_value_and_slope_are_continuous_where_they_meet(self):
        ramp, h = cb.SmoothRamp(), 1e-6
        before, after = ((ramp(0.25 + s) - ramp(0.25 + s - h)) / h for s in (0.0, h))
        assert before == pytest.approx(after, rel=1e-4)
        assert ramp(0.25 - 1e-12) == pytest.approx(ramp(0.25), abs=1e-10)

    def test_metadata_and_repr(self):
        assert cb.SmoothRamp(0.1, 0.4).describe() == {"name": "SmoothRamp", "start": 0.1, "end": 0.4}
        assert repr(cb.SmoothRamp(end=0.4)) == "SmoothRamp(end=0.4)"


class TestMultiplier:
    @settings(deadline=None)
    @given(first=st.floats(0.0, 5.0), progress=FRACTIONS)
    def test_a_linear_ramp_goes_from_its_first_factor_to_one(self, first, progress):
        factor = cb.LinearRamp(first=first)(progress)
        assert factor == pytest.approx(first + (1 - first) * progress)
        assert cb.LinearRamp(0.2, 0.6, first)(0.1) == first
        assert cb.LinearRamp(0.2, 0.6, first)(0.6) == 1.0

    def test_it_scales_the_radius_on_the_way_alone(self):
        ramp = cb.Curriculum(multiplier=cb.LinearRamp(0.35, 0.5, first=2.0))
        likelihood = cb.RobustCategorical(eps=0.1, ramp=ramp)
        radii = [float(likelihood.draw(p, BATCH, None).radii[0]) for p in (0.0, 0.35, 0.425, 0.5, 1.0)]
        assert radii == pytest.approx([0.0, 0.22, 0.165, 0.11, 0.11])

    @pytest.mark.parametrize("first", [-0.1, math.nan, math.inf])
    def test_bad_factors(self, first):
        with pytest.raises(InvalidInput, match="finite factor"):
            cb.LinearRamp(first=first)


class TestPath:
    def test_lam_is_zero_while_the_radius_grows_and_then_rises(self):
        likelihood = cb.RobustCategorical(eps=0.1)
        assert likelihood.ramp == cb.Curriculum()
        clean = [weights_of(likelihood, p)[0] for p in (0.0, 0.2, 0.35, 0.425, 0.5, 0.8)]
        assert clean == pytest.approx([0.0, 0.0, 0.0, 0.125, 0.25, 0.25])
        radii = [float(likelihood.draw(p, BATCH, None).radii[0]) for p in (0.0, 0.35, 0.5)]
        assert radii == pytest.approx([0.0, 0.11, 0.11])

    @settings(deadline=None)
    @given(progress=FRACTIONS, lam=st.floats(0.0, 1.0), eta=st.floats(0.0, 0.5))
    def test_weights_sum_to_one_and_have_one_shape_at_every_point(self, progress, lam, eta):
        likelihood = cb.RobustCategorical(cb.TwoPoint(eta, lam), ramp=cb.Curriculum())
        noise, last = likelihood.draw(progress, BATCH, None), likelihood.draw(1.0, BATCH, None)
        assert noise.log_weights.shape == last.log_weights.shape and noise.radii.shape == last.radii.shape
        assert float(noise.log_weights.exp().sum()) == pytest.approx(1.0, abs=1e-6)

    @pytest.mark.parametrize("progress", [0.5, 0.75, 1.0])
    def test_the_end_is_the_likelihood_that_was_asked_for(self, progress):
        p_eps = cb.TwoPoint.for_radius(0.1)
        way = cb.Curriculum(multiplier=cb.LinearRamp(0.35, 0.5, first=3.0), tightness=0.5, balance=0.5)
        found = cb.RobustCategorical(p_eps, ramp=way).draw(progress, BATCH, None)
        plain = cb.RobustCategorical(p_eps, ramp=None).draw(0.0, BATCH, None)
        assert torch.equal(found.radii, plain.radii) and torch.equal(found.log_weights, plain.log_weights)

    @pytest.mark.parametrize("p_eps", [cb.TwoPoint(0.0), cb.TwoPoint(0.1, 1.0)], ids=repr)
    def test_the_standard_likelihood_has_no_way_to_go(self, p_eps):
        case = mlp_case()
        likelihood = cb.RobustCategorical(p_eps, ramp=cb.Curriculum())
        noise = likelihood.draw(0.0, case.batch, None)
        assert torch.equal(case.log_likelihood(likelihood, noise), case.log_likelihood(cb.Categorical()))

    def test_regression_keeps_lam_constant_and_may_ramp_it(self):
        assert cb.RobustGaussian(eps=0.1).ramp == cb.LinearRamp(0.0, 0.5)
        assert weights_of(cb.RobustGaussian(eps=0.1), 0.1) == pytest.approx([0.25, 0.75])
        assert weights_of(cb.RobustGaussian(eps=0.1, ramp=cb.Curriculum()), 0.1) == pytest.approx([0.0, 1.0])

    def test_a_distribution_keeps_the_ramp_of_the_paper(self):
        likelihood = cb.RobustCategorical(cb.TwoPoint(0.11))
        assert likelihood.ramp == cb.LinearRamp()
        assert weights_of(likelihood, 0.1) == pytest.approx([0.25, 0.75])

    def test_it_is_stated_in_the_metadata(self):
        ramp = cb.Curriculum(cb.SmoothRamp(0.05, 0.4), cb.LinearRamp(0.4, 0.6), tightness=0.5)
        assert cb.RobustCategorical(eps=0.1, ramp=ramp).describe()["ramp"] == {
            "name": "Curriculum",
            "radius": {"name": "SmoothRamp", "start": 0.05, "end": 0.4},
            "lam": {"name": "LinearRamp", "start": 0.4, "end": 0.6, "first": 0.0},
            "multiplier": None,
            "tightness": 0.5,
            "balance": 0.0,
        }
        assert repr(cb.Curriculum(balance=0.5)) == "Curriculum(balance=0.5)"


ADVERSARIES = {"ibp": cb.IBP(), "margins": cb.IBP(margins=True), "crown-ibp": cb.CROWNIBP(), "pgd": cb.PGD(steps=2)}
CASES = {
    "mlp": lambda dtype: mlp_case(8, 5, dtype=dtype),
    "conv": lambda dtype: case_of(conv_net(), images(5, 1, 5, 5, dtype=dtype)),
}


def without_clean(noise: Noise) -> Noise:
    """The same radii, where lam is 0 for good and no clean pass is made."""
    return noise._replace(log_weights=noise.log_weights[1:])


class TestLamOfZero:
    """log 0 in the weights is a number like others: values and gradients are those of lam = 0, and none is NaN."""

    @pytest.fixture(params=[torch.float32, torch.float64], ids=str)
    def dtype(self, request):
        return request.param

    @pytest.fixture(params=CASES)
    def case(self, request, dtype) -> Case:
        return CASES[request.param](dtype)

    @pytest.fixture(params=ADVERSARIES)
    def pair(self, request):
        """A likelihood on its way, and the one that lam = 0 is."""
        adversary = ADVERSARIES[request.param]
        return (
            cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), adversary, ramp=cb.Curriculum()),
            cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), adversary, ramp=None),
        )

    @pytest.mark.parametrize("progress", [0.0, 0.2, 0.35])
    def test_values_and_gradients_are_those_of_lam_zero(self, case, pair, progress):
        way, zero = pair
        noise = way.draw(progress, case.batch, torch.Generator().manual_seed(0))
        assert noise.log_weights[0] == -math.inf
        found, expected = case.log_likelihood(way, noise), case.log_likelihood(zero, without_clean(noise))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        gradient = case.gradient(way, noise)
        assert all(torch.isfinite(g).all() for g in gradient.values())
        assert_same(gradient, case.gradient(zero, without_clean(noise)), rtol=1e-4, atol=1e-5)

    def test_so_are_per_example_gradients_and_their_closed_form(self, case, pair):
        way, zero = pair
        noise = way.draw(0.2, case.batch, torch.Generator().manual_seed(0))
        slow = per_example_gradients(way, case.graph, case.params, case.buffers, case.batch, noise)
        fast = way.value_grad_and_squares(case.graph, case.params, case.buffers, case.batch, noise)
        expected = per_example_gradients(zero, case.graph, case.params, case.buffers, case.batch, without_clean(noise))
        for found in (slow, fast):
            assert_same(found.gradient, expected.gradient, rtol=1e-4, atol=1e-5)
            assert_same(found.squares, expected.squares, rtol=1e-3, atol=1e-5)

    def test_nothing_of_the_clean_pass_gets_through(self, case):
        """Not even where the clean outputs are far off: the weight of their gradient is exactly 0."""
        likelihood = cb.RobustCategorical(eps=0.1)
        targets = case.batch.targets
        clean = (1e4 * torch.randn(len(targets), 3).to(case.batch.inputs)).requires_grad_(True)
        worst = torch.zeros(len(targets), 3).to(case.batch.inputs)
        noise = likelihood.draw(0.1, case.batch, None)
        likelihood.log_p(clean, [worst], targets, noise.log_weights).sum().backward()
        assert bool((clean.grad == 0).all())

    def test_regression_too(self):
        case = case_of(cb.networks.mlp(6, [8], 2), images(7, 6), images(7, 2, seed=1))
        way = cb.RobustGaussian(0.5, cb.TwoPoint(0.1), ramp=cb.Curriculum())
        zero = cb.RobustGaussian(0.5, cb.TwoPoint(0.1, 0.0), ramp=None)
        noise = way.draw(0.2, case.batch, None)
        assert_same(case.gradient(way, noise), case.gradient(zero, without_clean(noise)))


class TestRefused:
    def test_a_ramp_that_is_never_over(self):
        for ramp in (cb.LinearRamp, cb.SmoothRamp):
            with pytest.raises(InvalidInput, match=r"never over.*not epochs"):
                ramp(0.0, 20)

    @pytest.mark.parametrize(("start", "end"), [(0.5, 0.5), (-0.1, 1.0), (0.8, 0.2), (math.nan, 1.0), (0.0, math.nan)])
    def test_a_smooth_ramp_without_length(self, start, end):
        with pytest.raises(InvalidInput, match="0 <= start < end <= 1"):
            cb.SmoothRamp(start, end)

    def test_lam_that_rises_before_the_radius_has_grown(self):
        with pytest.raises(InvalidInput, match=r"give the worst case up.*lam=LinearRamp\(0.5, 0.65\)"):
            cb.Curriculum(cb.SmoothRamp(0.0, 0.5), cb.LinearRamp(0.3, 0.6))

    def test_a_radius_that_leaves_lam_no_time(self):
        with pytest.raises(InvalidInput, match=r"no time for lam to rise.*lam=None"):
            cb.Curriculum(cb.LinearRamp())

    def test_ramps_that_begin_elsewhere(self):
        with pytest.raises(InvalidInput, match="is the multiplier"):
            cb.Curriculum(lam=cb.LinearRamp(0.35, 0.5, first=0.5))
        with pytest.raises(InvalidInput, match="is the multiplier"):
            cb.Curriculum(radius=cb.LinearRamp(0.0, 0.3, first=0.5))

    @pytest.mark.parametrize("p_eps", [cb.Rayleigh(0.1), cb.Exponential(0.1), cb.Quantiles(inverse_cdf=torch.sqrt)])
    def test_a_path_of_lam_for_any_other_distribution(self, p_eps):
        with pytest.raises(InvalidInput, match=r"nothing to raise.*Curriculum\(lam=None\)"):
            cb.RobustCategorical(p_eps, ramp=cb.Curriculum())
        noise = cb.RobustCategorical(p_eps, ramp=cb.Curriculum(lam=None)).draw(0.0, BATCH, torch.Generator())
        assert bool((noise.radii == 0).all())

    def test_regularizers_for_any_other_distribution(self):
        with pytest.raises(InvalidInput, match="take TwoPoint"):
            cb.RobustCategorical(cb.Rayleigh(0.1), ramp=cb.Curriculum(lam=None, tightness=0.5))

    @pytest.mark.parametrize("weight", [-0.5, math.nan, math.inf])
    def test_bad_weights_of_regularizers(self, weight):
        with pytest.raises(InvalidInput, match="weight of a regularizer"):
            cb.Curriculum(balance=weight)

    def test_regularizers_without_a_radius_that_grows(self):
        with pytest.raises(InvalidInput, match="while the radius grows"):
            cb.Curriculum(radius=None, lam=None, tightness=0.5)

    def test_anything_but_ramps(self):
        with pytest.raises(InvalidInput, match="radius of a curriculum must be"):
            cb.Curriculum(radius=0.5)
        with pytest.raises(InvalidInput, match="lam of a curriculum must be LinearRamp"):
            cb.Curriculum(lam=cb.SmoothRamp(0.35, 0.5))

    def test_a_class_in_the_place_of_a_curriculum(self):
        with pytest.raises(InvalidInput, match=r"pass an instance: Curriculum\(\)"):
            cb.RobustCategorical(eps=0.1, ramp=cb.Curriculum)
