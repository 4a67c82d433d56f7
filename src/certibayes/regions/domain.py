"""Domains: the values that inputs can take at all, the same for all of them or different from feature to feature."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.regions.radius import as_radius, fits

Domain = tuple[float, float] | tuple[Tensor, Tensor] | None
"""Smallest and largest value of an input, such as (0, 1) for images; None for no limit.

The ends are numbers, or tensors of shape (1, *shape) or (B, *shape) where they differ from feature to feature.
"""

FORM = (
    "a domain is a pair (smallest, largest) whose ends are numbers, or tensors with one value per feature, of shape "
    "(1, *shape) or, where points differ, (B, *shape)"
)


def as_domain(domain: Any) -> Domain:
    """Return a domain as a pair of floats, or of float64 tensors on the CPU, so that it can be written as JSON.

    Args:
        domain: None or a pair; also as a list, an array or a tensor, such as ``torch.tensor([0.0, 1.0])``. Where one
            end is a tensor, the other may be a number. A feature whose ends are equal cannot change.

    Raises:
        InvalidInput: it is no pair, or its ends are not in order.
    """
    if domain is None:
        return None
    try:
        low, high = (_end(end) for end in domain)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{FORM}; got {domain!r}.") from error
    if not isinstance(low, Tensor) and not isinstance(high, Tensor):
        if not low < high:
            raise InvalidInput(f"a domain is (smallest, largest), got {(low, high)}.")
        return low, high
    low, high = _filled(low, high), _filled(high, low)
    if low.dim() == 0 or low.shape[1:] != high.shape[1:] or len({len(low), len(high)} - {1}) > 1:
        raise InvalidInput(f"{FORM}; got ends of shapes {tuple(low.shape)} and {tuple(high.shape)}.")
    if not bool((low <= high).all()):
        raise InvalidInput("a domain is (smallest, largest), and for some features the first exceeds the second.")
    return low, high


def resolve_domain(domain: Any, owner: Any) -> Domain:
    """Return the domain a call is about: what was given, or the predictor's own where it says ``"predictor"``.

    Args:
        domain: see ``as_domain``; None for no limits, whatever the predictor knows; or ``"predictor"``.
        owner: a predictor or posterior; without an attribute ``domain`` it knows of no limits.

    Raises:
        InvalidInput: it is no domain.
    """
    if isinstance(domain, str):
        if domain != "predictor":
            raise InvalidInput(
                f'domain must be "predictor" for the predictor\'s own, None for no limits, or a pair such as '
                f"(0.0, 1.0); got {domain!r}."
            )
        domain = getattr(owner, "domain", None)
    return as_domain(domain)


def require_domain(x: Tensor, domain: Domain) -> None:
    """Raise unless the domain has a shape that fits ``x`` (B, *shape), and every input lies in it."""
    domain = as_domain(domain)
    if domain is None:
        return
    for end in domain:
        if isinstance(end, Tensor) and not fits(end, x):
            raise InvalidInput(f"{FORM}; got an end of shape {tuple(end.shape)} for points of {tuple(x.shape)}.")
    # Compared in the inputs' own precision: float32(0.6) is a little more than 0.6 and still the domain's end.
    low, high = (torch.as_tensor(end, dtype=x.dtype, device=x.device) for end in domain)
    if x.numel() == 0 or (low.dim() == 0 and bool((x.amin() >= low) & (x.amax() <= high))):
        return
    outside = (x < low) | (x > high)
    if not bool(outside.any()):
        return
    if isinstance(domain[0], Tensor):
        point, *place = outside.nonzero()[0].tolist()
        ends = [float(end.expand_as(x)[point, *place]) for end in (low, high)]
        found = (
            f"{int(outside.sum())} input values lie outside the domain of their feature. The first is "
            f"{float(x[point, *place]):.4g}, of point {point} in feature {', '.join(map(str, place))}, whose domain is "
            f"[{ends[0]:.4g}, {ends[1]:.4g}]."
        )
    else:
        found = f"inputs run from {float(x.min()):.4g} to {float(x.max()):.4g}, outside the domain {domain}."
    raise InvalidInput(
        f"{found} Scale them, state the right domain, or pass domain=None. Normalization belongs inside the network "
        "(certibayes.networks.Normalize), so that radii are in the units of the raw inputs."
    )


def require_radius_within(domain: Domain, eps: Any, norm: str = "linf", name: str = "eps") -> None:
    """Raise if an l-infinity radius exceeds the width of the domain, which mostly means that it is in other units.

    One radius, or one per point, is compared with the point's widest feature; radii per input value are compared
    feature by feature, except for features that cannot change. A radius as wide as the domain is allowed: the region is
    then all of the domain. In l2 and l1 such radii are ordinary, and nothing is raised.

    Args:
        domain: as ``as_domain`` returns it, of a shape that fits the points.
        eps: likewise; see ``as_radius``.
        norm: in which the radius is meant.
        name: what the caller calls the radius.
    """
    if domain is None or norm != "linf":
        return
    low, high = (torch.as_tensor(end, dtype=torch.float64) for end in domain)
    radius, width = torch.as_tensor(as_radius(eps), dtype=torch.float64), high - low
    if radius.dim() < 2 and width.dim():
        width = width.flatten(1).amax(1)
    # A hair more than the width is rounding: 0.3 - 0.2 is less than 0.1.
    too_wide = (radius > width * (1 + 1e-6)) & (width > 0)
    if not bool(too_wide.any()):
        return
    largest = float(radius.expand_as(too_wide)[too_wide].max())
    where, remedy = "of its feature", ""
    if not isinstance(domain[0], Tensor):
        where = f"[{domain[0]:g}, {domain[1]:g}]"
        if domain == (0.0, 1.0) and largest <= 255:
            remedy = f": for {largest:g} of 255 gray levels pass {name}={largest:g}/255"
    raise InvalidInput(
        f"{name}={largest:g} is wider than the domain {where}. Radii are in the units of the inputs{remedy}. If that "
        "is what you mean, state a wider domain, or pass domain=None."
    )


def ends_like(domain: Domain, like: Tensor) -> tuple[Any, Any]:
    """Return both ends in the precision and on the device of a tensor (B, *shape); numbers stay numbers."""
    low, high = (-torch.inf, torch.inf) if domain is None else domain
    if isinstance(low, Tensor) and isinstance(high, Tensor):
        return low.to(like), high.to(like)
    return low, high


def take_domain(domain: Domain, index: Tensor | slice) -> Domain:
    """Return the domain of some points; ends that are the same for all of them stay as they are."""
    if domain is None or not isinstance(domain[0], Tensor) or not isinstance(domain[1], Tensor):
        return domain
    low, high = (end if len(end) == 1 else end[_beside(index, end)] for end in domain)
    return low, high


def domain_to_json(domain: Domain) -> Any:
    """Return a domain as plain lists and numbers."""
    return None if domain is None else [end.tolist() if isinstance(end, Tensor) else end for end in domain]


def _end(end: Any) -> float | Tensor:
    if isinstance(end, Real):
        return float(end)
    # A copy: arrays that may not be written to would raise a warning otherwise.
    values = (
        end.detach().to("cpu", torch.float64) if isinstance(end, Tensor) else torch.tensor(end, dtype=torch.float64)
    )
    return values if values.dim() else float(values)


def _filled(end: float | Tensor, other: float | Tensor) -> Tensor:
    """Return an end as a tensor; a number is that of every feature."""
    if isinstance(end, Tensor):
        return end
    assert isinstance(other, Tensor)
    return torch.full_like(other, end)


def _beside(index: Tensor | slice, end: Tensor) -> Tensor | slice:
    return index.to(end.device) if isinstance(index, Tensor) else index
