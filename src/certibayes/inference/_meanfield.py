"""What the natural-gradient methods have in common: the Gaussian that a curvature stands for.

With N examples, prior precision δ, temperature T and curvature h of one example's loss, the mean-field Gaussian has

    s² = T / (N h + δ).

Where the likelihood has kinks, the curvature of these is a part of h that is kept apart; see ``inference._kink``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from certibayes.inference._streams import normal_like
from certibayes.inference.target import Target
from certibayes.networks import Params
from certibayes.support.fused import fused


def standard_deviations(target: Target, curvature: Params, kinks: Params) -> dict[str, Tensor]:
    """Return the standard deviation of every parameter; ``kinks`` are the curvatures of these, if there are any."""
    return {
        name: torch.rsqrt(_precision(h, kinks.get(name), target.precision[name], target.data_size, target.temperature))
        for name, h in curvature.items()
    }


def curvature_for_std(target: Target, params: Params, std: float) -> dict[str, Tensor]:
    """Return the curvature at which every standard deviation is ``std``, or 0 where the prior's alone is smaller."""
    precision = target.temperature / std**2
    return {
        name: torch.zeros_like(p) + ((precision - target.precision[name]) / target.data_size).clamp(min=0)
        for name, p in params.items()
    }


def sample_weights(
    target: Target, mean: Params, curvature: Params, kinks: Params, generator: torch.Generator
) -> dict[str, Tensor]:
    """Draw m + s ε with one ε ~ N(0, 1) for each weight."""
    sample = {}
    for name, m in mean.items():
        normal = normal_like(m, generator)
        (sample[name],) = _sample(
            m, normal, curvature[name], kinks.get(name), target.precision[name], target.data_size, target.temperature
        )
    return sample


def _precision(h: Any, kink: Any, precision: Any, data_size: int, temperature: Any) -> Any:
    """Return 1 / s² = (N h + δ) / T; T is a number, or a tensor where several models have their own."""
    scale = data_size / temperature
    if isinstance(scale, float):
        total = torch.add(precision / temperature, h, alpha=scale)
        return total if kink is None else total.add_(kink, alpha=scale)
    total = torch.addcmul(precision / temperature, h, scale)
    return total if kink is None else total.addcmul_(kink, scale)


@fused
def _sample(
    m: Any, normal: Any, h: Any, kink: Any, precision: Any, data_size: int, temperature: Any
) -> tuple[Any, ...]:
    return (normal.mul_(_precision(h, kink, precision, data_size, temperature).rsqrt_()).add_(m),)
