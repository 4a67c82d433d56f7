"""Every mean-field method on conjugate linear regression: mean and standard deviations in closed form, float64."""

import math

import pytest
import torch

import certibayes as cb

from .conjugate import infer, problem

pytestmark = pytest.mark.slow

# What each method needs to converge on this problem; more noise in the curvature wants slower averages.
METHODS = {
    "vogn": (cb.VOGN(lr=0.1, betas=(0.9, 0.98), initial_std=0.05), {"batch_size": 100, "steps": 800}),
    "noisy-adam": (cb.NoisyAdam(lr=0.05, betas=(0.9, 0.998), initial_std=0.05), {"batch_size": 50, "steps": 4000}),
    "ivon": (cb.IVON(lr=0.05, betas=(0.9, 0.9995), initial_std=0.02), {"batch_size": 1000, "steps": 6000}),
    "bbb": (cb.BBB(lr=0.05, initial_std=0.05), {"batch_size": 1000, "steps": 4000}),
    "laplace": (cb.Laplace(lr=0.05, structure="diagonal"), {"batch_size": 500, "steps": 800}),
}


@pytest.fixture(scope="module", params=METHODS)
def method(request):
    algorithm, settings = METHODS[request.param]
    return algorithm, settings, infer(algorithm, problem(), **settings)


def test_the_mean_is_the_posteriors(method):
    data = problem()
    assert ((method[2][0] - data.mean).abs() < 0.1 * data.stds).all()


def test_the_stds_are_the_mean_field_ones(method):
    torch.testing.assert_close(method[2][1], problem().mean_field_std, rtol=0.1, atol=0)


def test_the_stds_are_learned(method):
    algorithm, _, (_, std) = method
    if isinstance(algorithm, cb.Laplace):
        pytest.skip("its standard deviations are computed at the end; there is nothing to start from")
    assert ((std / algorithm.initial_std).log().abs() > 0.2).all()


def test_repeating_the_data_narrows_the_posterior(method):
    algorithm, settings, (_, std) = method
    _, narrower = infer(algorithm, problem(repeats=4), **settings)
    torch.testing.assert_close(narrower, std / 2, rtol=0.12, atol=0)


def test_stds_scale_with_the_root_of_the_temperature(method):
    algorithm, settings, (_, std) = method
    _, colder = infer(algorithm, problem(), temperature=0.25, **settings)
    torch.testing.assert_close(colder, std * math.sqrt(0.25), rtol=0.1, atol=0)
