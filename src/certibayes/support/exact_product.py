"""Products of matrices that are the same bits on every machine.

A sum of floats depends on its order, which differs from device to device and with the number of threads. Each factor is
therefore cut into two slices of a few binary digits (Ozaki et al., 2012): multiples of a power of two, so few that all
sums of products of two slices are whole multiples below 2⁵³ of their unit. Float64 adds such numbers without rounding,
in any order, fused or not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

DIGITS = 53
"""Binary digits of a float64."""


def exact_product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, (m, n) times (n, p), in float64, with an error of about n 2⁻³⁶ of the largest product."""
    digits = (DIGITS - math.ceil(math.log2(left.shape[1]))) // 2
    (a, b), (c, d) = _slices(left.double(), digits), _slices(right.double(), digits)
    return a @ c + (a @ d + b @ c)


def _slices(x: Tensor, digits: int) -> tuple[Tensor, Tensor]:
    """Return the leading digits of every number, relative to the largest, and as many of those that follow."""
    largest = torch.frexp(x.abs().amax()).exponent
    units = [torch.ldexp(torch.ones_like(x[:1, :1]), largest - digits * k) for k in (1, 2)]
    first = torch.round(x / units[0]) * units[0]
    return first, torch.round((x - first) / units[1]) * units[1]
