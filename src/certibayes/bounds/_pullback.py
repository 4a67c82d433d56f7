"""What the rules of the backward pass of training are made of.

A *pullback* takes derivatives of a scalar with respect to a layer's output to those with respect to its inputs and its
weights: a vector-Jacobian product. Derivatives with respect to a box have the form of a box.

In training, points go through the network together with boxes, since affine layers do the same to both: centers hold
the points first, (P + B, ...), and radii are those of the B boxes. Either number may be 0. See
``bounds.training``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from certibayes.bounds.rounding import Rounding
from certibayes.networks.operations import Weights
from certibayes.regions import Box


class Wanted(NamedTuple):
    """Which derivatives someone asks for.

    Attributes:
        inputs: whether those with respect to a layer's inputs.
        weights: those with respect to these of its weights, by role.
    """

    inputs: bool
    weights: frozenset[str]


MAGNITUDE = "|weight|"
"""The role under which a pullback also returns the derivative with respect to |W|, where radii go through the layer."""

Pullback = Callable[[Box], tuple[tuple[Box, ...], Weights]]
"""Derivatives with respect to the output -> with respect to each input, () if unwanted, and to the weights by role."""

TrainingRule = Callable[[Any, Weights, tuple[Box, ...], Rounding, Wanted], tuple[Box, Pullback]]
"""(operation, weights by role, points and boxes in, ideal or smoothed rounding, wanted) -> points and boxes out, and
the pullback."""


def points_and_centers(box: Box) -> tuple[Tensor, Tensor]:
    """Return the points (P, ...) and the centers of boxes (B, ...) that a tensor of centers holds."""
    points = len(box.center) - len(box.radius)
    return box.center[:points], box.center[points:]


def with_points(points: Tensor, box: Box) -> Box:
    """Put points in front of the centers of boxes."""
    return Box(torch.cat([points, box.center]), box.radius) if len(points) else box
