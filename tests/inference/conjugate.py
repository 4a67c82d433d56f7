"""Bayesian linear regression: a problem whose posterior is known in closed form."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

import certibayes as cb

NOISE, PRIOR_STD, SIZE = 0.5, 1.0, 4000


class Problem(NamedTuple):
    """Data and closed-form posterior of a linear model; the bias is the last coefficient."""

    x: Tensor
    y: Tensor
    mean: Tensor
    precision: Tensor

    @property
    def mean_field_widths(self) -> Tensor:
        """What the best mean-field approximation has: 1 / sqrt(Λ_ii)."""
        return self.precision.diagonal().rsqrt()

    @property
    def stds(self) -> Tensor:
        return torch.linalg.inv(self.precision).diagonal().sqrt()


def problem(size: int = SIZE, repeats: int = 1) -> Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    x[:, 2] = 0.3 * x[:, 2]
    weights = torch.tensor([[0.7], [-0.4], [0.2]], dtype=torch.float64)
    y = x @ weights - 0.1 + NOISE * torch.randn(size, 1, generator=generator, dtype=torch.float64)
    x, y = x.repeat(repeats, 1), y.repeat(repeats, 1)
    features = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    precision = features.T @ features / NOISE**2 + torch.eye(4, dtype=torch.float64) / PRIOR_STD**2
    mean = torch.linalg.solve(precision, features.T @ y / NOISE**2).flatten()
    return Problem(x, y, mean, precision)


def infer(
    algorithm: cb.Algorithm,
    data: Problem,
    noise_std: float = NOISE,
    steps: int = 600,
    batch_size: int | None = None,
    **settings,
) -> tuple[Tensor, Tensor]:
    """Fit a linear model by a mean-field method and return means and widths, the bias last."""
    size = len(data.x)
    batch_size = size if batch_size is None else batch_size
    net = nn.Linear(3, 1).double()
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    posterior = cb.fit(
        net,
        (data.x, data.y),
        algorithm=algorithm,
        likelihood=cb.RobustGaussian(noise_std),
        prior=cb.GaussianPrior(std=PRIOR_STD),
        schedule=cb.Schedule("cosine", floor=0.0),
        epochs=max(1, steps * batch_size // size),
        batch_size=batch_size,
        progress=False,
        **settings,
    )
    mean = torch.cat([posterior.mean["weight"].flatten(), posterior.mean["bias"]])
    widths = torch.cat([posterior.std["weight"].flatten(), posterior.std["bias"]])
    return mean, widths
