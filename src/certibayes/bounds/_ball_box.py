"""Bounds over a box intersected with a ball: linear functions, affine layers, and layers that pass the ball on.

Everything about balls is computed in float64. Where the program runs in float32, what it loses is far more; where it
runs in float64, the widening of ``bounds.rounding`` covers program and bound alike, as it does for boxes. Costs are
sums of positive terms, so their own rounding is a relative (n + 16) 2⁻⁵⁰ at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from certibayes.bounds.registry import IntervalRule
from certibayes.bounds.rounding import Rounding
from certibayes.bounds.sums import COEFFICIENT_UNITS
from certibayes.networks.operations import Weights
from certibayes.regions import Ball, Box
from certibayes.regions.ball import NARROW, UNDERFLOW
from certibayes.regions.minimum import lowest_value, value_and_fall

Apply = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(x, weight, bias) -> what an affine layer makes of them."""

CLOSED = 2.0**-20
"""A coordinate with less room than this part of the radius is left to the box."""

MOST = 64
"""Weights of a row that may be left to the box in l1, at most."""


def _inflated(cost: Tensor, terms: int, rounding: Rounding) -> Tensor:
    return cost * (1 + (terms + 16) * 2.0**-50) if rounding.outward else cost


def _rooms(box: Box, ball: Ball, rounding: Rounding) -> tuple[Tensor, Tensor]:
    """How far each coordinate can fall below and rise above the ball's center inside the box, (B, ...) each."""
    lower, upper = box.ends() if rounding.outward else (box.lower.double(), box.upper.double())
    return (ball.center - lower).clamp(min=0.0), (upper - ball.center).clamp(min=0.0)


def _magnitude(box: Box, ball: Ball) -> Tensor:
    """Largest magnitude of a coordinate, the ball's center included."""
    return torch.maximum(box.center.double().abs() + box.radius.double(), ball.center.abs())


def concretize_over_ball_box(coefficients: Tensor, box: Box, rounding: Rounding) -> Tensor:
    """Bound A x from below over the intersection of a box and the ball that it carries, (B, S), in float64.

    Args:
        coefficients: A, (B, S, ...); in outward rounding they may be ``COEFFICIENT_UNITS`` off.
        box: (B, ...), with a ball.
        rounding: of the program that runs, or ideal.
    """
    if not rounding.outward:
        return lowest_value(coefficients, box)
    ball = box.ball
    assert ball is not None
    flat = coefficients.flatten(2).double()
    terms = flat.shape[-1]
    at_center, fall = value_and_fall(flat, ball, *box.ends())
    cost = _inflated(fall, terms, rounding)
    value = at_center - cost
    # The coefficients' units, what rounding moved the points by, and the rounding of the sum and of this expression.
    off = _magnitude(box, ball) * (2 * COEFFICIENT_UNITS * rounding.unit + (terms + 16) * 2.0**-50) + ball.slack
    error = torch.bmm(flat.abs(), off.flatten(1)[..., None]).squeeze(-1)
    return value - _inflated(error, terms, rounding) - (value.abs() + cost) * 2.0**-50


def intersect_affine(
    output: Box, box: Box, apply: Apply, weight: Tensor, bias: Tensor | None, scale: Tensor, rounding: Rounding
) -> Box:
    """Intersect the box of an affine layer's output with what the ball at its input allows.

    Args:
        output: from the box at the input alone, in the same rounding.
        box: at the input, with a ball.
        apply: the layer.
        weight: its weight, one row for each output channel.
        bias: its bias.
        scale: the ball's scale for each entry of the weight, at least; broadcasting against it.
        rounding: of the program that runs, or ideal.
    """
    ball = box.ball
    assert ball is not None
    weight, bias = weight.double(), None if bias is None else bias.double()
    terms = weight[0].numel()
    center = apply(ball.center, weight, bias)
    fall, rise = (_falls_l2 if ball.norm == "l2" else _falls_l1)(box, ball, apply, weight, scale, rounding)
    lower, upper = center - _inflated(fall, terms, rounding), center + _inflated(rise, terms, rounding)
    before = output.ends() if rounding.outward else (output.lower.double(), output.upper.double())
    if rounding.outward:
        # What the program loses, and what rounding moved the points by; see ``bounds.rounding``.
        widening = rounding.widening(terms)
        error = None if bias is None else bias.abs() * widening
        noise = apply(_magnitude(box, ball) * widening + ball.slack, rounding.magnitude(weight), error)
        noise = _inflated(noise, terms, rounding) + rounding.underflow
        lower, upper = lower - noise, upper + noise
    lower, upper = torch.maximum(lower, before[0]), torch.minimum(upper, before[1])
    made = rounding.box_between(lower, upper)
    # In exact arithmetic two ends that are one may cross by a rounding error.
    radius = made.radius if rounding.outward else made.radius.clamp(min=0.0)
    return Box(made.center.to(output.center.dtype), radius.to(output.center.dtype))


def _falls_l2(
    box: Box, ball: Ball, apply: Apply, weight: Tensor, scale: Tensor, rounding: Rounding
) -> tuple[Tensor, Tensor]:
    """How far each output can fall and rise: ρ sqrt(Σ w² s²) over the coordinates that have room on that side.

    The others are left to the box, where by Cauchy's inequality they change little: Σ |w_i| d_i <= ||w|| ||d||.
    """
    squares = ball.scale.square()
    rising, falling = weight.clamp(min=0.0).square(), weight.clamp(max=0.0).square()
    rooms = _rooms(box, ball, rounding)
    limit = (CLOSED * ball.radius).view(-1, *[1] * (box.center.dim() - 1))
    below, above = (torch.where(room > limit, squares, 0.0) for room in rooms)
    closed = [torch.where(room > limit, 0.0, room) for room in rooms]
    left = (torch.maximum(*closed).flatten(1).square().sum(-1) + UNDERFLOW).sqrt()
    rows = (apply(torch.ones_like(ball.scale), weight.square(), None) + UNDERFLOW).sqrt()

    def cost(through_rising: Tensor, through_falling: Tensor) -> Tensor:
        total = apply(through_rising, rising, None) + apply(through_falling, falling, None)
        shape = (-1, *[1] * (total.dim() - 1))
        return ball.radius.view(shape) * (total + UNDERFLOW).sqrt() + left.view(shape) * rows

    return cost(below, above), cost(above, below)


def _falls_l1(
    box: Box, ball: Ball, apply: Apply, weight: Tensor, scale: Tensor, rounding: Rounding
) -> tuple[Tensor, Tensor]:
    """How far each output can fall and rise: the ball bounds weights up to a level θ, the box what is above.

    Any level of a row is sound. This one is best where all coordinates have the mean room: as many weights are above it
    as the budget can then fill.
    """
    below, above = _rooms(box, ball, rounding)
    magnitudes = (weight.abs() * scale).flatten(1)
    room = ((below + above) / (2 * ball.scale)).mean()
    filled = (ball.radius.mean() / room.clamp(min=UNDERFLOW) - 2.0**-10).ceil() - 1
    most = min(MOST, magnitudes.shape[1])
    # Any level is sound, also where one point has overflowed and there is no mean.
    last = filled.nan_to_num(nan=0.0).clamp(0, most - 1).long().view(1, 1).expand(len(magnitudes), 1)
    level = magnitudes.topk(most, dim=1).values.gather(1, last)
    over = (magnitudes - level).clamp(min=0.0).view_as(weight) / scale
    rising, falling = torch.where(weight > 0, over, 0.0), torch.where(weight < 0, over, 0.0)
    rows = apply(torch.zeros_like(ball.scale), weight, level.squeeze(1))

    def cost(through_rising: Tensor, through_falling: Tensor) -> Tensor:
        on_box = apply(through_rising, rising, None) + apply(through_falling, falling, None)
        return on_box + ball.radius.view(-1, *[1] * (on_box.dim() - 1)) * rows

    return cost(below, above), cost(above, below)


def carrying(rule: IntervalRule) -> IntervalRule:
    """Let the rule of an operation y = a x + d, with a number a for each coordinate, pass the ball on.

    Its center goes the way of x, its scale is stretched by |a|, and what the program loses is added to its slack. Where
    the output is broadcast to a larger shape the ball is dropped.
    """

    def interval(operation: Any, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
        output, (box, *_) = rule(operation, weights, boxes, rounding), boxes
        if box.ball is None or output.center.shape != box.center.shape:
            return output
        ball, exact = box.ball, {role: weight.double() for role, weight in weights.items()}
        ones = torch.ones_like(ball.scale)
        pull: Any = torch.func.vjp(lambda x: operation.evaluate(exact, x), torch.zeros_like(ones))[1]
        factor = pull(ones)[0].abs() * (1 + 2.0**-40)
        slack = ball.slack * factor
        if rounding.outward:
            point = _magnitude(box, ball).to(box.center.dtype)
            lost = rule(operation, weights, (Box(point, torch.zeros_like(point)),), rounding).radius
            slack = slack + lost.double()
        center, scale = operation.evaluate(exact, ball.center), (ball.scale * factor).clamp(min=NARROW)
        return output._replace(ball=Ball(center, ball.radius, ball.norm, scale, slack))

    return interval


def reshaped(ball: Ball, reshape: Callable[[Tensor], Tensor]) -> Ball:
    """Give every tensor of a ball another shape."""
    return replace(ball, center=reshape(ball.center), scale=reshape(ball.scale), slack=reshape(ball.slack))
