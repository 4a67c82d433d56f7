"""Likelihoods by name."""

import pytest

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.likelihoods import LIKELIHOODS, as_likelihood

ADVERSARIES = {
    "ibp": cb.IBP(),
    "crown-ibp": cb.CROWNIBP(),
    "pgd": cb.PGD(),
    "sabr": cb.SABR(),
    "cc-ibp": cb.CCIBP(),
    "mtl-ibp": cb.MTLIBP(),
    "exp-ibp": cb.ExpIBP(),
}


def test_the_names():
    assert set(LIKELIHOODS) == {"standard", *ADVERSARIES}


@pytest.mark.parametrize("likelihood", [cb.Categorical(), cb.RobustCategorical(eps=0.1), cb.RobustGaussian()], ids=repr)
def test_an_instance_stays(likelihood):
    assert as_likelihood(likelihood) is likelihood
    assert as_likelihood(likelihood, eps=0.3) is likelihood


@pytest.mark.parametrize("eps", [None, 0.1])
def test_the_standard_one_needs_no_radius(eps):
    assert as_likelihood("standard", eps=eps) == cb.Categorical()


@pytest.mark.parametrize(("name", "adversary"), ADVERSARIES.items(), ids=ADVERSARIES)
def test_robust_ones_by_name(name, adversary):
    assert as_likelihood(name, eps=0.1) == cb.RobustCategorical(eps=0.1, adversary=adversary)


@pytest.mark.parametrize("name", ["CROWN-IBP", "crown_ibp", "Crown-Ibp"])
def test_case_and_underscores_do_not_matter(name):
    assert as_likelihood(name, eps=0.1).adversary == cb.CROWNIBP()


def test_settings_go_to_the_likelihood():
    settings = {"domain": None, "ramp": None, "adversary": cb.IBP(margins=True)}
    assert as_likelihood("ibp", eps=0.1, **settings) == cb.RobustCategorical(eps=0.1, **settings)
    assert as_likelihood("ibp", p_eps=cb.Rayleigh(0.1)) == cb.RobustCategorical(cb.Rayleigh(0.1))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ibp", "cb.RobustCategorical(eps=0.1)"),
        ("crown-ibp", "cb.RobustCategorical(eps=0.1, adversary=cb.CROWNIBP())"),
        ("pgd", "cb.RobustCategorical(eps=0.1, adversary=cb.PGD())"),
        ("mtl-ibp", "cb.RobustCategorical(eps=0.1, adversary=cb.MTLIBP())"),
    ],
)
def test_a_robust_name_without_a_radius_is_refused(name, remedy):
    with pytest.raises(InvalidInput) as caught:
        as_likelihood(name)
    assert f'"{name}" needs a radius: {remedy}' in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "example"),
    [(cb.Categorical, r"Categorical\(\)"), (cb.RobustCategorical, r"RobustCategorical\(eps=0.1\)")],
)
def test_a_class_is_refused(kind, example):
    with pytest.raises(InvalidInput, match=f"pass an instance: {example}"):
        as_likelihood(kind)


def test_a_name_that_is_nearly_right():
    with pytest.raises(InvalidInput, match=r"standard, ibp, crown-ibp, pgd.*Did you mean 'crown-ibp'"):
        as_likelihood("crownibp", eps=0.1)


@pytest.mark.parametrize("odd", [None, 0.1, "", cb.IBP(), dict], ids=repr)
def test_anything_else_is_refused(odd):
    with pytest.raises(InvalidInput, match=r"a likelihood is an object, such as cb.RobustCategorical\(eps=0.1\)"):
        as_likelihood(odd, eps=0.1)
