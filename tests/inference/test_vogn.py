"""VOGN on a problem whose posterior is known: Bayesian linear regression.

The curvature is the mean of squared per-example gradients, x_i² r² / s⁴ with residual r. It equals the Gauss-Newton
curvature x_i² / s² only where r² is s² on average: when the data come from the model itself, with the noise
the likelihood assumes, and there are many of them (with N examples the estimate scatters by about sqrt(6 / N),
0.04 here). With another noise_std the standard deviations are wrong by the ratio of the two; the last test shows it.
"""

import math

import pytest
import torch

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.likelihoods import per_example_gradients

from ..strategies import few_of
from .cases import LIKELIHOODS, target_for
from .conjugate import NOISE, PRIOR_STD, infer, problem

VOGN = cb.VOGN(lr=0.1, betas=(0.9, 0.98), initial_std=0.05)


@pytest.fixture(scope="module")
def inferred():
    return infer(VOGN, problem())


def test_the_mean_is_the_posteriors(inferred):
    data = problem()
    assert ((inferred[0] - data.mean).abs() < 0.1 * data.stds).all()


def test_the_stds_are_the_mean_field_ones(inferred):
    torch.testing.assert_close(inferred[1], problem().mean_field_std, rtol=0.1, atol=0)


def test_the_stds_are_learned(inferred):
    """The paper's released code left them at their initial value."""
    assert ((inferred[1] / 0.05).log().abs() > 0.5).all()
    assert float(inferred[1].max() / inferred[1].min()) > 2


def test_small_batches_give_the_same_stds():
    """The curvature is a mean over the batch, so N alone sets its scale."""
    data = problem()
    _, std = infer(VOGN, data, batch_size=100, steps=800)
    torch.testing.assert_close(std, data.mean_field_std, rtol=0.1, atol=0)


def test_repeating_the_data_narrows_the_posterior(inferred):
    _, std = infer(VOGN, problem(repeats=4))
    torch.testing.assert_close(std, inferred[1] / 2, rtol=0.1, atol=0)


@pytest.mark.parametrize("temperature", few_of([0.25, 4.0], fast=[0.25]))
def test_stds_scale_with_the_root_of_the_temperature(inferred, temperature):
    _, std = infer(VOGN, problem(), temperature=temperature)
    torch.testing.assert_close(std, inferred[1] * math.sqrt(temperature), rtol=0.05, atol=0)


def test_without_information_the_stds_are_the_priors():
    """Features that are always 0 leave their weights at the prior."""
    data = problem(500)
    silent = data._replace(x=torch.zeros_like(data.x))
    mean, std = infer(VOGN, silent, steps=1000)
    torch.testing.assert_close(std[:3], torch.full((3,), PRIOR_STD, dtype=torch.float64), rtol=0.1, atol=0)
    assert float(mean[:3].abs().max()) < 1e-6


def test_the_empirical_curvature_follows_the_residuals_not_the_assumed_noise():
    """Known and documented: with noise_std twice too large they are four times, not twice, as large."""
    data = problem()
    _, std = infer(VOGN, data, noise_std=2 * NOISE)
    torch.testing.assert_close(std, 4 * data.mean_field_std, rtol=0.15, atol=0)


def test_one_step_written_out():
    """The module's equations, term by term, in float64."""
    likelihood = LIKELIHOODS["ibp"]
    target, params, batch = target_for(likelihood, torch.float64, temperature=0.5)
    noise = likelihood.draw(0.7, batch, None)
    algorithm = cb.VOGN(lr=0.03, betas=(0.8, 0.9), initial_std=0.02)
    state = algorithm.init(target, params, torch.Generator().manual_seed(0))
    n, b = target.data_size, len(batch.inputs)
    generator = torch.Generator().manual_seed(5)
    mean = {name: p.clone() for name, p in params.items()}
    momentum = {name: torch.zeros_like(p) for name, p in params.items()}
    curvature = {
        name: torch.full_like(p, float((0.5 / 0.02**2 - target.precision[name]) / n)) for name, p in params.items()
    }
    mine = torch.Generator().manual_seed(5)
    for t in range(1, 4):
        state, _ = algorithm.update(target, state, batch, noise, generator)
        sample = {}
        for name, m in mean.items():
            std = torch.sqrt(0.5 / (n * curvature[name] + target.precision[name]))
            sample[name] = m + std * torch.randn(m.shape, generator=mine, dtype=m.dtype)
        _, gradient, squares, _ = per_example_gradients(likelihood, target.graph, sample, target.buffers, batch, noise)
        for name, m in mean.items():
            delta = target.precision[name] / n
            curvature[name] = 0.9 * curvature[name] + 0.1 * squares[name] / b
            momentum[name] = 0.8 * momentum[name] + 0.2 * (-gradient[name] / b + delta * m)
            mean[name] = m - 0.03 * momentum[name] / (1 - 0.8**t) / (curvature[name] + delta)
            torch.testing.assert_close(state.mean[name], mean[name], rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(state.curvature[name], curvature[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_it_starts_at_the_width_asked_for(temperature):
    target, params, _ = target_for(LIKELIHOODS["standard"], temperature=temperature)
    algorithm = cb.VOGN(initial_std=0.02)
    for std in algorithm.finalize(
        target, algorithm.init(target, params, torch.Generator().manual_seed(0)), (), torch.Generator()
    ).std.values():
        torch.testing.assert_close(std, torch.full_like(std, 0.02))


def test_it_never_starts_wider_than_the_prior():
    target, params, _ = target_for(LIKELIHOODS["standard"])
    algorithm = cb.VOGN(initial_std=100.0)
    for name, std in algorithm.finalize(
        target, algorithm.init(target, params, torch.Generator().manual_seed(0)), (), torch.Generator()
    ).std.items():
        torch.testing.assert_close(std, target.precision[name].rsqrt().expand(std.shape))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_a_bad_initial_width(bad):
    with pytest.raises(InvalidInput, match="initial_std"):
        cb.VOGN(initial_std=bad)
