"""The smallest value of a separable concave function over the distributions between bounds.

    min  Σ_c f_c(p_c)      over      {p : l <= p <= u, Σ p = 1},        every f_c concave.

It is reached at a vertex. A box cut by one hyperplane has at most one coordinate of a vertex off its ends, so that few
classes allow all of them to be tried; for many there is a bound by chords.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MOST_CLASSES_ENUMERATED = 10
"""Up to this number of classes the minimum is found exactly, among at most C 2^(C-1) vertices."""

AT_ONCE = 2**21
"""Numbers in which vertices of all points are tried at a time."""

STEEPEST = (-4.0, 745.0)
"""Slopes of chords are cut off here, where a quotient of tiny numbers might be anything. Any slope gives a bound."""

Terms = Callable[[Tensor, Tensor], Tensor]
"""f: probabilities (R, C) and the points that they are of, (R,), to terms (R, C), each concave in its probability."""


def lowest_sum(terms: Terms, lower: Tensor, upper: Tensor) -> Tensor:
    """Bound Σ_c f_c(p_c) from below over {p : lower <= p <= upper, Σ p = 1}; (B, C) to (B,).

    For every multiplier ν of Σ p = 1, weak duality gives a bound; f_c is concave, so over an interval it is lowest at
    an end:

        Σ_c f_c(p_c) = Σ_c (f_c(p_c) - ν p_c) + ν >= Σ_c min( f_c(l_c) - ν l_c, f_c(u_c) - ν u_c ) + ν.

    The right side is concave in ν and linear between the slopes (f_c(u_c) - f_c(l_c)) / (u_c - l_c), so the best of
    them is the best of all. This is the sum with each f_c replaced by its chord, and a lowest point of that has at most
    one coordinate off its ends: only that one's distance between f_c and chord is lost. For few classes nothing is, as
    all vertices of the polytope are tried.
    """
    every = torch.arange(len(lower), device=lower.device)
    at_lower, at_upper = (terms(end, every) for end in (lower, upper))
    if lower.shape[-1] <= MOST_CLASSES_ENUMERATED:
        return _at_vertices(terms, lower, upper, at_lower, at_upper)
    slopes = ((at_upper - at_lower) / (upper - lower).clamp(min=1e-300)).clamp(*STEEPEST)[:, None, :]
    ends = [value[..., None] - slopes * end[..., None] for value, end in ((at_lower, lower), (at_upper, upper))]
    return (torch.minimum(*ends).sum(1) + slopes.squeeze(1)).amax(-1)


def _at_vertices(terms: Terms, lower: Tensor, upper: Tensor, at_lower: Tensor, at_upper: Tensor) -> Tensor:
    """Return the lowest sum over all vertices, which is the lowest of all, since the sum is concave.

    For each set S of classes at their upper ends, the others being at their lower ends, and each k outside S,
    p_k = l_k + 1 - Σ_S u - Σ_{not S} l is a vertex if it is at most u_k.
    """
    classes = lower.shape[-1]
    sets = (torch.arange(2**classes, device=lower.device)[:, None] >> torch.arange(classes, device=lower.device)) & 1
    # Vertices that rounding puts a hair outside are kept: one lost could be the lowest.
    room, tolerance = upper - lower, 2.0**-45
    widest = room.amax(-1, keepdim=True) if len(lower) else room[:, :1]
    best = torch.full_like(lower[:, 0], torch.inf)
    for part in sets.to(lower).split(max(1, AT_ONCE // max(1, lower.numel()))):
        left = 1 - lower.sum(-1, keepdim=True) - room @ part.T
        fixed = at_lower.sum(-1, keepdim=True) + (at_upper - at_lower) @ part.T
        # Most sets leave less than nothing, or more than any class can take.
        point, chosen = ((left >= -tolerance) & (left <= widest + tolerance)).nonzero(as_tuple=True)
        left, fixed = left[point, chosen, None], fixed[point, chosen, None]
        low, high = lower[point], upper[point]
        between = torch.maximum(torch.minimum(low + left, high), low)
        possible = (left <= high - low + tolerance) & (part[chosen] == 0)
        values = (fixed - at_lower[point] + terms(between, point)).masked_fill_(~possible, torch.inf).amin(-1)
        # With no coordinate off its ends the set itself is the vertex.
        whole = fixed.squeeze(-1).masked_fill(left.squeeze(-1).abs() > tolerance, torch.inf)
        best = best.scatter_reduce(0, point, torch.minimum(values, whole), "amin")
    return best
