"""The smallest value of a linear function over a box, and over the ball that it may carry, and where it is."""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.regions.box import Box


def lowest_value(coefficients: Tensor, box: Box) -> Tensor:
    """Bound A x from below over box and ball, in float64, (B, S); up to rounding it is the smallest value.

    Args:
        coefficients: A, (B, S, ...).
        box: (B, ...).
    """
    flat = coefficients.flatten(2).double()
    if box.ball is None:
        center, radius = (side.double().flatten(1)[..., None] for side in (box.center, box.radius))
        return (torch.bmm(flat, center) - torch.bmm(flat.abs(), radius)).squeeze(-1)
    center = box.ball.center.flatten(1)
    return torch.bmm(flat, center[..., None]).squeeze(-1) - box.ball.cost(flat.abs(), _room(flat, box, center[:, None]))


def lowest_point(coefficients: Tensor, box: Box) -> Tensor:
    """Return where A x is smallest over box and ball, up to rounding: a point of the box, (B, ...).

    Args:
        coefficients: A, (B, ...).
        box: (B, ...).
    """
    if box.ball is None:
        return box.center - box.radius * coefficients.sign()
    flat = coefficients.flatten(1)[:, None].double()
    below, above = (side.double().flatten(1)[:, None] for side in (box.lower, box.upper))
    center = box.ball.center.flatten(1)[:, None]
    point = center - flat.sign() * box.ball.moves(flat.abs(), _room(flat, box, center))
    inside = torch.maximum(torch.minimum(point, above), below)
    return inside.view_as(box.center).to(box.center.dtype)


def _room(flat: Tensor, box: Box, center: Tensor) -> Tensor:
    """How far the box lets each coordinate move from the ball's center to where A x falls, (B, S, n)."""
    below, above = (side.double().flatten(1)[:, None] for side in (box.lower, box.upper))
    return torch.where(flat > 0, center - below, above - center).clamp(min=0.0)
