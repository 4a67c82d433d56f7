"""MAP against torch's own optimizers, step by step, and against the ridge regression it must find."""

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.errors import InvalidInput

from .cases import LIKELIHOODS, SIZE, target_for


def objective(target, params, batch, noise):
    """Mean negative log-likelihood plus the prior over N, written out."""
    loss = -target.log_likelihood(params, batch, noise).mean()
    for name, precision in target.precision.items():
        loss = loss + 0.5 * precision / target.data_size * params[name].square().sum()
    return loss


OPTIMIZERS = {
    "adam": (
        cb.MAP(lr=0.01, betas=(0.8, 0.99)),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99)),
    ),
    "sgd": (
        cb.MAP(lr=0.05, optimizer="sgd", betas=(0.7, 0.0)),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.7),
    ),
    "sgd without momentum": (
        cb.MAP(lr=0.05, optimizer="sgd", betas=(0.0, 0.0)),
        lambda p: torch.optim.SGD(p, lr=0.05),
    ),
}


@pytest.mark.parametrize(("algorithm", "make"), OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("likelihood", [LIKELIHOODS["standard"], LIKELIHOODS["ibp"]], ids=["standard", "ibp"])
def test_it_is_torchs_optimizer_step_by_step(algorithm, make, likelihood):
    target, params, batch = target_for(likelihood, torch.float64)
    noise = likelihood.draw(1.0, batch, None)
    leaves = {name: p.clone().requires_grad_(True) for name, p in params.items()}
    optimizer = make(list(leaves.values()))
    state = algorithm.init(target, params, torch.Generator().manual_seed(0))
    for _ in range(12):
        optimizer.zero_grad()
        objective(target, leaves, batch, noise).backward()
        optimizer.step()
        state, _ = algorithm.update(target, state, batch, noise, torch.Generator())
        for name, leaf in leaves.items():
            torch.testing.assert_close(state.params[name], leaf.detach(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_it_finds_the_ridge_regression(optimizer):
    """A linear model with normal noise and prior has a closed form; the prior must count once, not N times."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3
    noise_std, prior_std = 0.5, 0.4
    posterior = cb.fit(
        nn.Linear(3, 1).double(),
        (x, y),
        algorithm=cb.MAP(lr=0.05 if optimizer == "adam" else 0.02, optimizer=optimizer),
        likelihood=cb.RobustGaussian(noise_std),
        prior=cb.GaussianPrior(std=prior_std),
        schedule=cb.Schedule("cosine", floor=0.0),
        batch_size=SIZE,
        epochs=600,
        progress=False,
    )
    features = torch.cat([x, torch.ones(SIZE, 1, dtype=torch.float64)], 1)
    precision = features.T @ features / noise_std**2 + torch.eye(4, dtype=torch.float64) / prior_std**2
    expected = torch.linalg.solve(precision, features.T @ y / noise_std**2).flatten()
    found = torch.cat([posterior.params["weight"].flatten(), posterior.params["bias"]])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_an_unknown_optimizer():
    with pytest.raises(InvalidInput, match="adam"):
        cb.MAP(optimizer="lbfgs")


def test_it_returns_a_point():
    target, params, _ = target_for(LIKELIHOODS["standard"])
    algorithm = cb.MAP()
    posterior = algorithm.finalize(
        target, algorithm.init(target, params, torch.Generator().manual_seed(0)), (), torch.Generator()
    )
    assert isinstance(posterior, cb.Point)
    assert all(torch.equal(posterior.params[name], p) for name, p in params.items())
