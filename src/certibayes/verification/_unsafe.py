"""A specification's constraints on outputs as tensors, rounded so that what excludes them excludes the exact ones.

A coefficient that is no float is rounded, â for a. Then a y >= â y - Σ |a - â| |y|, so a proof needs â y > b plus that
sum for outputs as large as their bounds allow; it is added to b. In the classification benchmarks all coefficients are
1 and -1, and nothing is added.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from certibayes.certification import UnsafeOutputs
from certibayes.errors import InvalidInput
from certibayes.support.checks import LARGEST
from certibayes.vnnlib import Conjunction


def unsafe_outputs(unsafe: tuple[Conjunction, ...], largest: Tensor, dtype: torch.dtype) -> UnsafeOutputs:
    """Return the constraints as tensors, on the device of ``largest``.

    Args:
        unsafe: conjunctions of exact constraints.
        largest: bounds on the magnitudes of the outputs over the box, float64 (C,).
        dtype: precision of the network.

    Raises:
        InvalidInput: coefficients are absurdly large.
    """
    constraints = [(number, one) for number, conjunction in enumerate(unsafe) for one in conjunction]
    coefficients = torch.zeros(len(constraints), len(largest), dtype=torch.float64)
    bounds: list[float] = []
    magnitudes = largest.tolist()
    for row, (_, constraint) in enumerate(constraints):
        errors = []
        for index, exact in constraint.coefficients:
            if abs(exact) > LARGEST:
                raise InvalidInput(f"Y_{index} has a coefficient beyond 2^30. Scale the constraint.")
            rounded = float(torch.tensor(float(exact), dtype=dtype))
            coefficients[row, index] = rounded
            if exact != Fraction(rounded):
                errors.append((abs(exact - Fraction(rounded)), magnitudes[index]))
        if all(math.isfinite(magnitude) for _, magnitude in errors):
            bounds.append(at_least(constraint.bound + sum(error * Fraction(most) for error, most in errors)))
        else:
            # Nothing is known of that output, so nothing can be proved by the constraint.
            bounds.append(math.inf)
    return UnsafeOutputs(
        coefficients.to(largest.device, dtype),
        torch.tensor(bounds, dtype=torch.float64, device=largest.device),
        torch.tensor([number for number, _ in constraints], dtype=torch.int64, device=largest.device),
        len(unsafe),
    )


def at_least(number: Fraction) -> float:
    """Return the smallest float64 that is not below a number; infinity where there is none."""
    try:
        near = float(number)
    except OverflowError:
        return math.inf if number > 0 else -torch.finfo(torch.float64).max
    return near if Fraction(near) >= number else math.nextafter(near, math.inf)
