"""Gradient ascent on the variables of a bound: slopes, coefficients of cuts, multipliers, weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.support.adam import adam_direction, bias_correction

Values = dict[str, Tensor]


class Variables(NamedTuple):
    """A group of tensors with values from 0 to ``top``, or to infinity, and the rate at which they move."""

    values: Values
    rate: float
    top: float | None = 1.0


def climb(objective: Callable[[list[Values]], Tensor], variables: Sequence[Variables], steps: int) -> list[Values]:
    """Raise ``objective``, a number, by Adam (Kingma and Ba, 2015) with rates that fall to 0 linearly.

    Each number moves by about its group's rate, whatever its gradient's magnitude, so quantities that are summed in the
    objective and have no variables in common are raised independently of each other. It can be mapped over networks.

    Returns:
        The groups of values after ``steps``.
    """
    groups = [dict(group.values) for group in variables]
    if not any(groups):
        return groups
    moments: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
    for step in range(1, steps + 1):
        gradients = torch.func.grad(objective)(groups)
        correction = bias_correction(step)
        for index, (gradient, group) in enumerate(zip(gradients, variables, strict=True)):
            rate = group.rate * (1 - (step - 1) / steps) * correction
            for name, g in gradient.items():
                direction, moments[index, name] = adam_direction(g, moments.get((index, name)))
                groups[index][name] = (groups[index][name] + rate * direction).clamp(0.0, group.top)
    return groups
