"""Where an attack may go: a ball around each point, intersected with the domain of the inputs.

    R(x) = { z : ‖z - x‖ <= r, low <= z <= high },   ‖.‖ one of l-infinity, l2, l1.

Three things depend on the norm, and they are all here: the nearest point of R, a random point of R, and the direction
in which a linear function grows fastest. Projections are exact (they solve the optimality conditions by sorting,
not by alternating between ball and box) and are rounded towards x, so that the distance of a projected point,
computed in float64, never exceeds r.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Domain
from certibayes.bounds.checks import radius_for
from certibayes.bounds.norms import require_norm
from certibayes.errors import InvalidInput


class Region(NamedTuple):
    """Balls around points, intersected with the domain; ``region_of`` makes one.

    Attributes:
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        x: the points (B, ...), all inside the domain.
        radius: in float64, (B, 1, ...), or for l-infinity anything that broadcasts against ``x``.
        lower: smallest values allowed, (B, ...); for l-infinity the ball is in them.
        upper: largest values allowed, (B, ...).
    """

    norm: str
    x: Tensor
    radius: Tensor
    lower: Tensor
    upper: Tensor

    def pick(self, index: Tensor) -> Region:
        """Return the regions of some of the points."""
        return Region(self.norm, self.x[index], self.radius[index], self.lower[index], self.upper[index])

    def distance(self, z: Tensor) -> Tensor:
        """Return how far each of ``z`` (B, ...) is from its point, in float64, (B,)."""
        away = (z.double() - self.x.double()).abs().flatten(1)
        if self.norm == "linf":
            return away.amax(-1) if away.shape[-1] else away.sum(-1)
        return away.sum(-1) if self.norm == "l1" else away.square().sum(-1).sqrt()

    def project(self, z: Tensor) -> Tensor:
        """Return the point of the region nearest to each of ``z`` (B, ...), by Euclidean distance.

        With a = |z - x| and reach = min(a, room to the border of the domain), the nearest point is x + sign(z - x) d,

            l2: d = min(s a, reach), with the largest s <= 1 for which ‖d‖₂ <= r;
            l1: d = min(max(a - t, 0), reach), with the smallest t >= 0 for which ‖d‖₁ <= r.
        """
        boxed = torch.clamp(z, self.lower, self.upper)
        if self.norm == "linf" or z.numel() == 0:
            return boxed
        x, radius = self.x.double().flatten(1), self.radius.flatten(1)
        away = z.double().flatten(1) - x
        size, reach = away.abs(), (boxed.double().flatten(1) - x).abs()
        inside = self.distance(boxed)[:, None] <= radius
        if bool(inside.all()):
            return boxed
        shrunk = _shrunk_l2(size, reach, radius) if self.norm == "l2" else _shrunk_l1(size, reach, radius)
        # What is left of rounding is scaled away, and a little more; then to floats, never away from x.
        norm = shrunk.norm(p=1 if self.norm == "l1" else 2, dim=-1, keepdim=True)
        slack = 1.0 - 8.0 * size.shape[-1] * torch.finfo(torch.float64).eps
        shrunk = shrunk * (radius / torch.where(norm > 0, norm, 1.0)).clamp(max=1.0) * slack
        own = self.x.flatten(1)
        rounded = (x + away.sign() * shrunk).to(z.dtype)
        outside = (rounded.double() - x).abs() > shrunk
        rounded = torch.where(outside, torch.nextafter(rounded, own), rounded)
        return torch.where(inside, boxed.flatten(1), rounded).view_as(z)

    def start(self, generator: torch.Generator) -> Tensor:
        """Return random points of the region, (B, ...): uniform in the ball, then projected onto the domain."""
        x = self.x
        if self.norm == "linf":
            noise = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
            return torch.clamp(self.lower + noise * (self.upper - self.lower), self.lower, self.upper)
        flat = (len(x), x[0].numel()) if len(x) else (0, 1)
        if self.norm == "l2":
            noise = torch.randn(flat, generator=generator, dtype=torch.float64, device=x.device)
            share = torch.rand((len(x), 1), generator=generator, dtype=torch.float64, device=x.device)
            noise = noise / noise.norm(dim=-1, keepdim=True) * share ** (1.0 / flat[1])
        else:
            # n exponentials over the sum of n + 1 are uniform in the simplex; signs make it the l1 ball.
            sizes = torch.empty((flat[0], flat[1] + 1), dtype=torch.float64, device=x.device)
            sizes.exponential_(generator=generator)
            signs = torch.rand(flat, generator=generator, dtype=torch.float64, device=x.device) < 0.5
            noise = sizes[:, :-1] / sizes.sum(-1, keepdim=True) * torch.where(signs, -1.0, 1.0)
        return self.project((x.double() + self.radius * noise.view(x.shape)).to(x.dtype))

    def step(self, z: Tensor, gradient: Tensor, share: float | Tensor) -> Tensor:
        """Return the step from ``z`` of length ``share`` times the radius along which the loss grows fastest.

            linf: r sign(g);    l2: r g / ‖g‖₂;    l1: all of r on the largest |g_i|, as far as the domain lets it
            go, then the next (the steepest direction in ball and box; Croce & Hein, 2021, "Mind the box").

        Coordinates that the domain blocks take no part. ``project`` is to follow.

        Args:
            z: where the step begins, (B, ...), inside the domain.
            gradient: of the loss there, (B, ...).
            share: a number, or one for each point, (B, 1, ...).
        """
        length = share * self.radius
        if self.norm == "linf":
            return length.to(z.dtype) * gradient.sign()
        room = torch.where(gradient > 0, self.upper - z, z - self.lower)
        slope = torch.where(room > 0, gradient.double(), 0.0).flatten(1)
        length = length.flatten(1)
        if self.norm == "l2":
            norm = slope.norm(dim=-1, keepdim=True)
            moved = length * slope / torch.where(norm > 0, norm, 1.0)
        else:
            order = slope.abs().argsort(dim=-1, descending=True, stable=True)
            room = torch.where(slope == 0, 0.0, torch.minimum(room.double().flatten(1), length)).gather(-1, order)
            left = length - (room.cumsum(-1) - room)
            taken = torch.minimum(left.clamp(min=0.0), room)
            moved = torch.zeros_like(taken).scatter(-1, order, taken) * slope.sign()
        return moved.view_as(z).to(z.dtype)


def region_of(x: Tensor, eps: float | Tensor, norm: str = "linf", domain: Domain = None) -> Region:
    """Return the balls of radius ``eps`` around ``x``, intersected with the domain.

    Args:
        x: points (B, ...), inside the domain.
        eps: one radius, one for each point (B,), or, for l-infinity alone, one for each input value.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        domain: smallest and largest value of an input, or None.
    """
    require_norm(norm)
    radius = radius_for(eps, x)
    low, high = (-torch.inf, torch.inf) if domain is None else domain
    lower, upper = torch.full_like(x, low), torch.full_like(x, high)
    if norm == "linf":
        lower, upper = torch.maximum(lower, _corner(x, -radius)), torch.minimum(upper, _corner(x, radius))
    elif radius.shape != (len(x), *[1] * (x.dim() - 1)):
        own = radius.flatten(1)[:, :1]
        if not bool((radius.flatten(1) == own).all()):
            raise InvalidInput(f"radii that differ within a point are for norm='linf'; for {norm} give one a point.")
        radius = own.view(-1, *[1] * (x.dim() - 1))
    # Where x sits on the border of its domain, float ends may round past it; x itself is always allowed.
    return Region(norm, x, radius, torch.minimum(lower, x), torch.maximum(upper, x))


def _corner(x: Tensor, offset: Tensor) -> Tensor:
    """Return x + offset rounded towards x, and no further out than float arithmetic in x's precision puts it."""
    exact = x.double() + offset
    corner = exact.to(x.dtype)
    beyond = (corner.double() - x.double()).abs() > offset.abs()
    corner = torch.where(beyond, torch.nextafter(corner, x), corner)
    plain = x + offset.to(x.dtype)
    return torch.where(offset < 0, torch.maximum(corner, plain), torch.minimum(corner, plain))


def _shrunk_l2(size: Tensor, reach: Tensor, radius: Tensor) -> Tensor:
    """Return min(s size, reach) with ‖.‖₂ = radius, for rows where ‖reach‖₂ > radius.

    The square of the norm is C + s² F between the values of s at which a coordinate reaches its limit, with C the
    squared reach of those that have and F the squared size of those that have not.
    """
    limit, order = torch.where(size > 0, reach / size, 1.0).sort(-1)
    reached = reach.gather(-1, order).square()
    free = size.gather(-1, order).square()
    done = reached.cumsum(-1) - reached
    free = free.flip(-1).cumsum(-1).flip(-1)
    target = radius.square()
    segment = ((done + limit.square() * free) <= target).sum(-1, keepdim=True).clamp(max=size.shape[-1] - 1)
    left, over = (target - done.gather(-1, segment)).clamp(min=0.0), free.gather(-1, segment)
    scale = (left / torch.where(over > 0, over, 1.0)).sqrt()
    return torch.minimum(scale * size, reach)


def _shrunk_l1(size: Tensor, reach: Tensor, radius: Tensor) -> Tensor:
    """Return min(max(size - t, 0), reach) with ‖.‖₁ = radius, for rows where ‖reach‖₁ > radius.

    As t falls, a coordinate begins to move at t = size and stops at t = size - reach; in between the norm grows
    linearly, at the number of coordinates that move.
    """
    begins, stops = size, size - reach
    event, order = torch.cat([begins, stops], -1).sort(-1, descending=True)
    change = torch.cat([torch.ones_like(begins), -torch.ones_like(stops)], -1).gather(-1, order)
    moving = change.cumsum(-1)
    growth = moving[:, :-1] * (event[:, :-1] - event[:, 1:])
    norm = torch.nn.functional.pad(growth.cumsum(-1), (1, 0))
    segment = (norm <= radius).sum(-1, keepdim=True) - 1
    left = radius - norm.gather(-1, segment)
    threshold = event.gather(-1, segment) - left / moving.gather(-1, segment).clamp(min=1.0)
    return torch.minimum((size - threshold).clamp(min=0.0), reach)
