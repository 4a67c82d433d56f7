"""How well a regression predicts, and what its uncertainty is worth.

With N weight samples and observation noise s, the predictive density is a mixture of Gaussians,

    p(y | x) = 1/N sum_i N(y; f^{w_i}(x), s²),

whose variance is s² plus the variance of the f^{w_i}(x): what is noise, and what is not known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from certibayes.data.points import points_for
from certibayes.errors import InvalidInput
from certibayes.prediction import RegressionPredictor
from certibayes.support.checks import inputs_of

QUANTILE = 1.959964
"""Of a standard normal distribution: 95% lie within so many standard deviations."""


@dataclass(frozen=True, eq=False)
class RegressionAssessment:
    """Predictions of a regression beside their targets.

    Attributes:
        predicted: predictive mean, (n, outputs), float64.
        standard_deviation: standard deviation of the networks' outputs, (n, outputs).
        targets: (n, outputs).
        noise_std: standard deviation of the observation noise; None where it is not known.
        nll: negative log-likelihood of every point under the predictive density, (n,); None without noise.
    """

    predicted: Tensor
    standard_deviation: Tensor
    targets: Tensor
    noise_std: float | None
    nll: Tensor | None

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.targets)

    def summary(self) -> dict[str, float | None]:
        """Return the errors, R², the networks' standard deviation, NLL and the coverage of 95% intervals."""
        error = self.predicted - self.targets
        variance = float((self.targets - self.targets.mean(0)).square().mean())
        mse = float(error.square().mean())
        coverage = None
        if self.noise_std is not None:
            deviation = (self.standard_deviation.square() + self.noise_std**2).sqrt()
            coverage = float((error.abs() <= QUANTILE * deviation).double().mean())
        return {
            "rmse": math.sqrt(mse),
            "mae": float(error.abs().mean()),
            "r2": 1.0 - mse / variance if variance > 0 else None,
            "standard_deviation": float(self.standard_deviation.mean()),
            "nll": None if self.nll is None else float(self.nll.mean()),
            "coverage_95": coverage,
        }


def assess_regression(
    predictor: RegressionPredictor, x: Any, y: Any = None, *, noise_std: float | None = None, batch_size: int = 500
) -> RegressionAssessment:
    """Compare the predictions of a regression with targets.

    Args:
        predictor: of a posterior that was fitted to targets of floats.
        x: inputs (n, ...); or what yields inputs with targets, as ``certify`` takes it.
        y: targets (n, outputs).
        noise_std: standard deviation of the observation noise, which the likelihood had.
        batch_size: inputs predicted at once.

    Raises:
        InvalidInput: the predictor does no regression, or there are no targets of its shape.
    """
    if not isinstance(predictor, RegressionPredictor):
        raise InvalidInput(f"assess_regression takes a regression predictor, not {type(predictor).__name__}.")
    if noise_std is not None and not (math.isfinite(noise_std) and noise_std > 0):
        raise InvalidInput(f"noise_std must be positive, got {noise_std}.")
    points = points_for(predictor, x, y)
    if points.y is None:
        raise InvalidInput("errors need targets; pass y, (n, outputs).")
    inputs = inputs_of(points.x, "the inputs").to(predictor.device)
    targets = inputs_of(points.y, "the targets").to(predictor.device).double()
    targets = targets[:, None] if targets.dim() == 1 else targets
    if not len(inputs) or tuple(targets.shape) != (len(inputs), predictor.classes):
        raise InvalidInput(
            f"there must be points, with targets ({len(inputs)}, {predictor.classes}); got {tuple(targets.shape)}."
        )
    with torch.no_grad():
        outputs = torch.cat([predictor.sample_outputs(part).double() for part in inputs.split(batch_size)], 1)
    nll = None
    if noise_std is not None:
        each = -0.5 * ((outputs - targets).square() / noise_std**2 + math.log(2 * math.pi * noise_std**2)).sum(-1)
        nll = math.log(len(outputs)) - torch.logsumexp(each, 0)
    return RegressionAssessment(outputs.mean(0), outputs.std(0, correction=0), targets, noise_std, nll)
