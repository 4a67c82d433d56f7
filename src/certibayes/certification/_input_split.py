"""Splitting the input: where there are few, boxes are halved until every part is proved.

What holds on every part of a box holds on the box, and on each part all networks see the same inputs: unlike splitting
on activations, which bounds each network by itself, this decides the mean over networks itself, given time. The number
of parts grows exponentially with the number of inputs that matter, so it is for few.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from certibayes.bounds import Box, Rounding
from certibayes.bounds.intermediate import box_between_ends

FEW = 16
"""Inputs up to which splitting them is tried."""

AT_ONCE = 512
"""Parts that are bounded at once."""


def halves(box: Box, side: Tensor, rounding: Rounding) -> Box:
    """Cut every box (Q, ...) in two along one of its sides, (Q,), and return all left parts, then all right ones."""
    low, high = box.ends() if rounding.outward else (box.lower.double(), box.upper.double())
    shape, rows = box.center.shape, torch.arange(len(side), device=side.device)
    low, high = low.flatten(1), high.flatten(1)
    # Both parts hold the cut itself, so that no input lies between them.
    cut = (low[rows, side] + high[rows, side]) / 2
    left, right = high.clone(), low.clone()
    left[rows, side], right[rows, side] = cut, cut
    lower, upper = torch.cat([low, right]), torch.cat([left, high])
    made = box_between_ends(lower, upper, box.center.dtype, rounding)
    return Box(made.center.view(-1, *shape[1:]), made.radius.view(-1, *shape[1:]))


def proved_in_parts(
    box: Box,
    rounding: Rounding,
    is_open: Callable[[Box, Tensor], Tensor],
    is_lost: Callable[[Tensor], Tensor],
    ended: Callable[[], bool],
) -> Tensor:
    """Tell of which boxes (P, ...) every part was proved in time, bool (P,).

    Args:
        box: what to prove something of; without a ball, whose parts might be empty.
        rounding: of the program that runs.
        is_open: tells of parts (Q, ...), and of which box each is a part, (Q,), where nothing is proved yet.
        is_lost: tells of which boxes, (Q,), nothing can be proved any more, because there is a counterexample.
        ended: tells when to stop.
    """
    owner = torch.arange(len(box.center), device=box.center.device)
    parts = box
    while len(owner) > 0 and not ended():
        order = torch.arange(len(owner), device=owner.device)
        some, whose = parts.take(order[:AT_ONCE]), owner[:AT_ONCE]
        chosen = (is_open(some, whose) & ~is_lost(whose)).nonzero().squeeze(-1)
        some, whose = some.take(chosen), whose[chosen]
        grown, rest = halves(some, some.radius.flatten(1).argmax(-1), rounding), parts.take(order[AT_ONCE:])
        # The oldest first: all boxes get on alike.
        owner = torch.cat([owner[AT_ONCE:], whose.repeat(2)])
        parts = Box(torch.cat([rest.center, grown.center]), torch.cat([rest.radius, grown.radius]))
    unfinished = torch.zeros(len(box.center), dtype=torch.bool, device=owner.device)
    unfinished[owner] = True
    return ~unfinished & ~is_lost(torch.arange(len(box.center), device=owner.device))
