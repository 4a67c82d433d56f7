"""Radii: how far an input may be from its point, and in which norm."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from certibayes.errors import InvalidInput

NORMS = ("linf", "l2", "l1")
"""Norms in which radii may be given."""


def require_norm(norm: str) -> None:
    """Raise unless the norm is known."""
    if norm not in NORMS:
        raise InvalidInput(f"norm must be one of {', '.join(NORMS)}, got {norm!r}.")


def require_radius(eps: float) -> None:
    """Raise unless eps is a finite number >= 0."""
    if not (math.isfinite(eps) and eps >= 0):
        raise InvalidInput(f"eps must be a finite radius >= 0, got {eps}.")


def as_radius(eps: Any) -> float | Tensor:
    """Return one radius as a float, and several as a float64 tensor on the CPU, so that both can be written as JSON.

    Args:
        eps: a number, also of numpy or as a tensor without dimensions; or a tensor, an array or a list of radii.

    Raises:
        InvalidInput: it is nothing of that kind, or not every radius is finite and >= 0.
    """
    if isinstance(eps, Real):
        require_radius(float(eps))
        return float(eps)
    try:
        radii = eps.detach().to("cpu", torch.float64) if isinstance(eps, Tensor) else _float64(eps)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"eps must be a number or a tensor of numbers, got {type(eps).__name__}.") from error
    if radii.dim() == 0:
        require_radius(float(radii))
        return float(radii)
    if not bool((torch.isfinite(radii) & (radii >= 0)).all()):
        raise InvalidInput("eps must hold finite radii >= 0.")
    return radii


def radii_for(eps: Any, x: Tensor, norm: str = "linf") -> Tensor:
    """Return radii in float64 that broadcast against ``x``: (B, 1, ...), (1, *shape) or (B, *shape).

    What a shape means never depends on how many points there happen to be: (B,) is one radius per point, and one per
    input value has all dimensions of the points.

    Args:
        eps: one radius, one per point (B,), or, in l-infinity, one per input value: (1, *shape) or (B, *shape).
        x: the points, (B, *shape).
        norm: in which the radii are meant.
    """
    require_norm(norm)
    radii, each = as_radius(eps), (len(x), *[1] * (x.dim() - 1))
    if not isinstance(radii, Tensor):
        return torch.full(each, radii, dtype=torch.float64, device=x.device)
    if radii.shape == x.shape[:1]:
        return radii.to(x.device).view(each)
    if norm != "linf":
        raise InvalidInput(
            f"eps has shape {tuple(radii.shape)}. In {norm} give one number, or one for each of the {len(x)} points, "
            f"({len(x)},); a radius for each input value is for the norm linf."
        )
    if not fits(radii, x):
        shape = ", ".join(str(length) for length in x.shape[1:])
        raise InvalidInput(
            f"eps has shape {tuple(radii.shape)}, and the points have {tuple(x.shape)}. One radius per point has shape "
            f"({len(x)},); one per input value has shape (1, {shape}), or ({len(x)}, {shape}) where points differ."
        )
    return radii.to(x.device)


def fits(values: Tensor, x: Tensor) -> bool:
    """Tell whether there is one for each input value, (1, *shape) or (B, *shape), for points (B, *shape)."""
    return values.shape[1:] == x.shape[1:] and values.dim() == x.dim() and len(values) in (1, len(x))


def _float64(values: Any) -> Tensor:
    # A copy: arrays that may not be written to would raise a warning otherwise.
    return torch.tensor(values, dtype=torch.float64)
