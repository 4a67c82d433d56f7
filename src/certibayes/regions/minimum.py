"""The smallest value of a linear function over a box, and over the ball that it may carry, and where it is."""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.regions.ball import Ball
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
    at_center, fall = value_and_fall(flat, box.ball, box.lower.double(), box.upper.double())
    return at_center - fall


def value_and_fall(flat: Tensor, ball: Ball, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return A c at the ball's center c, and how far A x can fall below it in ball and box, (B, S) each.

    Args:
        flat: A, (B, S, n), in float64.
        ball: (B, ...).
        lower: lower corner of the box, (B, ...), in float64.
        upper: upper corner of the box.
    """
    center = ball.center.flatten(1)[..., None]
    return torch.bmm(flat, center).squeeze(-1), ball.cost(flat.abs(), _room(flat, ball, lower, upper))


def lowest_point(coefficients: Tensor, box: Box) -> Tensor:
    """Return where A x is smallest over box and ball, up to rounding: a point of the box, (B, ...).

    Args:
        coefficients: A, (B, ...).
        box: (B, ...).
    """
    if box.ball is None:
        return box.center - box.radius * coefficients.sign()
    flat = coefficients.flatten(1)[:, None].double()
    lower, upper = box.lower.double(), box.upper.double()
    moves = box.ball.moves(flat.abs(), _room(flat, box.ball, lower, upper))
    point = (box.ball.center.flatten(1)[:, None] - flat.sign() * moves).view_as(box.center)
    return torch.maximum(torch.minimum(point, upper), lower).to(box.center.dtype)


def _room(flat: Tensor, ball: Ball, lower: Tensor, upper: Tensor) -> Tensor:
    """How far the box lets each coordinate move from the ball's center to where A x falls, (B, S, n)."""
    center, below, above = (side.flatten(1)[:, None] for side in (ball.center, lower, upper))
    return torch.where(flat > 0, center - below, above - center).clamp(min=0.0)
