r"""Rounding: how bounds are widened until they hold for the float program that runs.

Write u for the unit roundoff (2⁻²⁴ in float32) and γₙ = n u / (1 - n u). A dot product of n terms plus bias,
computed in any order, differs from the exact one by at most γₙ₊₁ (|W| |x| + |b|) (Higham, *Accuracy and
Stability of Numerical Algorithms*, 2002, ch. 3). Three computations round: the network that runs, the center of
the box, and its radius. All three are covered by one widening of the radius that is propagated anyway,

    ρ = r + g (|c| + r),     radius' = |W| ρ + g |b|,     g = 4 γₙ₊₈,

since every activation satisfies |x| <= |c| + r: 2γ covers the network and the center, and the rest covers ρ
and the radius themselves, which lose a relative γₙ₊₈ at most. No third product is needed.

Underflow adds absolute errors that no relative term covers, also where subnormal numbers are flushed to 0. Any number
that is computed or read may be off by the smallest normal number t. A product w x is then off by t (1 + |w| + |x|):

- t (1 + |w|), over at most 2²¹ terms and for weights up to 2³⁰, which predictors check, is below ``underflow``;
- t |x| has no such limit, since activations may reach 2¹⁰⁰. ``magnitude`` adds ``weight_underflow`` to |W| wherever a
  radius is computed, and since ρ >= g (|c| + r) >= 2⁻¹⁹ |x|, that is more than t |x| for each term. It also covers
  factors that a layer computes from its weights, such as γ / sqrt(v) of a batch norm, and constants that the program
  rounds to its own precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.regions import Box
from certibayes.support.stacks import is_mapped


@dataclass(frozen=True)
class Rounding:
    """What is assumed about arithmetic.

    Attributes:
        unit: unit roundoff of the floats that run; 0 stands for ideal, exact arithmetic.
        underflow: absolute error allowed for each affine layer.
        weight_underflow: added to the magnitude of every weight; see the module's text.
        smoothing: τ in sqrt(w² + τ²) >= |w|, which takes the place of |w| where a sampler needs smooth bounds.
    """

    unit: float = 0.0
    underflow: float = 0.0
    weight_underflow: float = 0.0
    smoothing: float = 0.0

    @property
    def outward(self) -> bool:
        """Whether bounds are widened at all."""
        return self.unit > 0.0

    @property
    def name(self) -> str:
        """``"outward"`` or ``"ideal"``, as in the public interface."""
        return "outward" if self.outward else "ideal"

    def magnitude(self, weight: Tensor) -> Tensor:
        """Return |w|, or the smooth bound sqrt(w² + τ²) on it; in outward rounding with its ``weight_underflow``."""
        if self.smoothing > 0.0:
            # Square roots of a vector library may be a unit too small, and on some processors they are.
            return torch.maximum(torch.sqrt(torch.square(weight) + self.smoothing**2), torch.abs(weight))
        return weight.abs().add_(self.weight_underflow) if self.outward else weight.abs()

    def slope(self, weight: Tensor) -> Tensor:
        """Return the derivative of ``magnitude``, elementwise: of |w|, or of sqrt(w² + τ²) if that is smoothed."""
        return weight / self.magnitude(weight) if self.smoothing > 0.0 else torch.sign(weight)

    def gamma(self, terms: int) -> float:
        """γₙ = n u / (1 - n u)."""
        gamma = terms * self.unit / (1.0 - terms * self.unit) if terms * self.unit < 1 else math.inf
        if gamma > 0.125:
            raise InvalidInput(
                f"a sum of {terms} terms is too long for this precision: its rounding cannot be bounded usefully. "
                "Run the predictor in float64."
            )
        return gamma

    def widening(self, terms: int) -> float:
        """Return g = 4 γₙ₊₈ for an operation that adds ``terms`` products; see the module's text."""
        return 4.0 * self.gamma(terms + 8)

    def widened_radius(self, box: Box, terms: int) -> Tensor:
        """Return ρ = r + g (|c| + r), or r itself in ideal arithmetic."""
        return self.widened_by(box, self.widening(terms))

    def widened_by(self, box: Box, fraction: float) -> Tensor:
        """Return r + fraction (|c| + r), or r itself in ideal arithmetic.

        In one pass over memory where the magnitude is known, and in none where the radius holds as much already.
        """
        if box.allowance >= fraction > 0.0:
            return box.radius
        return torch.add(box.radius, box.magnitude(), alpha=fraction) if self.outward else box.radius

    def ends(self, box: Box) -> tuple[Tensor, Tensor]:
        """Return the ends of a box in float64: exact in outward rounding, else as the network's precision has them."""
        return box.ends() if self.outward else (box.lower.double(), box.upper.double())

    def box_between(self, lower: Tensor, upper: Tensor, ulps: float = 0.0) -> Box:
        """Enclose [lower, upper], whose ends carry a relative error of ``ulps`` units, in center and radius.

        In outward rounding ``upper`` is consumed.
        """
        center = torch.lerp(lower, upper, 0.5)
        if not self.outward:
            return Box(center, upper - center)
        # The center may be off by 2 units, which moves both distances; 8 units cover that, the
        # subtraction and this sum.
        largest = torch.maximum(lower.abs(), upper.abs()).mul_((ulps + 8.0) * self.unit)
        return Box(center, largest.add_(upper.sub_(center)).add_(self.underflow))


IDEAL = Rounding()
"""Exact arithmetic: for training, and for comparison with the literature."""

SMALLEST_SMOOTHING = 1e-18
"""Its square is still a normal float32; below, sqrt(w² + τ²) could fall short of |w| and has no slope at 0."""


def smoothed(tau: float) -> Rounding:
    """Return exact arithmetic with |w| replaced by sqrt(w² + τ²): bounds that are sound, a little wider, and smooth.

    |w| makes the potential of a robust likelihood kink at every w = 0, and a leapfrog integrator errs at each kink.
    """
    if not (tau == 0.0 or (math.isfinite(tau) and tau >= SMALLEST_SMOOTHING)):
        raise InvalidInput(f"smoothing must be 0 or a finite number >= {SMALLEST_SMOOTHING}, got {tau}.")
    return Rounding(smoothing=tau) if tau > 0.0 else IDEAL


SMALLEST_VARIANCE = 2.0**-68
"""Variances below this, with batch norm's eps added, are refused: a program may take them for 0, and a coefficient that
underflows where it meets the weight may be divided by the deviation after that; see ``bounds._offset``."""

LARGEST_BOUND = 2.0**100
"""A center or radius beyond this, in any layer, is refused: the radius of a layer is at least 2⁻¹⁹ |W| |x|, so below
it no partial sum of the float program can overflow, in any order."""


def within_range(box: Box) -> tuple[Tensor, Tensor]:
    """Tell of which points (B,) a layer's box is far from overflow, NaN is not, and whether any radius is negative."""
    # Extremes, not absolute values: nothing is allocated. Two reductions are many times as fast as one ``aminmax``.
    center, radius = box.center.flatten(1), box.radius.flatten(1)
    inside = (center.amin(1) >= -LARGEST_BOUND) & (center.amax(1) <= LARGEST_BOUND) & (radius.amax(1) <= LARGEST_BOUND)
    return inside, (radius.amin() < 0)


def radius_within_range(box: Box, rounding: Rounding) -> bool:
    """Tell whether the radius alone shows that all points of an affine layer's box, without a ball, are within range.

    In outward rounding it is never negative, and at least g (|W| |x| + |b|) with g >= 32 u, half of which is ample for
    the rounding of both sides. So where it is below 16 u ``LARGEST_BOUND``, as it nearly always is, the center is below
    ``LARGEST_BOUND``, and no sum has overflowed. One reduction then takes the place of four and what is made of them;
    but its result is read, so on a GPU, and where ``torch.vmap`` runs, the answer is no.
    """
    if not rounding.outward or box.radius.is_cuda or is_mapped(box.radius):
        return False
    return bool(box.radius.amax() <= LARGEST_BOUND * 16 * rounding.unit)


def outward(dtype: torch.dtype) -> Rounding:
    """Return the rounding that makes bounds hold for programs running in ``dtype``."""
    info = torch.finfo(dtype)
    unit, smallest = info.eps / 2, info.smallest_normal
    return Rounding(unit, underflow=smallest * 2.0**54, weight_underflow=smallest * 4 / unit)


def by_name(name: str, dtype: torch.dtype) -> Rounding:
    """Return ``"outward"`` or ``"ideal"`` rounding."""
    if name not in ("outward", "ideal"):
        raise InvalidInput(f'rounding must be "outward" or "ideal", got {name!r}.')
    return outward(dtype) if name == "outward" else IDEAL
