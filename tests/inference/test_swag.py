"""SWAG: moments of the trajectory, against the trajectory itself."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput

from .cases import LIKELIHOODS, fit, target_for


def trajectory(algorithm, steps, every):
    """Run ``algorithm`` and return its final state and the iterates it should have collected."""
    likelihood = LIKELIHOODS["standard"]
    target, params, batch = target_for(likelihood, torch.float64)
    target = type(target)(**{**vars(target), "epoch_steps": every, "total_steps": steps})
    noise = likelihood.draw(1.0, batch, None)
    state, generator = (
        algorithm.init(target, params, torch.Generator().manual_seed(0)),
        torch.Generator().manual_seed(0),
    )
    iterates = []
    for step in range(1, steps + 1):
        state, _ = algorithm.update(target, state, batch, noise, generator)
        if algorithm.collects(target, step):
            state = algorithm.collect(target, state)
        if step > algorithm.start * steps and step % every == 0:
            iterates.append({name: p.clone() for name, p in state.params.items()})
    return target, state, iterates


def test_the_diagonal_is_the_variance_of_the_iterates():
    algorithm = cb.SWAG(lr=0.1, start=0.25, rank=0)
    target, state, iterates = trajectory(algorithm, steps=40, every=3)
    posterior = algorithm.finalize(target, state, (), torch.Generator())
    assert len(iterates) == 10 == int(state.collected)
    for name in posterior.mean:
        stacked = torch.stack([iterate[name] for iterate in iterates])
        torch.testing.assert_close(posterior.mean[name], stacked.mean(0))
        torch.testing.assert_close(posterior.std[name], stacked.std(0, correction=0), rtol=1e-5, atol=1e-8)


def test_the_deviations_are_the_last_ones_from_the_running_mean():
    algorithm = cb.SWAG(lr=0.1, start=0.0, rank=4)
    target, state, iterates = trajectory(algorithm, steps=24, every=4)
    posterior = algorithm.finalize(target, state, (), torch.Generator())
    for name, factors in posterior.factors.items():
        stacked = torch.stack([iterate[name] for iterate in iterates])
        running = stacked.cumsum(0) / torch.arange(1, 7, dtype=torch.float64).view(-1, *[1] * (stacked.dim() - 1))
        torch.testing.assert_close(factors, (stacked - running)[-4:] / (2 * 3) ** 0.5)
        torch.testing.assert_close(posterior.std[name], stacked.std(0, correction=0) / 2**0.5, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_its_iterates_are_those_of_map(optimizer):
    _, swag, _ = trajectory(cb.SWAG(lr=0.01, start=0.5, optimizer=optimizer), steps=12, every=2)
    likelihood = LIKELIHOODS["standard"]
    target, params, batch = target_for(likelihood, torch.float64)
    algorithm, generator = cb.MAP(lr=0.01, optimizer=optimizer), torch.Generator()
    state, noise = algorithm.init(target, params, generator), likelihood.draw(1.0, batch, None)
    for _ in range(12):
        state, _ = algorithm.update(target, state, batch, noise, generator)
    for name, p in state.params.items():
        assert torch.equal(swag.params[name], p)


def test_another_optimizer_is_refused():
    with pytest.raises(InvalidInput, match='"sgd" or "adam"'):
        cb.SWAG(optimizer="rmsprop")


def test_the_temperature_scales_the_covariance():
    posteriors = [fit(algorithm=cb.SWAG(lr=0.1, start=0.0, rank=2), temperature=t) for t in (1.0, 0.25)]
    for name, factors in posteriors[0].factors.items():
        torch.testing.assert_close(posteriors[1].factors[name], factors / 2)
        torch.testing.assert_close(posteriors[1].std[name], posteriors[0].std[name] / 2)


def test_samples_have_the_covariance_that_is_stated():
    net = nn.Linear(2, 1, bias=False)
    mean, std = {"weight": torch.tensor([[1.0, -1.0]])}, {"weight": torch.tensor([[0.5, 0.1]])}
    factors = {"weight": torch.tensor([[[1.0, 2.0]], [[0.0, -1.0]]])}
    posterior = cb.LowRankGaussian(net, mean, std, factors)
    drawn = posterior.sample(200_000, torch.Generator().manual_seed(0))["weight"].flatten(1).double()
    d = factors["weight"].flatten(1).double()
    expected = d.T @ d + torch.diag(std["weight"].flatten().double() ** 2)
    torch.testing.assert_close(drawn.T.cov(), expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(drawn.mean(0), torch.tensor([1.0, -1.0]).double(), rtol=0, atol=0.02)


def test_it_is_stored_and_read(tmp_path):
    posterior = fit(algorithm=cb.SWAG(lr=0.1, start=0.0, rank=2))
    posterior.save(tmp_path)
    found = cb.load(tmp_path)
    assert type(found) is cb.LowRankGaussian
    for name, tensor in posterior.tensors().items():
        assert torch.equal(found.tensors()[name], tensor)
    assert found.predictor(3, seed=1).digest == posterior.predictor(3, seed=1).digest


def test_too_few_iterates_are_reported():
    with pytest.raises(InvalidInput, match="more epochs"):
        fit(algorithm=cb.SWAG(start=0.9))


@pytest.mark.parametrize("bad", [{"start": 1.0}, {"rank": 1}, {"rank": -2}, {"every": 0}, {"momentum": 1.0}])
def test_bad_settings(bad):
    with pytest.raises(InvalidInput):
        cb.SWAG(**bad)
