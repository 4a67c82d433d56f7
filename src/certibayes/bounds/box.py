"""Boxes: axis-aligned sets of activations, as centre and radius."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

Domain = tuple[float, float] | None
"""The values an input can take at all, such as (0, 1) for images; None for no limit."""


class Box(NamedTuple):
    """All points within ``radius`` of ``centre``, coordinate by coordinate; both of shape (B, ...)."""

    centre: Tensor
    radius: Tensor

    @property
    def lower(self) -> Tensor:
        """Lower corner."""
        return self.centre - self.radius

    @property
    def upper(self) -> Tensor:
        """Upper corner."""
        return self.centre + self.radius

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return both corners in float64, rounded outwards by one unit, so that nothing is lost on the way out."""
        centre, radius = self.centre.double(), self.radius.double()
        infinity = torch.tensor(torch.inf, dtype=torch.float64, device=centre.device)
        return torch.nextafter(centre - radius, -infinity), torch.nextafter(centre + radius, infinity)


def ball(x: Tensor, eps: float | Tensor, domain: Domain = None) -> tuple[Tensor, Tensor]:
    """Return lower and upper corner of the l-infinity ball around ``x``, intersected with the domain.

    Args:
        x: centres (B, ...).
        eps: radius, a number or a tensor that broadcasts against ``x``.
        domain: smallest and largest value an input can take.
    """
    lower, upper = x - eps, x + eps
    if domain is not None:
        lower, upper = lower.clamp(min=domain[0]), upper.clamp(max=domain[1])
    return lower, upper


def ideal_box(x: Tensor, eps: float | Tensor, domain: Domain = None) -> Box:
    """Return the ball as a box in exact arithmetic; differentiable."""
    lower, upper = ball(x, eps, domain)
    return Box((lower + upper) / 2, (upper - lower) / 2)


def outward_box(x: Tensor, eps: float | Tensor, domain: Domain = None, dtype: torch.dtype | None = None) -> Box:
    """Return a box that holds every float input within ``eps`` of ``x``, also as float arithmetic judges it.

    ``x - eps`` rounds, and so does ``x`` itself where it is given in a finer precision than the network's; an attacker
    who computes the ball in floats may stand a little outside the exact one. The corners are the outermost of both
    readings, moved one float further out; where eps is 0 and x is exact, the box is ``x``.

    Args:
        x: points (B, ...), in the network's precision or a finer one.
        eps: radius, a number or a tensor that broadcasts against ``x``.
        domain: smallest and largest value an input can take.
        dtype: the network's precision; that of ``x`` by default.
    """
    dtype = x.dtype if dtype is None else dtype
    infinity = torch.tensor(torch.inf, dtype=dtype, device=x.device)
    exact = torch.as_tensor(eps, dtype=torch.float64, device=x.device)
    rounded = exact.to(dtype)
    rounded = torch.where(rounded.double() < exact, torch.nextafter(rounded, infinity), rounded)
    near = x.to(dtype)
    lower = torch.minimum(near - rounded, (x.double() - exact).to(dtype))
    upper = torch.maximum(near + rounded, (x.double() + exact).to(dtype))
    moved = (rounded > 0) | (near.double() != x.double())
    lower = torch.where(moved, torch.nextafter(lower, -infinity), lower)
    upper = torch.where(moved, torch.nextafter(upper, infinity), upper)
    if domain is not None:
        # x itself lies in the domain, so clamping never empties the box.
        lower, upper = lower.clamp(min=domain[0]), upper.clamp(max=domain[1])
    centre = (lower + upper) / 2
    # Rounding of the centre and of this line: the radius must reach both corners.
    radius = torch.maximum(upper - centre, centre - lower)
    return Box(centre, torch.where(radius > 0, torch.nextafter(radius, infinity), radius))
