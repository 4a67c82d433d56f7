"""A likelihood is what its description says."""

import json

import pytest

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.likelihoods import CROWNIBP, likelihood_from

KNOWN = [
    cb.Categorical(),
    cb.RobustCategorical(eps=0.1),
    cb.RobustCategorical(cb.TwoPoint(0.1, lam=0.5), CROWNIBP(), domain=None, ramp=cb.SmoothRamp(0.1, 0.5)),
    cb.RobustCategorical(cb.Rayleigh(0.1, draws=3), cb.PGD(steps=2), ramp=None),
    cb.RobustCategorical(eps=0.1, adversary=cb.SABR(attack=cb.PGD(steps=2), bound=cb.IBP(margins=True))),
    cb.RobustCategorical(eps=0.1, adversary=cb.MTLIBP()),
    cb.RobustGaussian(0.5, cb.Exponential(0.1), domain=(0.0, 1.0)),
]


@pytest.mark.parametrize("likelihood", KNOWN, ids=repr)
def test_a_description_is_enough(likelihood):
    assert likelihood_from(likelihood.describe()) == likelihood
    found = likelihood_from(json.loads(json.dumps(likelihood.describe())))
    assert found.describe() == likelihood.describe()


@pytest.mark.parametrize(
    "description",
    [
        cb.RobustCategorical(cb.Quantiles(lambda u: 0.1 * u)).describe(),
        {"name": "Mine"},
        {"name": "RobustCategorical"},
        {**cb.RobustCategorical(eps=0.1).describe(), "more": 1},
        "standard",
        None,
    ],
)
def test_what_does_not_say_all_is_refused(description):
    with pytest.raises(InvalidInput, match="likelihood="):
        likelihood_from(description)
