"""What the natural-gradient methods have in common: the Gaussian that a curvature stands for.

With N examples, prior precision δ, temperature T and curvature h of one example's loss, the mean-field Gaussian has

    s² = T / (N h + δ).
"""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.inference._streams import normal_like
from certibayes.inference.target import Target
from certibayes.networks import Params


def standard_deviations(target: Target, curvature: Params) -> dict[str, Tensor]:
    """Return the standard deviation of every parameter."""
    scale = target.data_size / target.temperature
    precision = {name: target.precision[name] / target.temperature for name in curvature}
    if isinstance(scale, Tensor):  # several models, each with its own
        return {name: torch.addcmul(precision[name], h, scale).rsqrt_() for name, h in curvature.items()}
    return {name: torch.add(precision[name], h, alpha=scale).rsqrt_() for name, h in curvature.items()}


def curvature_for_std(target: Target, params: Params, std: float) -> dict[str, Tensor]:
    """Return the curvature at which every standard deviation is ``std``, or 0 where the prior's alone is smaller."""
    precision = target.temperature / std**2
    return {
        name: torch.zeros_like(p) + ((precision - target.precision[name]) / target.data_size).clamp(min=0)
        for name, p in params.items()
    }


def sample_weights(mean: Params, std: Params, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw m + s ε with one ε ~ N(0, 1) for each weight."""
    return {name: normal_like(m, generator).mul_(std[name]).add_(m) for name, m in mean.items()}
