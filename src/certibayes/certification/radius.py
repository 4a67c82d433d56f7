"""``certified_radius``: how far from each point does the proof reach?

All points bisect side by side, each with a radius of its own. Every radius that is returned was itself proved:
bisection only decides which radii are tried, so nothing depends on certificates being monotone in the radius.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from certibayes.certificates import Radius
from certibayes.certification._origin import provenance_of
from certibayes.certification.certify import certify, require_predictor
from certibayes.certification.methods import Method, as_method
from certibayes.certification.network_bounds import INTERMEDIATES
from certibayes.data.points import points_for
from certibayes.errors import InvalidInput
from certibayes.prediction import Predictor
from certibayes.regions import (
    Domain,
    as_radius,
    radii_by_name,
    require_radius_within,
    resolve_domain,
    take_domain,
)
from certibayes.support.checks import inputs_of, labels_of
from certibayes.support.progress import Report, reporting

MOST_STEPS = 50
"""More would try radii that float64 cannot tell apart."""


def certified_radius(  # noqa: PLR0913 - public
    predictor: Predictor,
    x: Any,
    y: Any = None,
    *,
    norm: str = "linf",
    domain: Domain | Literal["predictor"] = "predictor",
    method: str | Method = "auto",
    rounding: str = "outward",
    largest: float = 0.5,
    tolerance: float = 1e-3,
    scale: Any = None,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: bool | Report = False,
) -> Radius:
    """Find for each point a radius at which ``certify`` proves its label, close to the largest such radius.

    Args:
        predictor: from ``posterior.predictor(samples, seed)``.
        x: points (B, ...), inside the domain; see ``certify``.
        y: labels (B,); by default those that come with the points, else the predicted classes.
        norm: see ``certify``. At equal strength an l2 or l1 radius is a larger number than an l-infinity radius; give
            ``largest`` accordingly.
        domain: see ``certify``; by default the predictor's own.
        method: see ``certify``; a budget is for each of the radii that are tried.
        rounding: see ``certify``.
        largest: radius beyond which nothing is tried; in l-infinity at most the width of the domain.
        tolerance: the gap, at most, between the radius and the smallest one that could not be proved.
        scale: what radii are multiples of, one number for each input value, (1, *shape), such as the standard
            deviations of a table's columns; where it is 0 the input does not change. Or, for a table of pandas, by
            name. By default radii are in the units of the inputs. In l-infinity.
        batch_size: see ``certify``.
        memory: see ``certify``.
        progress: True shows a bar on standard error, False nothing; a function is called with (points tried, points
            to try, counting every step).

    Raises:
        InvalidInput: the points, labels or settings cannot be used.
    """
    if not (math.isfinite(largest) and largest > 0 and math.isfinite(tolerance) and tolerance > 0):
        raise InvalidInput(f"largest and tolerance must be finite and positive, got {largest} and {tolerance}.")
    steps = max(0, math.ceil(math.log2(largest / tolerance)))
    if steps > MOST_STEPS:
        raise InvalidInput(f"a tolerance of {tolerance} is too fine for radii up to {largest}.")
    require_predictor(predictor)
    points = points_for(predictor, x, y)
    x, y = inputs_of(points.x, "the points"), points.y
    chosen, domain = as_method(method), resolve_domain(domain, predictor)
    unit = _unit(scale, points.features, x, norm)
    require_radius_within(domain, largest if unit is None else largest * unit, norm, "largest")
    y = None if y is None else labels_of(y, predictor.classes, len(x))
    settings: dict[str, Any] = {
        "norm": norm, "domain": domain, "method": chosen, "rounding": rounding, "batch_size": batch_size,
        "memory": memory,
    }  # fmt: skip
    with reporting(progress, "bisecting") as report:
        at_zero = certify(predictor, x, y, eps=0.0, **settings)
        labels, certified = at_zero.labels.cpu(), at_zero.certified.cpu()
        intermediates = {at_zero.intermediates}
        # Radii are places k on the grid largest * k / 2^steps, so that equal radii are equal numbers.
        proved = torch.zeros(len(x), dtype=torch.int64)
        unproved = torch.where(certified, 2**steps, 0)
        report(len(x), (steps + 2) * len(x))
        for step in range(steps + 1):
            place = torch.full_like(proved, 2**steps) if step == 0 else (proved + unproved) // 2
            # Not those that are not even certified at 0, nor those that are at ``largest``.
            active = unproved > proved
            eps = largest * place.double() / 2**steps
            holds = torch.zeros_like(certified)
            if bool(active.any()):
                some = {**settings, "domain": take_domain(domain, active)}
                found = certify(
                    predictor, x[active.to(x.device)], labels[active], eps=_scaled(eps[active], unit), **some
                )
                holds[active] = found.certified.cpu()
                intermediates.add(found.intermediates)
            proved = torch.where(active & holds, place, proved)
            unproved = torch.where(active & ~holds, place, unproved)
            report((step + 2) * len(x), (steps + 2) * len(x))
    radius = largest * proved.double() / 2**steps
    failed = largest * unproved.double() / 2**steps
    return Radius(
        radius=radius,
        unproved=torch.where(certified & (proved == unproved), torch.inf, failed),
        certified=certified,
        correct=at_zero.predicted.cpu() == labels,
        labels=labels,
        largest=float(largest),
        tolerance=float(tolerance),
        domain=domain,
        rounding=rounding,
        provenance=provenance_of(
            predictor,
            x,
            bounds=chosen.bounds,
            method=chosen.name,
            intermediates=max(intermediates, key=INTERMEDIATES.index),
        ),
        norm=norm,
        scale=unit,
    )


def _unit(scale: Any, features: tuple[str, ...], x: Tensor, norm: str) -> Tensor | None:
    """Return what radii are multiples of, (1, *shape) in float64."""
    if scale is None:
        return None
    if norm != "linf":
        raise InvalidInput(f"scale has a number for each input value, which only the norm linf has; got {norm!r}.")
    if isinstance(scale, Mapping):
        return radii_by_name(features, scale)
    found = as_radius(scale)
    if not isinstance(found, Tensor) or found.shape != (1, *x.shape[1:]):
        shape = ", ".join(map(str, x.shape[1:]))
        raise InvalidInput(f"scale has one number for each input value, of shape (1, {shape}).")
    return found


def _scaled(eps: Tensor, unit: Tensor | None) -> Tensor:
    """Return radii (B,) as those of every input value, (B, *shape), where they are multiples of something."""
    if unit is None:
        return eps
    # The product rounds; the record speaks of the exact one, so that none may be smaller. 0 stays 0.
    product = eps.view(-1, *[1] * (unit.dim() - 1)) * unit
    return torch.where(product > 0, torch.nextafter(product, torch.full_like(product, torch.inf)), product)
