"""Gradient descent with momentum (Polyak, 1964).

u ← β u + g + δ w,        w ← w - lr u
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from certibayes.support.fused import fused


def momentum_step(
    params: Mapping[str, Tensor],
    gradient: Mapping[str, Tensor],
    decay: Mapping[str, Tensor],
    velocity: Mapping[str, Tensor],
    lr: Tensor,
    momentum: float,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Make a step and return new parameters and velocities.

    Args:
        params: weights w.
        gradient: g of the loss.
        decay: δ, what is added to the gradient for each unit of a weight.
        velocity: u of the step before.
        lr: learning rate, 0-d.
        momentum: β.
    """
    moved, faster = {}, {}
    for name, w in params.items():
        moved[name], faster[name] = _descend(w, gradient[name], decay[name], velocity[name], lr, momentum)
    return moved, faster


@fused
def _descend(w: Any, g: Any, decay: Any, u: Any, lr: Any, momentum: float) -> tuple[Any, ...]:
    u = torch.addcmul(g, w, decay).add_(u, alpha=momentum)
    return w - lr * u, u
