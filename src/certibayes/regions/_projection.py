"""The nearest point of a region, and the steepest step inside it.

Projections are exact (they solve the optimality conditions by sorting, not by alternating between ball and domain) and
are rounded towards the center, so that the distance of a projected point, computed in float64, never exceeds the
radius.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from certibayes.regions.domain import Domain, ends_like

if TYPE_CHECKING:
    from certibayes.regions.region import InputRegion


def limits_of(x: Tensor, radius: Tensor | None, domain: Domain) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest floats within ``radius`` of ``x`` and in the domain, (B, *shape) each.

    Args:
        x: points (B, *shape), inside the domain.
        radius: in float64, broadcasting against ``x``; None for the domain alone.
        domain: smallest and largest value of an input, or None.
    """
    low, high = ends_like(domain, x)
    if isinstance(low, Tensor):
        lower, upper = low.expand_as(x), high.expand_as(x)
    else:
        lower, upper = torch.full_like(x, low), torch.full_like(x, high)
    if radius is not None:
        lower, upper = torch.maximum(lower, _corner(x, -radius)), torch.minimum(upper, _corner(x, radius))
    # Where x sits on the border of its domain, float ends may round past it; x itself is always allowed.
    return torch.minimum(lower, x), torch.maximum(upper, x)


def project(region: InputRegion, z: Tensor) -> Tensor:
    """Return the point of the region nearest to each of ``z`` (B, *shape), by Euclidean distance.

    With a = |z - x| and reach = min(a, room to the border of the domain), the nearest point is x + sign(z - x) d,

        l2: d = min(s a, reach), with the largest s <= 1 for which ‖d‖₂ <= r;
        l1: d = min(max(a - t, 0), reach), with the smallest t >= 0 for which ‖d‖₁ <= r.
    """
    boxed = torch.clamp(z, *region.limits)
    if region.norm == "linf" or z.numel() == 0:
        return boxed
    x, radius = region.center.double().flatten(1), region.radius.flatten(1)
    away = z.double().flatten(1) - x
    distance, reach = away.abs(), (boxed.double().flatten(1) - x).abs()
    inside = region.distance(boxed)[:, None] <= radius
    if bool(inside.all()):
        return boxed
    shrunk = _shrunk_l2(distance, reach, radius) if region.norm == "l2" else _shrunk_l1(distance, reach, radius)
    # What is left of rounding is scaled away, and a little more; then to floats, never away from x.
    norm = shrunk.norm(p=1 if region.norm == "l1" else 2, dim=-1, keepdim=True)
    slack = 1.0 - 8.0 * distance.shape[-1] * torch.finfo(torch.float64).eps
    shrunk = shrunk * (radius / torch.where(norm > 0, norm, 1.0)).clamp(max=1.0) * slack
    own = region.center.flatten(1)
    rounded = (x + away.sign() * shrunk).to(z.dtype)
    outside = (rounded.double() - x).abs() > shrunk
    rounded = torch.where(outside, torch.nextafter(rounded, own), rounded)
    return torch.where(inside, boxed.flatten(1), rounded).view_as(z)


def steepest_step(region: InputRegion, z: Tensor, gradient: Tensor, fraction: float | Tensor) -> Tensor:
    """Return the step from ``z`` of length ``fraction`` times the radius along which a linear function grows fastest.

        linf: r sign(g);    l2: r g / ‖g‖₂;    l1: all of r on the largest |g_i|, as far as the domain lets it
        go, then the next (the steepest direction in ball and box; Croce & Hein, 2021, "Mind the box").

    Coordinates that the domain blocks take no part. See ``InputRegion.steepest_step``.
    """
    length = fraction * region.radius
    if region.norm == "linf":
        return length.to(z.dtype) * gradient.sign()
    lower, upper = region.limits
    room = torch.where(gradient > 0, upper - z, z - lower)
    slope = torch.where(room > 0, gradient.double(), 0.0).flatten(1)
    length = length.flatten(1)
    if region.norm == "l2":
        norm = slope.norm(dim=-1, keepdim=True)
        moved = length * slope / torch.where(norm > 0, norm, 1.0)
    else:
        order = slope.abs().argsort(dim=-1, descending=True, stable=True)
        room = torch.where(slope == 0, 0.0, torch.minimum(room.double().flatten(1), length)).gather(-1, order)
        left = length - (room.cumsum(-1) - room)
        taken = torch.minimum(left.clamp(min=0.0), room)
        moved = torch.zeros_like(taken).scatter(-1, order, taken) * slope.sign()
    return moved.view_as(z).to(z.dtype)


def _corner(x: Tensor, offset: Tensor) -> Tensor:
    """Return x + offset rounded towards x, and no further out than float arithmetic in x's precision puts it."""
    exact = x.double() + offset
    corner = exact.to(x.dtype)
    beyond = (corner.double() - x.double()).abs() > offset.abs()
    corner = torch.where(beyond, torch.nextafter(corner, x), corner)
    plain = x + offset.to(x.dtype)
    return torch.where(offset < 0, torch.maximum(corner, plain), torch.minimum(corner, plain))


def _shrunk_l2(distance: Tensor, reach: Tensor, radius: Tensor) -> Tensor:
    """Return min(s distance, reach) with ‖.‖₂ = radius, for rows where ‖reach‖₂ > radius.

    The square of the norm is C + s² F between the values of s at which a coordinate reaches its limit, with C the
    squared reach of those that have and F the squared distance of those that have not.
    """
    limit, order = torch.where(distance > 0, reach / distance, 1.0).sort(-1)
    reached = reach.gather(-1, order).square()
    movable = distance.gather(-1, order).square()
    done = reached.cumsum(-1) - reached
    movable = movable.flip(-1).cumsum(-1).flip(-1)
    target = radius.square()
    segment = ((done + limit.square() * movable) <= target).sum(-1, keepdim=True).clamp(max=distance.shape[-1] - 1)
    left, over = (target - done.gather(-1, segment)).clamp(min=0.0), movable.gather(-1, segment)
    scale = (left / torch.where(over > 0, over, 1.0)).sqrt()
    return torch.minimum(scale * distance, reach)


def _shrunk_l1(distance: Tensor, reach: Tensor, radius: Tensor) -> Tensor:
    """Return min(max(distance - t, 0), reach) with ‖.‖₁ = radius, for rows where ‖reach‖₁ > radius.

    As t falls, a coordinate begins to move at t = distance and stops at t = distance - reach; in between the norm grows
    linearly, at the number of coordinates that move.
    """
    begins, stops = distance, distance - reach
    event, order = torch.cat([begins, stops], -1).sort(-1, descending=True)
    change = torch.cat([torch.ones_like(begins), -torch.ones_like(stops)], -1).gather(-1, order)
    moving = change.cumsum(-1)
    growth = moving[:, :-1] * (event[:, :-1] - event[:, 1:])
    norm = torch.nn.functional.pad(growth.cumsum(-1), (1, 0))
    segment = (norm <= radius).sum(-1, keepdim=True) - 1
    left = radius - norm.gather(-1, segment)
    threshold = event.gather(-1, segment) - left / moving.gather(-1, segment).clamp(min=1.0)
    return torch.minimum((distance - threshold).clamp(min=0.0), reach)
