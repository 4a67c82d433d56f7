"""Adam (Kingma and Ba, 2015), as a pure function and in place.

    m ← β₁ m + (1 - β₁) g,        v ← β₂ v + (1 - β₂) g²,        w ← w - lr m / (1 - β₁ᵗ) / (sqrt(v / (1 - β₂ᵗ)) + e)

Training keeps its states, so ``adam_step`` changes nothing that it was given, and takes step and rate as tensors. Each
weight decays towards 0 by the prior's precision: that is part of the gradient g.
Bounds are raised by thousands of short ascents, whose moments nobody else holds: ``adam_direction`` overwrites them,
and its step is known on the host. The two round differently, so neither can replace the other without changing results
in their last bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from certibayes.support.fused import fused

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
    decay: Mapping[str, Tensor] | None,
    moments: Moments,
    step: Tensor,
    lr: Tensor,
    betas: tuple[float, float],
) -> tuple[dict[str, Tensor], Moments]:
    """Make the step number ``step`` (counted from 1) and return new parameters and moments.

    Args:
        params: weights.
        gradient: of the loss.
        decay: what is added to the gradient for each unit of a weight; None for nothing.
        moments: of the step before.
        step: 0-d.
        lr: learning rate, 0-d.
        betas: of the moments.
    """
    rate, inverse_root = corrections(step, lr, *betas)
    moved, first, second = {}, {}, {}
    for name, w in params.items():
        moved[name], first[name], second[name] = _step(
            w,
            gradient[name],
            None if decay is None else decay[name],
            moments.first[name],
            moments.second[name],
            rate,
            inverse_root,
            *betas,
        )
    return moved, Moments(first, second)


@fused
def corrections(step: Any, lr: Any, beta1: float, beta2: float) -> tuple[Any, ...]:
    """Return lr / (1 - β₁ᵗ) and 1 / sqrt(1 - β₂ᵗ)."""
    return lr / (1 - beta1**step), torch.rsqrt(1 - beta2**step)


@fused
def corrected_rate(step: Any, lr: Any, beta1: float) -> tuple[Any, ...]:
    """Return lr / (1 - β₁ᵗ) alone."""
    return (lr / (1 - beta1**step),)


def adam_formula(  # noqa: PLR0913 - a formula
    w: Any, g: Any, decay: Any, m: Any, v: Any, rate: Any, inverse_root: Any, beta1: float, beta2: float
) -> tuple[Any, ...]:
    """Return w, m and v of one weight after a step; part of ``fused`` formulas. See ``corrections`` for the rate."""
    g = g if decay is None else torch.addcmul(g, w, decay)
    if _is_one_pass((rate, inverse_root), (w, g, m, v)):
        return _in_one_pass(w, g, m, v, rate.item(), inverse_root.item(), beta1, beta2)
    m = torch.lerp(g, m, beta1)
    v = (v * beta2).addcmul_(g, g, value=1 - beta2)
    # As few passes over memory as there are: a step of a small network takes no longer than these.
    denominator = torch.sqrt(v).mul_(inverse_root).add_(EPS)
    return torch.addcdiv(w, m * rate, denominator, value=-1), m, v


_step = fused(adam_formula)

_FAR = torch.tensor(2.0**40)
"""A step after which bias is no longer corrected."""


def _is_one_pass(settings: tuple[Any, ...], tensors: tuple[Any, ...]) -> bool:
    """Tell whether torch's own pass over all four tensors, for CPUs, can make the step: its settings are numbers."""
    every = (*tensors, *settings)
    return (
        all(isinstance(tensor, Tensor) and tensor.device.type == "cpu" for tensor in every)
        and all(setting.dim() == 0 for setting in settings)
        and all(tensor.is_contiguous() and tensor.dtype == tensors[0].dtype for tensor in tensors)
        and not any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in every)
    )


def _in_one_pass(  # noqa: PLR0913 - a formula
    w: Tensor, g: Tensor, m: Tensor, v: Tensor, rate: float, inverse_root: float, beta1: float, beta2: float
) -> tuple[Tensor, ...]:
    """Make the same step on copies, in one pass where the formula takes eight.

    Numerator and denominator are both divided by ``inverse_root``, so that bias is corrected by rate and e alone.
    """
    w, m, v = w.clone(), m.clone(), v.clone()
    torch._fused_adam_(
        [w], [g], [m], [v], [], [_FAR], lr=rate / inverse_root, beta1=beta1, beta2=beta2, eps=EPS / inverse_root,
        weight_decay=0.0, amsgrad=False, maximize=False,
    )  # fmt: skip
    return w, m, v


def adam_direction(gradient: Tensor, moments: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return m / (sqrt(v) + 1e-12) with β = (0.9, 0.99), and the moments for the next step.

    Args:
        gradient: g.
        moments: m and v as the last call returned them, which are overwritten; None for the first step.
    """
    if moments is None:
        mean, square = 0.1 * gradient, 0.01 * gradient * gradient
    else:
        mean, square = moments
        mean.mul_(0.9).add_(gradient, alpha=0.1)
        square.mul_(0.99).add_(gradient * gradient, alpha=0.01)
    return mean / (square.sqrt() + 1e-12), (mean, square)


def bias_correction(step: int) -> float:
    """Return what ``adam_direction`` is to be multiplied with in its ``step``-th call: sqrt(1 - β₂ᵗ) / (1 - β₁ᵗ)."""
    return float((1 - 0.99**step) ** 0.5 / (1 - 0.9**step))
