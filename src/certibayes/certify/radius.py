"""``certified_radius``: how far from each point does the proof reach?

All points bisect together, each with a radius of its own. Every radius that is returned was itself proved: bisection
only decides which radii are tried, so nothing depends on certificates being monotone in the radius.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from certibayes.bounds.checks import inputs_of, labels_of
from certibayes.certificates import Radius
from certibayes.certify.certify import certify, require_predictor
from certibayes.certify.origin import provenance_of
from certibayes.errors import InvalidInput, UnsoundBounds
from certibayes.prediction import Predictor
from certibayes.regions import Domain, as_domain, take_domain

MOST_STEPS = 50
"""More would try radii that float64 cannot tell apart."""


def certified_radius(
    predictor: Predictor,
    x: Tensor,
    y: Tensor | None = None,
    *,
    norm: str = "linf",
    bounds: str | None = None,
    rule: str = "theorem1",
    domain: Domain = None,
    rounding: str = "outward",
    largest: float = 0.5,
    tolerance: float = 1e-3,
    batch_size: int = 500,
    intermediates: str = "ibp",
    progress: Callable[[int, int], None] | None = None,
) -> Radius:
    """Find for each point a radius at which ``certify`` proves its label, close to the largest such radius.

    Args:
        predictor: from ``posterior.predictor(samples, seed)``.
        x: points (B, ...), inside the domain.
        y: labels (B,); by default the predicted classes.
        norm: see ``certify``. At equal strength an l2 or l1 radius is a larger number than an l-infinity radius; give
            ``largest`` accordingly.
        bounds: see ``certify``.
        rule: see ``certify``.
        domain: see ``certify``.
        rounding: see ``certify``.
        largest: radius beyond which nothing is tried.
        tolerance: the gap, at most, between the radius and the smallest one that could not be proved.
        batch_size: points bounded at once.
        intermediates: see ``certify``.
        progress: called with (points tried, points to try, counting every step).

    Raises:
        InvalidInput: the points, labels or settings cannot be used.
    """
    if not (math.isfinite(largest) and largest > 0 and math.isfinite(tolerance) and tolerance > 0):
        raise InvalidInput(f"largest and tolerance must be finite and positive, got {largest} and {tolerance}.")
    steps = max(0, math.ceil(math.log2(largest / tolerance)))
    if steps > MOST_STEPS:
        raise InvalidInput(f"a tolerance of {tolerance} is too fine for radii up to {largest}.")
    require_predictor(predictor)
    x, domain = inputs_of(x, "the points"), as_domain(domain)
    y = None if y is None else labels_of(y, predictor.classes, len(x))
    settings: dict[str, Any] = {
        "norm": norm, "bounds": bounds, "rule": rule, "domain": domain, "rounding": rounding, "batch_size": batch_size,
        "intermediates": intermediates,
    }  # fmt: skip
    # Of no points: it raises what is wrong with the settings, and tells which bounds a rule takes by default.
    settings["bounds"] = certify(predictor, x[:0], eps=0.0, **_of(settings, slice(0))).bounds
    labels, correct, certified = _at_zero(predictor, x, y, settings)
    # Radii are places k on the grid largest * k / 2^steps, so that equal radii are equal numbers.
    proved = torch.zeros(len(x), dtype=torch.int64)
    unproved = torch.where(certified, 2**steps, 0)
    rounds = steps + 2
    if progress is not None:
        progress(len(x), rounds * len(x))
    for step in range(steps + 1):
        place = torch.full_like(proved, 2**steps) if step == 0 else (proved + unproved) // 2
        # Not those that are not even certified at 0, nor those that are at ``largest``.
        active = unproved > proved
        eps = largest * place.double() / 2**steps
        holds = torch.zeros_like(certified)
        holds[active] = _proves(predictor, x[active.to(x.device)], labels[active], eps[active], _of(settings, active))
        proved = torch.where(active & holds, place, proved)
        unproved = torch.where(active & ~holds, place, unproved)
        if progress is not None:
            progress((step + 2) * len(x), rounds * len(x))
    radius = largest * proved.double() / 2**steps
    failed = largest * unproved.double() / 2**steps
    return Radius(
        radius=radius,
        unproved=torch.where(certified & (proved == unproved), torch.inf, failed),
        certified=certified,
        correct=correct,
        labels=labels,
        largest=float(largest),
        tolerance=float(tolerance),
        domain=domain,
        rounding=rounding,
        provenance=provenance_of(predictor, x, bounds=str(settings["bounds"]), rule=rule, intermediates=intermediates),
        norm=norm,
    )


def _at_zero(
    predictor: Predictor, x: Tensor, y: Tensor | None, settings: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels, where they are predicted, and where they are proved for the point alone, all on the CPU."""
    try:
        result = certify(predictor, x, y, eps=0.0, **settings)
    except UnsoundBounds:
        predicted = predictor.predict(x.to(predictor.device), settings["batch_size"])
        labels = (predicted if y is None else y).cpu()
        certified = _proves(predictor, x, labels, torch.zeros(len(x), dtype=torch.float64), settings)
        return labels, predicted.cpu() == labels, certified
    labels = result.labels.cpu()
    return labels, result.predicted.cpu() == labels, result.certified.cpu()


def _proves(predictor: Predictor, x: Tensor, labels: Tensor, eps: Tensor, settings: dict[str, Any]) -> Tensor:
    """Tell where the label is proved at a radius of each point's own, (B,)."""
    if len(x) == 0:
        return torch.zeros(0, dtype=torch.bool)
    try:
        return certify(predictor, x, labels, eps=eps, **settings).certified.cpu()
    except UnsoundBounds:
        # One point whose intervals explode is no verdict on the others.
        if len(x) == 1:
            return torch.zeros(1, dtype=torch.bool)
        half = len(x) // 2
        parts = [
            _proves(predictor, x[part], labels[part], eps[part], _of(settings, part))
            for part in (slice(half), slice(half, None))
        ]
        return torch.cat(parts)


def _of(settings: dict[str, Any], index: Tensor | slice) -> dict[str, Any]:
    """Return the settings for some of the points, which may have domains of their own."""
    return {**settings, "domain": take_domain(settings["domain"], index)}
