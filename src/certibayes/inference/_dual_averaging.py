"""Dual averaging of a step size (Hoffman and Gelman, 2014, sec. 3.2).

With the mean acceptance a_t of the t-th trajectory, the wanted one a*, γ = 0.05, t₀ = 10 and κ = 0.75,

    e ← e + (a* - a_t - e) / (t + t₀),
    log x = log 10 - sqrt(t) / γ e,        log x̄ ← log x̄ + t^-κ (log x - log x̄).

x multiplies the step size while it is adapted, x̄ afterwards. (The paper shrinks towards ten times the first step size,
since too small a step costs more than too large a one.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class DualAveraging(NamedTuple):
    """State of the adaptation; 0-d tensors, all 0 at the start.

    Attributes:
        log_factor: log x.
        log_mean: log x̄.
        error: e.
    """

    log_factor: Tensor
    log_mean: Tensor
    error: Tensor


def adapted(state: DualAveraging, acceptance: Tensor, made: int, wanted: float) -> DualAveraging:
    """Return the state after a trajectory.

    Args:
        state: before it.
        acceptance: its mean acceptance.
        made: its number t, counted from 1.
        wanted: the acceptance to reach.
    """
    error = torch.lerp(state.error, wanted - acceptance, 1 / (made + 10))
    log_factor = math.log(10.0) - math.sqrt(made) / 0.05 * error
    return DualAveraging(log_factor, torch.lerp(state.log_mean, log_factor, made**-0.75), error)
