"""The radius of a robust likelihood: eps, p_eps, and what is refused."""

import numpy as np
import pytest
import torch

import certibayes as cb
from certibayes import attacks
from certibayes.errors import InvalidInput
from certibayes.likelihoods import RadiusDistribution

ROBUST = [cb.RobustCategorical, cb.RobustGaussian]
robust = pytest.mark.parametrize("robust", ROBUST, ids=lambda each: each.__name__)


def halved(probabilities):
    return probabilities / 2


@robust
class TestEps:
    def test_it_means_the_papers_two_points(self, robust):
        assert robust(eps=0.1).p_eps == cb.TwoPoint(eta=0.1 * 1.1, lam=0.25)

    def test_the_likelihood_remembers_it(self, robust):
        likelihood = robust(eps=0.1)
        assert likelihood.eps == 0.1
        assert likelihood.describe()["eps"] == 0.1
        assert likelihood.describe()["p_eps"] == {"name": "TwoPoint", "eta": 0.1 * 1.1, "lam": 0.25}

    @pytest.mark.parametrize("p_eps", [cb.TwoPoint.for_radius(0.2, lam=0.5), cb.Rayleigh.for_radius(0.2)], ids=repr)
    def test_so_does_a_distribution_that_was_made_for_it(self, robust, p_eps):
        assert robust(p_eps=p_eps).eps == 0.2

    def test_it_is_not_known_of_other_distributions(self, robust):
        for p_eps in (cb.TwoPoint(0.11), cb.Rayleigh(0.11), cb.Quantiles(inverse_cdf=halved)):
            assert robust(p_eps=p_eps).eps is None
            assert robust(p_eps=p_eps).describe()["eps"] is None

    @pytest.mark.parametrize(
        "number", [0.1, np.float64(0.1), np.float32(0.1), torch.tensor(0.1)], ids=lambda n: type(n)
    )
    def test_a_number_as_p_eps_is_eps(self, robust, number):
        assert robust(p_eps=number) == robust(eps=float(number))
        assert robust(p_eps=number).eps == float(number)

    def test_smoothing_keeps_it(self, robust):
        smooth = robust(eps=0.1).smoothed(0.02)
        assert smooth.eps == 0.1
        assert smooth.adversary == cb.IBP(smoothing=0.02)
        assert smooth == robust(eps=0.1, adversary=cb.IBP(smoothing=0.02))

    def test_zero_is_the_standard_likelihood(self, robust):
        assert robust(eps=0.0).p_eps.clean == 1.0

    @pytest.mark.parametrize("eps", [-0.1, float("nan"), float("inf")])
    def test_it_is_a_radius(self, robust, eps):
        with pytest.raises(InvalidInput, match="eps must be a finite radius"):
            robust(eps=eps)

    def test_it_is_one_radius(self, robust):
        with pytest.raises(InvalidInput, match="one radius"):
            robust(eps=[0.1, 0.2])

    def test_not_both(self, robust):
        with pytest.raises(InvalidInput, match="not both"):
            robust(p_eps=cb.TwoPoint(0.11), eps=0.1)

    def test_an_adversary_in_its_place(self, robust):
        with pytest.raises(InvalidInput, match=r"IBP\(margins=True\) is an adversary.*eps=0.1, adversary=IBP"):
            robust(p_eps=cb.IBP(margins=True))

    def test_a_class_in_its_place(self, robust):
        with pytest.raises(InvalidInput, match=r"pass an instance: Rayleigh.for_radius\(0.1\)"):
            robust(p_eps=cb.Rayleigh)

    @pytest.mark.parametrize(
        "odd", ["two-point", cb.LinearRamp(), halved, [0.1], cb.IBP], ids=lambda odd: type(odd).__name__
    )
    def test_anything_else_in_its_place(self, robust, odd):
        with pytest.raises(InvalidInput, match=r"p_eps must be a distribution of radii, such as TwoPoint\(eta=0.11\)"):
            robust(p_eps=odd)

    @pytest.mark.parametrize("odd", ["ibp", attacks.PGD(), None], ids=repr)
    def test_an_adversary_that_is_none(self, robust, odd):
        with pytest.raises(InvalidInput, match=r"adversary must be IBP\(\), CROWNIBP\(\) or PGD\(\)"):
            robust(eps=0.1, adversary=odd)

    def test_an_adversary_that_is_a_class(self, robust):
        with pytest.raises(InvalidInput, match=r"pass an instance: PGD\(\)"):
            robust(eps=0.1, adversary=cb.PGD)

    def test_a_ramp_that_is_none(self, robust):
        with pytest.raises(InvalidInput, match=r"ramp must be LinearRamp\(start, end\)"):
            robust(eps=0.1, ramp=0.5)


def test_classification_needs_a_radius():
    with pytest.raises(InvalidInput, match=r"RobustCategorical\(eps=0.1\).*TwoPoint\(eta=0.11, lam=0.25\)"):
        cb.RobustCategorical()


def test_a_number_alone_is_the_radius():
    assert cb.RobustCategorical(0.1) == cb.RobustCategorical(eps=0.1)


def test_an_adversary_alone_is_refused():
    with pytest.raises(InvalidInput, match=r"IBP\(\) is an adversary"):
        cb.RobustCategorical(cb.IBP())


def test_regression_without_a_radius_is_the_standard_likelihood():
    assert cb.RobustGaussian().p_eps == cb.TwoPoint(0.0)
    assert cb.RobustGaussian().eps is None


@pytest.mark.parametrize("odd", [cb.TwoPoint(0.1), cb.IBP()], ids=repr)
def test_regression_takes_the_noise_first(odd):
    with pytest.raises(InvalidInput, match=r"noise_std is the standard deviation.*eps=0.1"):
        cb.RobustGaussian(odd)


class Constant(RadiusDistribution):
    """A distribution of one's own, with no more than it needs."""


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (cb.Categorical(), "Categorical()"),
        (cb.RobustCategorical(0.1), "RobustCategorical(eps=0.1)"),
        (cb.RobustCategorical(cb.TwoPoint(0.11)), "RobustCategorical(p_eps=TwoPoint(eta=0.11))"),
        (
            cb.RobustCategorical(0.1, cb.PGD(steps=3), domain=None, ramp=cb.LinearRamp(0, 0.8)),
            "RobustCategorical(adversary=PGD(steps=3), domain=None, ramp=LinearRamp(start=0, end=0.8), eps=0.1)",
        ),
        (cb.RobustCategorical(0.1, ramp=None), "RobustCategorical(ramp=None, eps=0.1)"),
        (cb.RobustCategorical(0.1, domain=[0, 1]), "RobustCategorical(eps=0.1)"),
        (cb.RobustGaussian(0.5, eps=0.1), "RobustGaussian(noise_std=0.5, eps=0.1)"),
        (cb.IBP(), "IBP()"),
        (cb.IBP(margins=True), "IBP(margins=True)"),
        (cb.CROWNIBP(0.5), "CROWNIBP(beta=0.5)"),
        (cb.TwoPoint(0.11, lam=0.5), "TwoPoint(eta=0.11, lam=0.5)"),
        (cb.Rayleigh(0.1, quadrature=8), "Rayleigh(eta=0.1, quadrature=8)"),
        (cb.Quantiles(inverse_cdf=halved), "Quantiles(inverse_cdf=halved)"),
        (cb.LinearRamp(), "LinearRamp()"),
        (Constant(), "Constant()"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_show_what_is_not_at_its_default(settings, text):
    assert repr(settings) == text


def test_the_likelihood_is_reached_by_half_of_training_for_a_radius_and_by_its_end_for_a_distribution():
    assert cb.RobustCategorical(eps=0.1).ramp == cb.RobustCategorical(0.1).ramp == cb.Curriculum()
    assert cb.RobustGaussian(eps=0.1).ramp == cb.LinearRamp(0.0, 0.5)
    assert cb.RobustCategorical(cb.TwoPoint(0.11)).ramp == cb.RobustGaussian().ramp == cb.LinearRamp()
    assert cb.RobustCategorical(eps=0.1, ramp=None).ramp is None
