"""The curvature of a likelihood that has kinks where two classes have equal weights.

Where bounds fold the last layer into class margins, its weights enter by |w_y - w_j|: for one of its inputs the mean
loss is Σ c_kj |w_k - w_j| near w_k = w_j, a sum over pairs of classes. Under q the difference of two weights is normal,
with mean d and variance σ², and

    ∇² E_q[ c |w_k - w_j| ]  =  (2 c / σ) φ(d / σ) (e_k - e_j)(e_k - e_j)ᵀ,        φ the density of N(0, 1).

Among Gaussians without correlations, σ² = s_k² + s_j². With the curvature h of everything else, N examples, prior
precision δ and temperature T, the one that is nearest to the posterior solves, for all classes k at once,

    s_k² (N h_k + δ_k) + s_k² Σ_j (2 N c_kj / σ_kj) φ(d_kj / σ_kj) = T.

Given the others, the left side increases with s_k, and bisection finds s_k, as in ``inference._kink``. All classes do
so at once, and then go half of the way in log s. That converges. The divergence is a sum of functions of one log s_k
and of two, each convex, and a function of two at (x + x')/2, (y + y')/2 is at most the mean of its values at (x', y)
and (x, y'). So a round gains at least half of what all classes would gain, each by itself with the others at rest.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

DENSITY = 1 / math.sqrt(2 * math.pi)
"""φ(0)."""

ROUNDS, PRECISE_ROUNDS = 3, 60
"""Of all classes: while training goes on, and at its end.."""


def pair_deviations(mean: Tensor, rest: Tensor, slopes: Tensor, halvings: int, rounds: int) -> Tensor:
    """Return the standard deviations of all weights, (..., C, n), with the kinks of pairs of classes.

    Args:
        mean: of the weights, (..., C, n).
        rest: their precisions 1 / s² without these kinks, (..., C, n).
        slopes: N c / T, at least 0 and symmetric, (..., C, C, n).
        halvings: of the interval in which s lies.
        rounds: see above.
    """
    slopes = slopes * (2 * DENSITY)
    half = (mean.unsqueeze(-3) - mean.unsqueeze(-2)).square() * -0.5
    root = torch.sqrt(rest)
    # A weight's solution lies between 1 / (root + Σ slopes) and 1 / root, whatever the others are.
    reach = torch.sqrt((root + slopes.sum(-2)) / root)

    def solved(others: Tensor | None) -> Tensor:
        """Return log s, given the rivals' variances, (..., 1, C, n); None for rivals as wide as the weight itself."""
        log_std, step = -torch.log(root * reach), torch.log(reach)
        for _ in range(halvings):
            step = step / 2
            own = torch.exp(2 * log_std)
            variance = own.unsqueeze(-2) + (own.unsqueeze(-2) if others is None else others)
            value = own * (rest + (slopes * torch.exp(half / variance) * torch.rsqrt(variance)).sum(-2))
            log_std = torch.where(value > 1.0, log_std - step, log_std + step)
        return log_std

    log_std = solved(None)
    for _ in range(rounds):
        log_std = (log_std + solved(torch.exp(2 * log_std).unsqueeze(-3))) / 2
    return torch.exp(log_std)


def laplacians(weights: Tensor) -> Tensor:
    """Return Σ weight_kj (e_k - e_j)(e_k - e_j)ᵀ over pairs of classes, for every input (n, C, C).

    Args:
        weights: symmetric, (C, C, n); what stands on the diagonal does not count.
    """
    weights = weights.permute(2, 0, 1)
    return torch.diag_embed(weights.sum(-1)) - weights
