"""Bayesian linear regression: a problem whose posterior is known in closed form."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

import certibayes as cb

NOISE, PRIOR_STD, SIZE = 0.5, 1.0, 4000


class Problem(NamedTuple):
    """Data and closed-form posterior of a linear model; the bias is the last coefficient.

    With several outputs the posterior is a product: coefficients of each output have a mean of their own, (outputs, 4),
    and all the same precision. So one chain over K outputs is K chains to test.
    """

    x: Tensor
    y: Tensor
    mean: Tensor
    precision: Tensor

    @property
    def mean_field_std(self) -> Tensor:
        """What the best mean-field approximation has: 1 / sqrt(Λ_ii)."""
        return self.precision.diagonal().rsqrt()

    @property
    def stds(self) -> Tensor:
        return torch.linalg.inv(self.precision).diagonal().sqrt()

    @property
    def covariance(self) -> Tensor:
        return torch.linalg.inv(self.precision)


def problem(size: int = SIZE, repeats: int = 1, outputs: int = 1) -> Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    x[:, 2] = 0.3 * x[:, 2]
    weights = torch.tensor([[0.7], [-0.4], [0.2]], dtype=torch.float64)
    y = x @ weights - 0.1 + NOISE * torch.randn(size, outputs, generator=generator, dtype=torch.float64)
    x, y = x.repeat(repeats, 1), y.repeat(repeats, 1)
    features = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    precision = features.T @ features / NOISE**2 + torch.eye(4, dtype=torch.float64) / PRIOR_STD**2
    mean = torch.linalg.solve(precision, features.T @ y / NOISE**2).T
    return Problem(x, y, mean.flatten() if outputs == 1 else mean, precision)


def linear_net(outputs: int = 1) -> nn.Module:
    """All coefficients 0, float64."""
    net = nn.Linear(3, outputs).double()
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    return net


def fit_linear(algorithm: cb.Algorithm, data: Problem, noise_std: float = NOISE, **settings) -> cb.Posterior:
    """``cb.fit`` of the linear model, from 0, with the prior and the noise of the closed form."""
    defaults = {
        "likelihood": cb.RobustGaussian(noise_std),
        "prior": cb.GaussianPrior(std=PRIOR_STD),
        "batch_size": len(data.x),
        "progress": False,
    }
    return cb.fit(linear_net(data.y.shape[1]), (data.x, data.y), algorithm=algorithm, **{**defaults, **settings})


def coefficients(params: dict[str, Tensor]) -> Tensor:
    """Stacked parameters as (S, outputs, 4), the bias last."""
    return torch.cat([params["weight"], params["bias"][..., None]], -1)


def whitened(drawn: Tensor, data: Problem, temperature: float = 1.0) -> Tensor:
    """Map coefficients (..., 4) so that draws from the posterior become N(0, I)."""
    mean = data.mean if data.y.shape[1] > 1 else data.mean[None]
    return (drawn - mean) @ torch.linalg.cholesky(data.precision / temperature)


class Estimate(NamedTuple):
    """An average over draws with its Monte Carlo standard error."""

    value: Tensor
    error: Tensor

    def agrees(self, expected: Tensor, bias: float = 0.0) -> bool:
        """Within 4 standard errors and a bias that is allowed."""
        return bool(((self.value - expected).abs() <= 4 * self.error + bias).all())


def first_two_moments(drawn: Tensor) -> tuple[Estimate, Estimate]:
    """Mean (4,) and second moments (4, 4) of chains (draws, chains, 4); errors are from the variance between chains."""
    chains = drawn.shape[1]
    products = drawn[..., :, None] * drawn[..., None, :]
    return tuple(Estimate(each.mean(0), each.std(0) / chains**0.5) for each in (drawn.mean(0), products.mean(0)))  # type: ignore[return-value]


def infer(
    algorithm: cb.Algorithm,
    data: Problem,
    noise_std: float = NOISE,
    steps: int = 600,
    batch_size: int | None = None,
    **settings,
) -> tuple[Tensor, Tensor]:
    """Fit a linear model by a mean-field method and return means and standard deviations, the bias last."""
    size = len(data.x)
    batch_size = size if batch_size is None else batch_size
    posterior = fit_linear(
        algorithm,
        data,
        noise_std,
        schedule=cb.Schedule("cosine", floor=0.0),
        epochs=max(1, steps * batch_size // size),
        batch_size=batch_size,
        **settings,
    )
    mean = torch.cat([posterior.mean["weight"].flatten(), posterior.mean["bias"]])
    std = torch.cat([posterior.std["weight"].flatten(), posterior.std["bias"]])
    return mean, std
