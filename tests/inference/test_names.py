"""Algorithms by name."""

import pytest

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.inference import ALGORITHMS, as_algorithm

from .cases import assert_same_posterior, fit


def test_every_algorithm_has_a_name():
    assert set(ALGORITHMS.values()) == {
        cb.BBB, cb.DeepEnsemble, cb.HMC, cb.IVON, cb.Laplace, cb.MAP, cb.NoisyAdam, cb.SGHMC, cb.SWAG, cb.VOGN,
        cb.SnapshotEnsemble,
    }  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_name_stands_for_the_defaults(name):
    expected = ALGORITHMS[name]()
    for spelled in (name, name.upper(), name.replace("-", "_"), name.title()):
        assert as_algorithm(spelled) == expected
        assert type(as_algorithm(spelled)) is type(expected)


def test_an_instance_stays():
    algorithm = cb.VOGN(lr=0.5)
    assert as_algorithm(algorithm) is algorithm


def test_fit_takes_names():
    assert_same_posterior(fit(algorithm="vogn"), fit(algorithm=cb.VOGN()))


def test_a_class_is_refused_with_the_remedy():
    with pytest.raises(InvalidInput, match=r"the class VOGN; pass an instance: VOGN\(\)"):
        as_algorithm(cb.VOGN)


@pytest.mark.parametrize(("typed", "meant"), [("vgon", "vogn"), ("noisyadam", "noisy-adam"), ("Ensembles", "ensemble")])
def test_the_nearest_name_is_offered(typed, meant):
    with pytest.raises(InvalidInput, match=f"perhaps you mean {meant}"):
        as_algorithm(typed)


@pytest.mark.parametrize("value", [None, 3, "zzz", object()])
def test_all_names_are_listed(value):
    names = "map, swag, noisy-adam, vogn, bbb, hmc, ivon, sghmc, laplace, ensemble, snapshot"
    with pytest.raises(InvalidInput, match=names):
        as_algorithm(value)
