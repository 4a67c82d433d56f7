"""Monotone activations: the image of an interval lies between the images of its ends.

ReLU and the maximum are exact in floats and commute with rounding (rounding is monotone and keeps the sign), so the
error of ``c - r`` stays a unit of the result. LeakyReLU rounds once more. Tanh and sigmoid are library functions,
whose vectorised and scalar versions err by a few units in the last place: ``LIBRARY_ULPS`` allows sixteen in the
network and sixteen in the bound, several times what the vendors document, and their argument is widened first.
"""

from __future__ import annotations

from typing import Any

from certibayes.bounds.box import Box
from certibayes.bounds.registry import IntervalRule, register
from certibayes.bounds.rounding import Rounding
from certibayes.networks import operations as ops
from certibayes.networks.operations import Weights

LIBRARY_ULPS = 32.0


def monotone(ulps: float, commutes_with_rounding: bool = False) -> IntervalRule:
    """Make the rule of an increasing function.

    Args:
        ulps: relative error of the float version, in units, network and bound together.
        commutes_with_rounding: f(x (1 + δ)) = f(x) (1 + δ'), |δ'| <= |δ|; true of piecewise linear functions with
            a kink at 0.
    """

    def interval(operation: Any, weights: Weights, boxes: tuple[Box, ...], rounding: Rounding) -> Box:
        centre = boxes[0].centre
        spread = boxes[0].radius if commutes_with_rounding else rounding.spread(boxes[0], 0)
        lower = operation.evaluate(weights, centre - spread)
        upper = operation.evaluate(weights, centre + spread)
        return rounding.box_between(lower, upper, ulps)

    return interval


register(ops.ReLU, monotone(ulps=1, commutes_with_rounding=True), "nn.ReLU, F.relu, torch.relu")
register(ops.LeakyReLU, monotone(ulps=4, commutes_with_rounding=True), "nn.LeakyReLU, F.leaky_relu (slope >= 0)")
register(ops.Tanh, monotone(LIBRARY_ULPS), "nn.Tanh, torch.tanh")
register(ops.Sigmoid, monotone(LIBRARY_ULPS), "nn.Sigmoid, torch.sigmoid")
