"""Balls of the l2 and l1 norms in the independent checker: beside an interval, and never instead of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from certibayes.checker._arithmetic import Array, Interval, Program, Weights
from certibayes.networks import Node
from certibayes.networks import operations as ops

Rule = Callable[..., Interval]
"""(program, node, weights, interval of the input) -> interval of the output."""


class Round(NamedTuple):
    """Points c + s u + v with ||u||_p <= ρ and |v| <= e, beside the box that holds them too.

    Attributes:
        center: c, (B, ...).
        radius: ρ, (B,).
        power: p, 1 or 2.
        scale: s, (1, ...).
        slack: e, (B, ...): what rounding may have done.
    """

    center: Array
    radius: Array
    power: int
    scale: Array
    slack: Array


def within_ball(
    rule: Rule, program: Program, node: Node, weights: Weights, x: Interval, ball: Round, output: Interval
) -> Interval:
    """Cut an affine layer's interval to W c + b ± (ρ ||W s||_q + |W| e), where 1/p + 1/q = 1 (Hölder)."""
    weight, linear = weights["weight"], isinstance(node.operation, ops.Linear)
    scales = ball.scale.reshape(-1, ball.scale.shape[-1]).max(0) if linear else ball.scale.max((0, 2, 3))
    groups = 1 if linear else node.operation.groups  # type: ignore[attr-defined]
    per_row = np.repeat(scales.reshape(groups, -1), len(weight) // groups, 0)
    rows = np.abs(weight) * per_row.reshape(*per_row.shape, *(1,) * (weight.ndim - 2))
    dual = np.linalg.norm(rows.reshape(len(rows), -1), 2 if ball.power == 2 else np.inf, axis=1) + 1e-150
    dual = dual if linear else dual.reshape(-1, 1, 1)
    # The layer's own rule accounts for rounding, of the sum with c as of one with any other point that is no larger.
    reach = np.maximum(x.magnitude, np.abs(ball.center))
    middle = rule(program, node, weights, Interval(ball.center - ball.slack, ball.center + ball.slack))
    magnitudes = {role: np.abs(value) for role, value in weights.items()}
    point = rule(program, node, magnitudes, Interval(reach, reach))
    extent = ball.radius.reshape(-1, *(1,) * (output.lower.ndim - 1)) * dual * (1 + 2.0**-30)
    extent = extent + (point.upper - point.lower)
    return Interval(np.maximum(output.lower, middle.lower - extent), np.minimum(output.upper, middle.upper + extent))


def moved(rule: Rule, program: Program, node: Node, weights: Weights, x: Interval, ball: Round) -> Round:
    """Carry a ball through a reshaping or a normalization."""
    if isinstance(node.operation, ops.Reshape):
        center, scale, slack = (
            part.reshape(len(part), *node.operation.shape) for part in (ball.center, ball.scale, ball.slack)
        )
        return Round(center, ball.radius, ball.power, scale, slack)
    mean, std = (weights[role].reshape(-1, *(1,) * (x.lower.ndim - 2)) for role in ("mean", "std"))
    reach = np.maximum(x.magnitude, np.abs(ball.center))
    ends = (rule(program, node, weights, Interval(end, end)) for end in (reach, -reach))
    lost = np.maximum(*(end.upper - end.lower for end in ends))
    factor = (1 + 2.0**-40) / np.abs(std)
    return Round((ball.center - mean) / std, ball.radius, ball.power, ball.scale * factor, ball.slack * factor + lost)
