"""Boxes: axis-aligned sets of activations, as centre and radius."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds.norms import Ball, require_norm

Domain = tuple[float, float] | None
"""The values an input can take at all, such as (0, 1) for images; None for no limit."""


class Box(NamedTuple):
    """All points within ``radius`` of ``centre``, coordinate by coordinate; both of shape (B, ...).

    A box of inputs may carry a ball of another norm (``with_ball``): then it stands for the points that lie in both.
    Rules that know nothing of balls see the box alone, which is sound, and make boxes without one.
    """

    centre: Tensor
    radius: Tensor

    @property
    def ball(self) -> Ball | None:
        """The ball that holds the points besides, or None."""
        return None

    def with_ball(self, ball: Ball | None) -> Box:
        """Return the points of the box that also lie in a ball."""
        return self if ball is None else _CutBox(self.centre, self.radius, ball)

    @property
    def lower(self) -> Tensor:
        """Lower corner."""
        return self.centre - self.radius

    @property
    def upper(self) -> Tensor:
        """Upper corner."""
        return self.centre + self.radius

    def take(self, index: Tensor) -> Box:
        """Return the boxes of some points, with their balls."""
        return Box(self.centre[index], self.radius[index]).with_ball(self.ball and self.ball.take(index))

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return both corners in float64, rounded outwards by one unit, so that nothing is lost on the way out."""
        centre, radius = self.centre.double(), self.radius.double()
        infinity = torch.tensor(torch.inf, dtype=torch.float64, device=centre.device)
        return torch.nextafter(centre - radius, -infinity), torch.nextafter(centre + radius, infinity)


class _CutBox(Box):
    """A box that carries a ball; as a tuple it is still the pair of centre and radius."""

    _ball: Ball | None

    def __new__(cls, centre: Tensor, radius: Tensor, ball: Ball | None = None) -> _CutBox:
        """Make the pair, and remember the ball beside it."""
        made = super().__new__(cls, centre, radius)
        made._ball = ball
        return made

    @property
    def ball(self) -> Ball | None:
        """See ``Box``."""
        return self._ball


def ball(x: Tensor, eps: float | Tensor, domain: Domain = None) -> tuple[Tensor, Tensor]:
    """Return lower and upper corner of the l-infinity ball around ``x``, intersected with the domain.

    Args:
        x: centres (B, ...).
        eps: radius, a number or a tensor that broadcasts against ``x``.
        domain: smallest and largest value an input can take.
    """
    lower, upper = x - eps, x + eps
    if domain is not None:
        lower, upper = lower.clamp(min=domain[0]), upper.clamp(max=domain[1])
    return lower, upper


def ideal_box(x: Tensor, eps: float | Tensor, domain: Domain = None, norm: str = "linf") -> Box:
    """Return the ball as a box in exact arithmetic; differentiable.

    For the norms l2 and l1 it is the box around the ball, and carries it; ``eps`` is then a number or one for each
    point.
    """
    require_norm(norm)
    if norm == "linf":
        lower, upper = ball(x, eps, domain)
        return Box((lower + upper) / 2, (upper - lower) / 2)
    radius = _by_point(eps, x)
    box = ideal_box(x, radius.to(x.dtype).view(-1, *[1] * (x.dim() - 1)), domain)
    return box.with_ball(_input_ball(x, radius, norm, torch.zeros_like(x[:1], dtype=torch.float64)))


def outward_box(
    x: Tensor, eps: float | Tensor, domain: Domain = None, dtype: torch.dtype | None = None, norm: str = "linf"
) -> Box:
    """Return a box that holds every float input within ``eps`` of ``x``, also as float arithmetic judges it.

    ``x - eps`` rounds, and so does ``x`` itself where it is given in a finer precision than the network's; an attacker
    who computes the ball in floats may stand a little outside the exact one. The corners are the outermost of both
    readings, moved one float further out; where eps is 0 and x is exact, the box is ``x``.

    For the norms l2 and l1 the box carries the ball. Both hold every input x' of the domain, of any precision and as
    it is rounded to the network's, for which ||x' - x||_p <= eps holds as float64 arithmetic evaluates it, with the sum
    in any order; x may also be what it is rounded to.

    Args:
        x: points (B, ...), in the network's precision or a finer one.
        eps: radius, a number or a tensor that broadcasts against ``x``; for l2 and l1 the same for all values of a
            point.
        domain: smallest and largest value an input can take.
        dtype: the network's precision; that of ``x`` by default.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
    """
    require_norm(norm)
    dtype = x.dtype if dtype is None else dtype
    infinity = torch.tensor(torch.inf, dtype=dtype, device=x.device)
    exact = torch.as_tensor(eps, dtype=torch.float64, device=x.device)
    if norm != "linf":
        exact = _by_point(eps, x).view(-1, *[1] * (x.dim() - 1))
        # One rounding for each of the n differences, powers and sums, and for the root; squares may also underflow.
        exact = torch.where(exact > 0, exact * (1 + (x[:1].numel() + 8) * 2.0**-52) + 1e-150, exact)
    rounded = exact.to(dtype)
    rounded = torch.where(rounded.double() < exact, torch.nextafter(rounded, infinity), rounded)
    near = x.to(dtype)
    lower = torch.minimum(near - rounded, (x.double() - exact).to(dtype))
    upper = torch.maximum(near + rounded, (x.double() + exact).to(dtype))
    moved = (rounded > 0) | (near.double() != x.double())
    lower = torch.where(moved, torch.nextafter(lower, -infinity), lower)
    upper = torch.where(moved, torch.nextafter(upper, infinity), upper)
    if domain is not None:
        # x itself lies in the domain, so clamping never empties the box.
        lower, upper = lower.clamp(min=domain[0]), upper.clamp(max=domain[1])
    centre = (lower + upper) / 2
    # Rounding of the centre and of this line: the radius must reach both corners.
    radius = torch.maximum(upper - centre, centre - lower)
    box = Box(centre, torch.where(radius > 0, torch.nextafter(radius, infinity), radius))
    if norm == "linf":
        return box
    # From x to what it is rounded to, and from an input there to what that is rounded to: a unit each.
    info = torch.finfo(dtype)
    largest = torch.maximum(centre.abs().double() + box.radius.double(), x.double().abs())
    slack = torch.where(moved, largest * (2 * info.eps) + info.smallest_normal, 0.0)
    return box.with_ball(_input_ball(x, exact.flatten(), norm, slack))


def _input_ball(x: Tensor, radius: Tensor, norm: str, slack: Tensor) -> Ball:
    centre = x.double()
    return Ball(centre, radius, norm, torch.ones_like(centre[:1]), slack)


def _by_point(eps: float | Tensor, x: Tensor) -> Tensor:
    """One radius for each point, (B,), in float64: the largest, where a point has several."""
    radius = torch.as_tensor(eps, dtype=torch.float64, device=x.device)
    return radius.expand(len(x)) if radius.dim() < 2 else radius.expand(x.shape).flatten(1).amax(-1)
