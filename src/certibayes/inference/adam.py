"""Adam (Kingma and Ba, 2015) as a pure function over dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

EPS = 1e-8


class Moments(NamedTuple):
    """Running means of gradients and of their squares, by parameter."""

    first: dict[str, Tensor]
    second: dict[str, Tensor]


def zero_moments(params: Mapping[str, Tensor]) -> Moments:
    """Return the moments to start from."""
    return Moments(
        {name: torch.zeros_like(p) for name, p in params.items()},
        {name: torch.zeros_like(p) for name, p in params.items()},
    )


def adam_step(
    params: Mapping[str, Tensor],
    gradient: Mapping[str, Tensor],
    moments: Moments,
    step: Tensor,
    lr: Tensor,
    betas: tuple[float, float],
) -> tuple[dict[str, Tensor], Moments]:
    """Make the step number ``step`` (counted from 1) and return new parameters and moments."""
    beta1, beta2 = betas
    rate, root = lr / (1 - beta1**step), torch.sqrt(1 - beta2**step)
    moved, first, second = {}, {}, {}
    for name, g in gradient.items():
        first[name] = torch.lerp(g, moments.first[name], beta1)
        second[name] = (moments.second[name] * beta2).addcmul_(g, g, value=1 - beta2)
        denominator = second[name].sqrt().div_(root).add_(EPS)
        moved[name] = params[name] - (first[name] / denominator).mul_(rate)
    return moved, Moments(first, second)
