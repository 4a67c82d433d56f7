import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.likelihoods import Batch

from .cases import assert_same, case_of, full_noise, images


def regression_case(outputs, size=6):
    net = cb.networks.mlp(4, [7], outputs, seed=outputs)
    targets = torch.randn(size, outputs, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return case_of(net, images(size, 4), targets)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("noise_std", [0.3, 1.0, 2.5])
def test_without_a_radius_it_is_the_normal_density(outputs, noise_std):
    case = regression_case(outputs)
    mean = case.graph.evaluate(case.tensors, case.batch.inputs)
    expected = Normal(mean, noise_std).log_prob(case.batch.targets).sum(-1)
    torch.testing.assert_close(case.log_likelihood(cb.RobustGaussian(noise_std)), expected)


@pytest.mark.parametrize("radius", [cb.TwoPoint(0.1, lam=1.0), cb.TwoPoint(0.0, lam=0.3)], ids=str)
def test_radius_zero_is_the_standard_likelihood_bit_for_bit(radius):
    case = regression_case(3)
    assert torch.equal(case.log_likelihood(cb.RobustGaussian(0.5, radius)), case.log_likelihood(cb.RobustGaussian(0.5)))


def by_hand(case, radii, weights, clean, noise_std):
    """Remark 1: the larger residual of the two expected extremes, output by output, example by example."""
    lower = clean * case.graph.evaluate(case.tensors, case.batch.inputs)
    upper = lower.clone()
    for radius, weight in zip(radii, weights, strict=True):
        low, high = cb.IBP().extremes(case.model, case.threat(radius))
        lower, upper = lower + weight * low, upper + weight * high
    values = []
    for y, low, high in zip(case.batch.targets.tolist(), lower.tolist(), upper.tolist(), strict=True):
        value = 0.0
        for target, f_min, f_max in zip(y, low, high, strict=True):
            residual = max(abs(f_max - target), abs(f_min - target))
            value += -(residual**2) / (2 * noise_std**2) - math.log(noise_std) - 0.5 * math.log(2 * math.pi)
        values.append(value)
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("lam", [0.0, 0.25])
def test_two_points_follow_the_papers_remark(outputs, lam):
    case = regression_case(outputs)
    found = case.log_likelihood(cb.RobustGaussian(0.5, cb.TwoPoint(0.125, lam)))
    torch.testing.assert_close(found, by_hand(case, [0.125], [1 - lam], lam, 0.5), rtol=1e-6, atol=1e-6)


def test_several_radii_average_the_extremes_not_the_densities():
    case = regression_case(2)
    likelihood = cb.RobustGaussian(0.5, cb.Rayleigh(0.1, quadrature=3))
    noise = full_noise(likelihood, case.batch)
    expected = by_hand(case, noise.radii.tolist(), noise.log_weights.exp().tolist(), 0.0, 0.5)
    torch.testing.assert_close(case.log_likelihood(likelihood, noise), expected, rtol=1e-6, atol=1e-6)


def test_interval_is_below_attacked_is_below_clean():
    case = regression_case(3)
    p_eps = cb.TwoPoint(0.2, 0.25)
    clean = case.log_likelihood(cb.RobustGaussian(0.5))
    attacked = case.log_likelihood(cb.RobustGaussian(0.5, p_eps, cb.PGD(steps=10)))
    bound = case.log_likelihood(cb.RobustGaussian(0.5, p_eps))
    assert (bound <= attacked + 1e-9).all()
    assert (attacked < clean).any()
    assert (bound < clean).all()


def test_a_linear_model_has_a_closed_form():
    """|residual| grows by eps |w|_1."""
    targets = torch.zeros(5, 1, dtype=torch.float64)
    case = case_of(nn.Linear(4, 1), images(5, 4), targets)
    residual = case.graph.evaluate(case.params, case.batch.inputs).abs() + 0.25 * case.params["weight"].abs().sum()
    expected = Normal(0.0, 0.7).log_prob(residual).sum(-1)
    found = case.log_likelihood(cb.RobustGaussian(0.7, cb.TwoPoint(0.25, 0.0)))
    torch.testing.assert_close(found, expected)


def test_the_gradient_is_finite_and_that_of_the_value():
    case = regression_case(2)
    likelihood = cb.RobustGaussian(0.5, cb.TwoPoint(0.1, 0.25))
    noise = full_noise(likelihood, case.batch)
    found = torch.func.grad(lambda p: likelihood.log_likelihood(case.graph, p, case.batch, noise).sum())(case.params)
    assert_same(found, case.gradient(likelihood, noise))
    assert all(torch.isfinite(g).all() for g in found.values())


@pytest.mark.parametrize("noise_std", [0.0, -1.0, math.nan, math.inf])
def test_bad_noise(noise_std):
    with pytest.raises(InvalidInput, match="noise_std"):
        cb.RobustGaussian(noise_std)


@pytest.mark.parametrize(
    "targets",
    [torch.zeros(6), torch.zeros(6, 2), torch.zeros(6, 1, dtype=torch.long)],
    ids=["flat", "too wide", "integers"],
)
def test_targets_that_do_not_fit_are_refused(targets):
    case = regression_case(1)
    with pytest.raises(InvalidInput, match="Reshape the targets"):
        cb.RobustGaussian().validate(case.graph, Batch(case.batch.inputs, targets))


def test_inputs_outside_the_domain_are_refused():
    case = regression_case(1)
    with pytest.raises(InvalidInput, match="outside the domain"):
        cb.RobustGaussian(domain=(0.0, 0.5)).validate(case.graph, case.batch)


def test_metadata():
    assert cb.RobustGaussian(0.5, cb.TwoPoint(0.1, 0.25)).describe() == {
        "name": "RobustGaussian",
        "eps": None,
        "p_eps": {"name": "TwoPoint", "eta": 0.1, "lam": 0.25},
        "adversary": {"name": "IBP", "margins": False, "smoothing": 0.0},
        "lower_bound": True,
        "domain": None,
        "ramp": {"name": "LinearRamp", "start": 0.0, "end": 1.0, "first": 0.0},
        "noise_std": 0.5,
    }
