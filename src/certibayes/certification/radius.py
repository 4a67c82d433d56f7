"""``certified_radius``: how far from each point does the proof reach?

All points bisect side by side, each with a radius of its own. Every radius that is returned was itself proved:
bisection only decides which radii are tried, so nothing depends on certificates being monotone in the radius.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from certibayes.certificates import Radius
from certibayes.certification._origin import provenance_of
from certibayes.certification.certify import certify, require_predictor
from certibayes.certification.methods import Method, as_method
from certibayes.errors import InvalidInput
from certibayes.prediction import Predictor
from certibayes.regions import Domain, require_radius_within, resolve_domain, take_domain
from certibayes.support.checks import inputs_of, labels_of
from certibayes.support.progress import Report, reporting

MOST_STEPS = 50
"""More would try radii that float64 cannot tell apart."""


def certified_radius(  # noqa: PLR0913 - public
    predictor: Predictor,
    x: Tensor,
    y: Tensor | None = None,
    *,
    norm: str = "linf",
    domain: Domain | Literal["predictor"] = "predictor",
    method: str | Method = "auto",
    rounding: str = "outward",
    largest: float = 0.5,
    tolerance: float = 1e-3,
    batch_size: int | None = None,
    memory: int | None = None,
    progress: bool | Report = False,
) -> Radius:
    """Find for each point a radius at which ``certify`` proves its label, close to the largest such radius.

    Args:
        predictor: from ``posterior.predictor(samples, seed)``.
        x: points (B, ...), inside the domain.
        y: labels (B,); by default the predicted classes.
        norm: see ``certify``. At equal strength an l2 or l1 radius is a larger number than an l-infinity radius; give
            ``largest`` accordingly.
        domain: see ``certify``; by default the predictor's own.
        method: see ``certify``; a budget is for each of the radii that are tried.
        rounding: see ``certify``.
        largest: radius beyond which nothing is tried; in l-infinity at most the width of the domain.
        tolerance: the gap, at most, between the radius and the smallest one that could not be proved.
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
    chosen, x, domain = as_method(method), inputs_of(x, "the points"), resolve_domain(domain, predictor)
    require_radius_within(domain, largest, norm, "largest")
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
                found = certify(predictor, x[active.to(x.device)], labels[active], eps=eps[active], **some)
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
            intermediates="crown" if "crown" in intermediates else "ibp",
        ),
        norm=norm,
    )
