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
        centre, radius = (side.double().flatten(1)[..., None] for side in (box.centre, box.radius))
        return (torch.bmm(flat, centre) - torch.bmm(flat.abs(), radius)).squeeze(-1)
    centre = box.ball.centre.flatten(1)
    return torch.bmm(flat, centre[..., None]).squeeze(-1) - box.ball.cost(flat.abs(), _room(flat, box, centre[:, None]))


def lowest_point(coefficients: Tensor, box: Box) -> Tensor:
    """Return where A x is smallest over box and ball, up to rounding: a point of the box, (B, ...).

    Args:
        coefficients: A, (B, ...).
        box: (B, ...).
    """
    if box.ball is None:
        return box.centre - box.radius * coefficients.sign()
    flat = coefficients.flatten(1)[:, None].double()
    below, above = (side.double().flatten(1)[:, None] for side in (box.lower, box.upper))
    centre = box.ball.centre.flatten(1)[:, None]
    point = centre - flat.sign() * box.ball.moves(flat.abs(), _room(flat, box, centre))
    inside = torch.maximum(torch.minimum(point, above), below)
    return inside.view_as(box.centre).to(box.centre.dtype)


def _room(flat: Tensor, box: Box, centre: Tensor) -> Tensor:
    """How far the box lets each coordinate move from the ball's centre to where A x falls, (B, S, n)."""
    below, above = (side.double().flatten(1)[:, None] for side in (box.lower, box.upper))
    return torch.where(flat > 0, centre - below, above - centre).clamp(min=0.0)
