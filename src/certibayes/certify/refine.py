"""Splitting for a whole predictor: every network's margins on the points that are still open, within a time limit."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Box, by_name, layer_boxes
from certibayes.certify.branch import Search
from certibayes.networks import direct_sums
from certibayes.networks.samples import pick
from certibayes.prediction import Predictor

WANTED = (0.05, 1.0, 4.0)
"""Margins asked for, one pass after the other: little from every network first, then more from those that can give
more, to make up for those that cannot."""

ROUNDS = 16
"""Splits of every open leaf in a pass, at most."""

MANY = 4096
"""Leaves of one network at which a pass ends."""


class Refined(NamedTuple):
    """What splitting found.

    Attributes:
        margins: lower bounds, float64 (N, P).
        inputs: for each problem, the inputs at which networks came closest to the rival, (N, P, *input_shape).
    """

    margins: Tensor
    inputs: Tensor


@torch.no_grad()
def refine(
    predictor: Predictor,
    box: Box,
    labels: Tensor,
    rivals: Tensor,
    known: Tensor,
    rounding: str,
    wanted: float,
    until: float,
) -> Refined:
    """Bound margins z_y - z_c of every network more tightly by splitting.

    Args:
        predictor: N networks.
        box: inputs of P problems, (P, ...).
        labels: y, (P,).
        rivals: c, (P,).
        known: lower bounds that are known, float64 (N, P).
        rounding: ``"outward"`` or ``"ideal"``.
        wanted: margin at which a network needs no further work.
        until: when to stop, as ``time.monotonic`` tells it. What was not reached keeps its known bounds.
    """
    graph, mode = predictor.graph, by_name(rounding, predictor.dtype)
    every = torch.arange(graph.classes, device=labels.device)
    sides = (every == labels[:, None]).to(predictor.dtype) - (every == rivals[:, None]).to(predictor.dtype)
    specification = sides.view(-1, 1, *graph.output_shape)
    margins = known.clone()
    inputs = box.centre.expand(predictor.size, *box.centre.shape).clone()
    for index in range(predictor.size):
        left = until - time.monotonic()
        if left <= 0:
            break
        # An equal share of what is left for each network that is left.
        share = time.monotonic() + left / (predictor.size - index)
        todo = (margins[index] < wanted).nonzero().squeeze(-1)
        if len(todo) == 0:
            continue
        params = pick(predictor.samples, index)
        some = box.take(todo)
        with direct_sums():
            boxes = layer_boxes(graph, params, some, mode)
            search = Search(graph, params, boxes, specification[todo], mode, wanted, margins[index, todo])
            for _ in range(ROUNDS):
                if search.is_done or len(search.leaves.problem) > MANY or time.monotonic() > share:
                    break
                search.advance(lambda share=share: time.monotonic() > share)  # type: ignore[misc]
        margins[index, todo] = search.bounds
        inputs[index, todo] = search.worst_inputs
    return Refined(margins, inputs)
