"""Boxes: axis-aligned sets of activations, as center and radius, and those that enclose a region of inputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from certibayes.regions.ball import Ball
from certibayes.regions.domain import ends_like
from certibayes.support.fused import fused

if TYPE_CHECKING:
    from certibayes.regions.region import InputRegion


class Box(NamedTuple):
    """All points within ``radius`` of ``center``, coordinate by coordinate; both of shape (B, ...).

    A box of inputs may carry a ball of another norm: then it stands for the points that lie in both. Rules that know
    nothing of balls see the box alone, which is sound, and make boxes without one.

    Attributes:
        center: (B, ...).
        radius: (B, ...).
        ball: holds the points besides, or None.
        largest: bounds the magnitude of every point, up to rounding, where it is known; None where it is |c| + r.
        allowance: fraction of the magnitude that the radius holds beyond what the points need, for rounding.
    """

    center: Tensor
    radius: Tensor
    ball: Ball | None = None
    largest: Tensor | None = None
    allowance: float = 0.0

    @property
    def lower(self) -> Tensor:
        """Lower corner."""
        return self.center - self.radius

    @property
    def upper(self) -> Tensor:
        """Upper corner."""
        return self.center + self.radius

    def magnitude(self) -> Tensor:
        """Return the largest magnitude of a point, coordinate by coordinate; not to be overwritten."""
        return self.center.abs().add_(self.radius) if self.largest is None else self.largest

    def take(self, index: Tensor | slice) -> Box:
        """Return the boxes of some points, with all that is known of them."""
        largest = None if self.largest is None else self.largest[index]
        return Box(self.center[index], self.radius[index], self.ball and self.ball.take(index), largest, self.allowance)

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return both corners in float64, rounded outwards by one unit, so that no point of the box is lost."""
        center, radius = self.center.double(), self.radius.double()
        infinity = torch.tensor(torch.inf, dtype=torch.float64, device=center.device)
        return torch.nextafter(center - radius, -infinity), torch.nextafter(center + radius, infinity)


def corners(region: InputRegion) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value of each coordinate, (B, *shape), as plain floats; differentiable.

    No norm is smaller than l-infinity, so this holds for all of them.
    """
    return _clipped(*_ball_and_limits(region))


def _ball_and_limits(region: InputRegion) -> tuple[Tensor, Tensor, Any, Any]:
    """Return points, radii, and the smallest and largest value of an input, None where there is no limit."""
    x = region.center
    ends = ends_like(region.domain, x)
    low, high = (None if isinstance(end, float) and math.isinf(end) else end for end in ends)
    return x, region.radius.to(x.dtype), low, high


def _clipped(x: Any, radius: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """Return both ends of x ± radius within the limits; part of a ``fused`` formula."""
    lower, upper = x - radius, x + radius
    lower = lower if low is None else torch.clamp_min(lower, low)
    upper = upper if high is None else torch.clamp_max(upper, high)
    return lower, upper


def ideal_enclosure(region: InputRegion) -> Box:
    """Return the box around a region in exact arithmetic; differentiable. For l2 and l1 it carries the ball."""
    center, radius = _between_corners(*_ball_and_limits(region))
    box = Box(center, radius)
    if region.norm == "linf":
        return box
    x = region.center
    radius = _by_point(region).to(x.dtype).double()
    return box._replace(ball=_input_ball(x, radius, region.norm, torch.zeros_like(x[:1], dtype=torch.float64)))


@fused
def _between_corners(x: Any, radius: Any, low: Any, high: Any) -> tuple[Any, ...]:
    """Return center and half-width of the box between the ``corners`` of a region."""
    lower, upper = _clipped(x, radius, low, high)
    center = torch.lerp(lower, upper, 0.5)
    return center, upper - center


def outward_enclosure(region: InputRegion, dtype: torch.dtype | None = None) -> Box:
    """Return a box that holds every float input of a region, also as float arithmetic computes it.

    ``x - eps`` rounds, and so does ``x`` itself where it is given in a finer precision than the network's; an attacker
    who computes the ball in floats may stand a little outside the exact one. The corners are the outermost of both
    readings, moved one float further out; where eps is 0 and x is exact, the box is ``x``.

    For the norms l2 and l1 the box carries the ball. Both hold every input x' of the domain, of any precision and as
    it is rounded to the network's, for which ||x' - x||_p <= eps holds as float64 arithmetic evaluates it, with the sum
    in any order; x may also be what it is rounded to.

    Args:
        region: around points in the network's precision or a finer one.
        dtype: the network's precision; that of the points by default.
    """
    x = region.center
    dtype = x.dtype if dtype is None else dtype
    exact = region.radius.to(x.device, torch.float64)
    if region.norm != "linf":
        exact = _by_point(region).view(-1, *[1] * (x.dim() - 1))
        # One rounding for each of the n differences, powers and sums, and for the root; squares may also underflow.
        exact = torch.where(exact > 0, exact * (1 + (x[:1].numel() + 8) * 2.0**-52) + 1e-150, exact)
    rounded = exact.to(dtype)
    rounded = torch.where(
        rounded.double() < exact, torch.nextafter(rounded, torch.full_like(rounded, torch.inf)), rounded
    )
    near = x.to(dtype)
    # Where x is a float of the network, this is also the outermost of both readings: floats are subtracted in float64
    # and rounded again as if they were subtracted at once, and the rounded radius is no smaller than the exact one.
    lower, upper, moved = near - rounded, near + rounded, rounded > 0
    if near is not x:
        given = x.double()
        lower = torch.minimum(lower, (given - exact).to(dtype))
        upper = torch.maximum(upper, (given + exact).to(dtype))
        moved = moved | (near.double() != given)
    lower, upper = -_next_above(-lower, moved), _next_above(upper, moved)
    if region.domain is not None:
        # Ends are rounded to the network's precision as inputs are, which keeps their order. x itself lies in the
        # domain, so clamping never empties the box.
        low, high = ends_like(region.domain, lower)
        lower, upper = lower.clamp(min=low), upper.clamp(max=high)
    center = (lower + upper) / 2
    # Rounding of the center and of these subtractions: the radius must reach both corners.
    radius = _next_above(torch.maximum(upper - center, center - lower), moved)
    # The magnitude is computed here, once for all networks that read these inputs.
    box = Box(center, radius, largest=center.abs() + radius)
    if region.norm == "linf":
        return box
    # One unit for rounding x to the precision of the network, and one for rounding an input.
    info = torch.finfo(dtype)
    largest = torch.maximum(center.abs().double() + box.radius.double(), x.double().abs())
    slack = torch.where(moved, largest * (2 * info.eps) + info.smallest_normal, 0.0)
    return box._replace(ball=_input_ball(x, exact.flatten(), region.norm, slack))


def _next_above(x: Tensor, moved: Tensor) -> Tensor:
    """Return the next larger float where ``moved``, and x itself elsewhere; what is infinite stays so.

    The floats of one sign are in the order of their bits. ``torch.nextafter`` takes ten times as long on a CPU.
    """
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    # Adding 0 makes a 0 of -0, whose bits are those of the smallest number.
    bits = (x + 0.0).clamp_(max=torch.finfo(x.dtype).max).view(integers)
    # 1 for numbers >= 0, whose bits grow with them, and -1 for others.
    upwards = (bits >> (8 * x.element_size() - 1)).bitwise_or_(1)
    return bits.addcmul_(upwards, moved.to(integers)).view(x.dtype)


def _input_ball(x: Tensor, radius: Tensor, norm: str, slack: Tensor) -> Ball:
    center = x.double()
    return Ball(center, radius, norm, torch.ones_like(center[:1]), slack)


def _by_point(region: InputRegion) -> Tensor:
    """Return one radius per point, (B,), in float64."""
    x = region.center
    return region.radius.to(x.device, torch.float64).expand(len(x), *[1] * (x.dim() - 1)).flatten()
