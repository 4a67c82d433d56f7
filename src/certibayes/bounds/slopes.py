"""Lower slopes without an ascent: zero, adaptive, and chosen unit by unit; whichever bounds more.

A ReLU on [l, u] with l < 0 < u lies above every line through 0 with a slope in [0, 1]. Slope 0 loses nothing where the
unit is off, slope 1 nothing where it is on; CROWN takes 1 where u > -l (Zhang et al., 2018). On networks that were
trained with interval bounds slope 0 mostly proves more, on all others the adaptive choice does, and neither always:
the larger of both bounds is taken, quantity by quantity. Its derivative says of each unit which slope it would rather
have, 1 where it is positive and 0 elsewhere. That is a third choice, for the price of about four backward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from certibayes.bounds.linear import LinearBounder
from certibayes.bounds.relaxation import Relaxation
from certibayes.bounds.rounding import IDEAL
from certibayes.networks.operations import LeakyReLU, ReLU
from certibayes.support.stacks import is_mapped

WORDS = ("zero", "adaptive")
"""Slopes that are known without a bound, as ``Relaxation`` takes them."""

CHOSEN = "chosen"
"""Stands for slopes that the derivative of the best bound so far chooses, unit by unit."""


def better_lower(bounder: LinearBounder, specification: Tensor, slopes: Sequence[str] = WORDS) -> Tensor:
    """Bound linear functions of the outputs from below, by the best of some slopes, (B, S), in float64.

    Args:
        bounder: of the network.
        specification: coefficients on the outputs, (B, S, *output_shape).
        slopes: some of ``WORDS``; with both of them ``CHOSEN`` may be the last.
    """
    found = [bounder.lower(specification, Relaxation(word)) for word in slopes if word != CHOSEN]
    if CHOSEN in slopes:
        start = better_start(bounder, *found)
        if start:
            found.append(bounder.lower(specification, Relaxation(_chosen(bounder, specification, start))))
    return torch.stack(found).amax(0)


def better_start(bounder: LinearBounder, zero: Tensor, adaptive: Tensor) -> dict[str, Tensor]:
    """Return the slopes of the better bound of two for each quantity, (B, S, *shape), by node.

    Args:
        bounder: of the network.
        zero: bounds with slopes 0, (B, S).
        adaptive: bounds with adaptive slopes, (B, S).
    """
    return {
        name: slopes[:, None] * (adaptive > zero).to(slopes).view(*zero.shape, *[1] * (slopes.dim() - 1))
        for name, slopes in adaptive_slopes(bounder).items()
    }


def adaptive_slopes(bounder: LinearBounder) -> dict[str, Tensor]:
    """Return the adaptive slopes of every kinked activation, 0 or 1, (B, *shape), by node."""
    kinked = [node for node in bounder.graph.nodes if isinstance(node.operation, (ReLU, LeakyReLU))]
    centers = {node.name: bounder.boxes[node.inputs[0]].center for node in kinked}
    # u > -l just where the center is positive.
    return {name: (center > 0).to(center) for name, center in centers.items()}


def _chosen(bounder: LinearBounder, specification: Tensor, start: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return 1 where the bound would rise with a unit's slope, else 0, (B, S, *shape), by node."""
    # Any slopes are sound, so they may be found in any arithmetic.
    ideal = replace(bounder, rounding=IDEAL, in_place=False)

    def total(slopes: dict[str, Tensor]) -> Tensor:
        return ideal.at_input(specification, Relaxation(slopes)).sum()

    gradients = torch.func.grad(total)(start) if is_mapped(next(iter(start.values()))) else _gradients(total, start)
    return {name: (value > 0).to(value) for name, value in gradients.items()}


def _gradients(total: Callable[[dict[str, Tensor]], Tensor], start: dict[str, Tensor]) -> dict[str, Tensor]:
    """Do what ``torch.func.grad`` does; what that imports when it is first used takes longer than many certificates."""
    with torch.enable_grad():
        slopes = {name: value.requires_grad_() for name, value in start.items()}
        gradients = torch.autograd.grad(total(slopes), list(slopes.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(slopes, gradients, strict=True))
