"""Prospects: what the first networks tell about what costly bounds may achieve.

The networks of a predictor are samples of one posterior, and what better bounds gain on one of them they gain, much
the same, on the others. Where that is far from enough, the effort is saved. Proofs do not rest on it: a point that is
given up wrongly is not certified, and that is all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PROBES = 2
"""Networks that are looked at before a point may be given up."""

OPTIMISM = 3.0
"""How many times as much as on the best network so far might be gained on others."""

ALIKE = 4
"""Networks that are looked at before those that are left are taken to be like them."""

DEVIATIONS = 5.0
"""How many standard deviations of what those seen tell the mean of those that are left might be above theirs."""

LEAST_DEVIATION = 0.05
"""Of the values of networks, as far as few of them can tell: those seen may be copies of one."""


def is_hardest(value: Tensor, point: Tensor) -> Tensor:
    """Tell which pair of point and rival is the one of its point that is furthest from being proved.

    Args:
        value: how far it is, more is better, (P,).
        point: whose pair it is, (P,).

    Returns:
        bool (P,); exactly one pair of each point.
    """
    # Ordered by value, and then, stably, by point: the first of each point is its hardest.
    order = value.argsort(stable=True)
    order = order[point[order].argsort(stable=True)]
    ordered = point[order]
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return torch.zeros_like(is_first).scatter(0, order, is_first)


def is_out_of_reach(before: Tensor, values: Tensor, is_seen: Tensor) -> Tensor:
    """Tell which means over networks stay below 0 even if those that are left gain far more than those seen so far.

    Args:
        before: lower bounds on softmax_y - softmax_c of every network before the costly bounds, (N, P).
        values: what they are by now.
        is_seen: which networks had the costly bounds already, bool (N, P).

    Returns:
        bool (P,); never where fewer than ``PROBES`` networks were seen, nor where none is left.
    """
    left = (~is_seen).sum(0)
    gained = torch.where(is_seen, values - before, torch.zeros_like(values)).amax(0)
    best = values.sum(0) + OPTIMISM * left * gained
    return (best < 0) & (left > 0) & (is_seen.sum(0) >= PROBES)


def from_all_over(networks: int) -> list[int]:
    """Return the numbers of all networks in an order in which the first few are far from each other.

    Copies of a network that counts more than others stand side by side, as do samples of one posterior among several.
    """
    digits = max(1, (networks - 1).bit_length())
    return sorted(range(networks), key=lambda number: f"{number:0{digits}b}"[::-1])


def in_turns(networks: list[int]) -> list[list[int]]:
    """Divide networks into few turns for a GPU, where some take less than they would one by one.

    First those that tell who is hopeless, then half of the others, with which there are enough to prove a point whose
    remaining networks say nothing, and then the rest.
    """
    half = ALIKE + (len(networks) - ALIKE + 1) // 2
    return [turn for turn in (networks[:ALIKE], networks[ALIKE:half], networks[half:]) if turn]


def is_hopeless(values: Tensor, networks: int) -> Tensor:
    """Tell which means over networks are below 0 unless those that are left are quite unlike those seen so far.

    The mean of K of them differs from that of the L that are left by a standard deviation of s sqrt(1 / K + 1 / L).
    Unlike ``is_out_of_reach`` this knows nothing of those that are left, whose cheap bounds may be vacuous.

    Args:
        values: lower bounds on softmax_y - softmax_c of the networks seen so far, (K, P).
        networks: how many there are in all.

    Returns:
        bool (P,); never where fewer than ``ALIKE`` networks were seen, nor where none is left.
    """
    seen, left = len(values), networks - len(values)
    if seen < ALIKE or left < 1:
        return torch.zeros_like(values[0], dtype=torch.bool)
    mean = values.mean(0)
    # Not by ``std``, which warns where there are no points.
    deviation = ((values - mean).square().sum(0) / (seen - 1)).sqrt().clamp(min=LEAST_DEVIATION)
    others = mean + DEVIATIONS * deviation * math.sqrt(1 / seen + 1 / left)
    return seen * mean + left * others < 0
