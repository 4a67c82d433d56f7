r"""The rule ``joint``: the attacker has to pick one input for all networks.

The other rules let every network see its own worst input. Here each network's margin is bounded by a linear function of
the input, m_i(x) >= A_i x + d_i (CROWN, with whatever relaxation is best), and

    softmax_y - softmax_c >= h_i(m_i),    h_i(m) = (1 - exp(-m)) / (1 + exp(-m) + T_i),

where T_i is what the other classes add: at most T⁺ where m >= 0, at least T⁻ where m < 0. h_i grows with m and lies
above a linear function k m + e on the margins that are possible, so for any slopes k_i >= 0

    mean_i (softmax_y - softmax_c)(x) >= (1/N) Σ k_i (A_i x + d_i) + (1/N) Σ e_i(k_i)    for all x at once,

and the smallest value of the right side over the box proves. With k = 0 it is the rule ``elided``; the right side is
concave in k, and gradient ascent from there finds what is to be gained.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Box
from certibayes.bounds.ascent import Variables, climb
from certibayes.bounds.linear import LinearFunction, concretize
from certibayes.bounds.sums import dot
from certibayes.certification._softmax import relative_error

STEPS = 60

RATE = 0.05
"""Of ascent; the slopes of h are at most 1/2 for two classes, and less for more."""


class Others(NamedTuple):
    """Bounds on what the other classes add to the denominator, float64 (N, P): T⁺ from above, T⁻ from below."""

    upper: Tensor
    lower: Tensor


def height(margin: Tensor, others: Others) -> Tensor:
    """h, float64; it is continuous and grows with the margin."""
    ratio = torch.exp(-margin.abs())
    # Where m < 0 both sides of the fraction are multiplied by exp(m).
    rest = torch.where(margin >= 0, others.upper, others.lower * ratio)
    return margin.sign() * (1 - ratio) / (1 + ratio + rest)


def offset_of(slope: Tensor, low: Tensor, high: Tensor, others: Others) -> Tensor:
    """e: the largest number with k m + e <= h(m) for all m from ``low`` to ``high``.

    h is concave for m >= 0. Below 0 it is (2 + T) / (1 + T + t) - 1 with t = exp(-m), whose slope is k where
    k t² + (2 k (1 + T) - 2 - T) t + k (1 + T)² = 0; at the larger root h - k m has its minimum. So it is smallest
    there, at an end, or at 0.
    """
    one = 1 + others.lower
    middle = (1 + one) / 2 - slope * one
    root = (middle.square() - (slope * one).square()).clamp(min=0).sqrt()
    # Where the minimum lies does not matter to the slope of its value, and a root has no slope at 0.
    steep = -torch.log(((middle + root) / slope.clamp(min=1e-30)).clamp(min=1e-30)).detach()
    zero = torch.zeros_like(low)
    places = [low, high, torch.clamp(zero, low, high), torch.clamp(torch.minimum(steep, zero), low, high)]
    return torch.stack([height(place, others) - slope * place for place in places]).amin(0)


@torch.no_grad()
def joint_values(functions: LinearFunction, margins: Tensor, others: Others, box: Box, steps: int = STEPS) -> Tensor:
    """Bound the mean of softmax_y - softmax_c over all networks from below, for each box, float64 (P,).

    Args:
        functions: linear lower bounds on the margins of N networks over P boxes, m >= A x + d; A of shape (N, P,
            *input_shape) and d (N, P).
        margins: best known lower bounds on them, float64 (N, P).
        others: what the other classes add.
        box: (P, *input_shape).
        steps: of ascent.
    """
    exact, coefficients = _double(box), functions.coefficients.double()
    # A function may fall below what is known of the margin, but h of what is known holds all the same.
    high = torch.maximum(margins, functions.offset - concretize(-coefficients.transpose(0, 1), exact).T)

    def weighted_sum(slopes: Tensor, each: Tensor) -> Tensor:
        return torch.einsum("np,np...->p...", slopes, each)[:, None]

    def total(slopes: Tensor) -> Tensor:
        constants = slopes * functions.offset + offset_of(slopes, margins, high, others)
        return concretize(weighted_sum(slopes, coefficients), exact)[:, 0] + constants.sum(0)

    start = Variables({"slopes": torch.zeros_like(margins)}, RATE, top=None)
    (found,) = climb(lambda groups: total(groups[0]["slopes"]).sum(), [start], steps)
    slopes = found["slopes"]
    # What float64 loses: in h, whose magnitude is at most 1, in the linear functions below it, and in the sums over
    # networks and inputs.
    lost = relative_error(margins[..., None], high[..., None]).squeeze(-1) + len(margins) * 2.0**-50
    lost = lost + slopes * (functions.offset.abs() + torch.maximum(margins.abs(), high.abs())) * 2.0**-40
    # Coefficients of networks that disagree cancel, and what each sum lost does not.
    off = _off(exact)
    return (total(slopes) - lost.sum(0) - dot(weighted_sum(slopes, coefficients.abs()), off)[:, 0]) / len(margins)


def offset_beside(function: LinearFunction, coefficients: Tensor, box: Box) -> Tensor:
    """Return d' with A x + d >= A' x + d' for all x of a box, for A' of one's own, float64 (P,).

    Args:
        function: A of shape (P, *input_shape) and d (P,).
        coefficients: A', (P, *input_shape).
        box: (P, *input_shape).
    """
    exact, difference = _double(box), (function.coefficients.double() - coefficients.double())[:, None]
    lost = dot(difference.abs(), _off(exact))[:, 0] + function.offset.abs() * 2.0**-40
    return function.offset + concretize(difference, exact)[:, 0] - lost


def _double(box: Box) -> Box:
    return Box(box.center.double(), box.radius.double(), box.ball)


def _off(exact: Box) -> Tensor:
    """What a float64 sum over the inputs of a box loses by each of them, as a distance.

    With it comes how far rounding may have moved an input out of its ball, which ``concretize`` leaves out in exact
    arithmetic.
    """
    off = (exact.center.abs() + exact.radius) * 2.0**-38
    return off if exact.ball is None else off + exact.ball.slack * (1 + 2.0**-38)
