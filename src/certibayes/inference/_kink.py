"""The curvature of a likelihood that has kinks at w = 0.

Interval bounds widen with |w|, so the mean loss of a robust likelihood has a kink in every weight: near 0 it is
c |w|, with c its derivative with respect to |w|. Squared gradients do not see that. They give a weight the standard
deviation 1 / (sqrt(N) c), where its posterior, a Laplace density, has 1.41 / (N c). Under q = N(m, s²)

    d²/dm² E_q[ c |w| ]  =  (2 c / s) φ(m / s),        φ the density of N(0, 1),

exact where the loss is linear in |w|. With the curvature h of everything else, N examples, prior precision δ and
temperature T the Gaussian nearest to the posterior has a standard deviation that solves

    s² (N h + δ) + 2 N c s φ(m / s) = T.

The left side increases with s, so that bisection finds the solution. (Putting the curvature at one s into the next s
need not converge: where m² / s² is 8 to 10 it goes to and fro.) At m = 0 and h = δ = 0 this is s = 1.2533 T / (N c).

Where bounds fold the last layer into class margins, its weights have their kinks at w_y = w_j: ``_pair_kinks``.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor

from certibayes.inference._pair_kinks import PRECISE_ROUNDS, ROUNDS, pair_deviations
from certibayes.inference.target import Target
from certibayes.likelihoods import PAIRS
from certibayes.networks import Params
from certibayes.support.fused import fused

DENSITY = 1 / math.sqrt(2 * math.pi)
"""φ(0)."""

HALVINGS, PRECISE = 10, 40
"""Halvings of the interval that holds log s: while training goes on, and at its end."""


State = TypeVar("State", bound=Any)


def refreshed(target: Target, state: State, curvature: Params, halvings: int = HALVINGS) -> State:
    """Return a state with the curvature of its kinks, ``kinks``, up to date; itself where it has none.

    Args:
        target: for N, T and the prior.
        state: with ``mean``, and with ``slopes``, empty where there are no kinks.
        curvature: that of everything else.
        halvings: see ``kink_curvatures``.
    """
    if not state.slopes:
        return state
    return state._replace(kinks=kink_curvatures(target, state.mean, curvature, state.slopes, halvings))


def kink_curvatures(
    target: Target, mean: Params, curvature: Params, slopes: Params, halvings: int = HALVINGS
) -> dict[str, Tensor]:
    """Return the curvature of every weight's kink, (2 c / s) φ(m / s), to be added to that of everything else.

    Where ``slopes`` have ``PAIRS``, the last layer's has those of its pairs of classes in it.

    Args:
        target: for N, T and the prior.
        mean: m, by parameter.
        curvature: h, of one example's loss.
        slopes: c, the derivative of the mean loss with respect to |w|; where it is negative, 0 is taken.
        halvings: of the interval in which s lies.
    """
    found = {
        name: _curvature(
            m, curvature[name], slopes[name], target.precision[name], target.data_size, target.temperature, halvings
        )[0]
        for name, m in mean.items()
    }
    if PAIRS in slopes:
        assert target.paired is not None
        known = {name: curvature[name] + kink for name, kink in found.items()}
        # A view of what was just made, which may hold the other layers too.
        own = target.named(found)[target.paired]
        own += _pair_curvature(target, target.paired, mean, known, slopes[PAIRS], halvings)
    return found


def _pair_curvature(
    target: Target, weight: str, mean: Params, curvature: Params, slopes: Tensor, halvings: int
) -> Tensor:
    """Return the curvature of the kinks of pairs of classes, for every weight of the last layer, (..., C, n)."""
    m, h, precision = (target.named(entries)[weight] for entries in (mean, curvature, target.precision))
    scale: Any = target.data_size / target.temperature
    by_pair = scale
    if isinstance(scale, Tensor):  # (M, 1): models with temperatures of their own
        scale, by_pair = scale[..., None], scale[..., None, None]
    rest = (h + precision / target.data_size) * scale
    rounds = PRECISE_ROUNDS if halvings == PRECISE else ROUNDS
    std = pair_deviations(m, rest, slopes * by_pair, halvings, rounds)
    return torch.relu(1 / std.square() - rest) / scale


@fused
def _curvature(
    m: Any, h: Any, slope: Any, precision: Any, data_size: int, temperature: Any, halvings: int
) -> tuple[Any, ...]:
    # In units of T: s² a + s k exp(-m² / 2 s²) = 1.
    a = (h * data_size + precision) / temperature
    slope = torch.relu(slope)
    k = slope * (2 * DENSITY * data_size) / temperature
    # The solution lies between 1 / (sqrt(a) + k) and 1 / sqrt(a): at the lower end both terms together are below 1.
    root = torch.sqrt(a)
    ratio = torch.sqrt((root + k) / root)
    s = 1.0 / (root * ratio)
    half = m * m * -0.5
    for _ in range(halvings):
        # As few passes over memory, and as little fresh memory, as there are. A choice between two tensors takes a CPU
        # ten times as long as arithmetic.
        ratio = ratio.sqrt_()
        value = (half / (s * s)).exp_().mul_(k).addcmul_(a, s).mul_(s)
        s = s.mul_(torch.lerp(ratio, torch.reciprocal(ratio), value.gt_(1.0)))
    return ((half / (s * s)).exp_().mul_(slope).div_(s).mul_(2 * DENSITY),)
