"""``certify_regression``: how far a prediction can move within a ball.

Each network's outputs are bounded over the ball, l_i <= f^{w_i}(x) <= u_i. The predictive mean then lies between the
means of the l_i and of the u_i, and no network of the predictor leaves [min_i l_i, max_i u_i]. This is the certificate
that belongs to the robust Gaussian likelihood (Remark 1 of Wicker et al., 2021), which trains on the same extremes.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from certibayes.bounds import by_name
from certibayes.certificates import RegressionCertificate
from certibayes.certification._batch import batch_size_for, memory_for
from certibayes.certification._border import asked_of, region_for
from certibayes.certification._origin import provenance_of
from certibayes.certification.certify import UNBOUNDED, require_arithmetic
from certibayes.certification.methods import Method, as_method
from certibayes.certification.network_bounds import logit_bounds, slope_rounds
from certibayes.errors import InvalidInput
from certibayes.prediction import RegressionPredictor
from certibayes.regions import Domain, as_radius
from certibayes.support.checks import inputs_of
from certibayes.support.progress import Report, reporting


def certify_regression(  # noqa: PLR0913 - public
    predictor: RegressionPredictor,
    x: Any,
    y: Any = None,
    *,
    eps: Any,
    norm: str = "linf",
    tolerance: float | None = None,
    domain: Domain | Literal["predictor"] = "predictor",
    method: str | Method = "auto",
    rounding: str = "outward",
    batch_size: int | None = None,
    memory: int | None = None,
    progress: bool | Report = False,
) -> RegressionCertificate:
    """Bound the predictive mean, and the outputs of every network, over all inputs within ``eps`` of a point.

    Args:
        predictor: of a posterior that was fitted to targets of floats.
        x: points (B, ...), inside the domain; see ``certify``. What yields points with targets gives both.
        y: targets (B, outputs), if deviations are to be measured from them; by default from the prediction at x.
        eps: radius: a number; one per point, (B,); or, in l-infinity, one per input value, or by name; see ``certify``.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        tolerance: deviation up to which a point is certified.
        domain: smallest and largest value an input can take; the ball is intersected with it. By default the
            predictor's own; see ``certify``.
        method: see ``certify``; of it count ``bounds`` and ``intermediates``, since there are no classes to compare;
            ``"auto"`` ones are intervals.
        rounding: ``"outward"`` for a proof about the float program, ``"ideal"`` for exact arithmetic.
        batch_size: see ``certify``.
        memory: see ``certify``.
        progress: True shows a bar on standard error, False nothing; a function is called with (points done, all
            points).

    Raises:
        InvalidInput: the points, targets or settings cannot be used.
        UnsoundBounds: finite bounds came out inverted: a rule is wrong, and nothing is concluded.
    """
    chosen = as_method(method)
    _require_settings(predictor, tolerance)
    at_once, memory = batch_size_for(predictor, batch_size), memory_for(predictor, memory)
    x, y, eps = asked_of(predictor, x, y, eps)
    region = region_for(predictor, x, eps, norm, domain)
    # With slopes 0 and intervals in between, which need no choice, bounds shrink wherever the ball does.
    intermediates = "ibp" if chosen.intermediates == "auto" else chosen.intermediates
    slopes = slope_rounds(chosen.bounds, intermediates)[0]
    if y is not None:
        y = inputs_of(y, "the targets")
        if y.dim() == 1 and predictor.classes == 1:
            y = y[:, None]
        if tuple(y.shape) != (len(region), predictor.classes):
            raise InvalidInput(f"targets must be ({len(region)}, {predictor.classes}), got {tuple(y.shape)}.")
    outward = by_name(rounding, predictor.dtype).outward
    nothing = torch.zeros(0, predictor.classes, dtype=torch.float64, device=predictor.device)
    predicted, ends = [nothing.to(predictor.dtype)], [(nothing,) * 4]
    with reporting(progress, "bounding") as report:
        for start in range(0, len(region), at_once):
            part = region.take(slice(start, start + at_once))
            read = part.to(predictor.dtype)
            box = part.outward_box(predictor.dtype) if outward else read.ideal_box()
            lower, upper = logit_bounds(predictor, box, rounding, chosen.bounds, intermediates, memory, slopes)
            mean = _mean_bounds(lower, upper, predictor.dtype if outward else None)
            ends.append((*mean, lower.amin(0), upper.amax(0)))
            with torch.no_grad():
                predicted.append(predictor(read.center))
            report(start + len(part), len(region))
    prediction = torch.cat(predicted)
    lowest, highest, network_lowest, network_highest = (torch.cat(column) for column in zip(*ends, strict=True))
    unbounded = (~torch.isfinite(highest - lowest)).any(-1).nonzero().flatten().tolist()
    return RegressionCertificate(
        predicted=prediction,
        reference=(prediction if y is None else y.to(predictor.device)).double(),
        lower=lowest,
        upper=highest,
        network_lower=network_lowest,
        network_upper=network_highest,
        tolerance=None if tolerance is None else float(tolerance),
        eps=as_radius(eps),
        domain=region.domain,
        rounding=rounding,
        provenance=provenance_of(predictor, region.center, bounds=chosen.bounds, intermediates=intermediates),
        targets_given=y is not None,
        norm=norm,
        reasons=dict.fromkeys(unbounded, UNBOUNDED),
    )


def _mean_bounds(lower: Tensor, upper: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Bound the mean over N networks as it is, and as a program of precision ``dtype`` computes it.

    The program and we average in float64, in any order, each off by at most (N + 2) 2⁻⁵³ times the mean magnitude
    (and by an underflow). The program then rounds to its precision, which is monotone: from a mean that is at least
    the bound it gets at least the rounded bound.

    Args:
        lower: (N, B, outputs), float64.
        upper: likewise.
        dtype: None for exact arithmetic.
    """
    magnitude = torch.maximum(lower.abs(), upper.abs()).mean(0)
    slack = magnitude * ((len(lower) + 16) * 2.0**-50) + 2.0**-1000
    low, high = lower.mean(0) - slack, upper.mean(0) + slack
    if dtype is None:
        return low, high
    return torch.minimum(low, low.to(dtype).double()), torch.maximum(high, high.to(dtype).double())


def _require_settings(predictor: RegressionPredictor, tolerance: float | None) -> None:
    if not isinstance(predictor, RegressionPredictor):
        raise InvalidInput(
            f"certify_regression takes a regression predictor, not {type(predictor).__name__}. A posterior fitted to "
            "targets of floats makes one: posterior.predictor(samples=35, seed=0). For networks that were trained "
            'elsewhere, set posterior.task = "regression" first. Classes are certified by certify.'
        )
    require_arithmetic(predictor)
    if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
        raise InvalidInput(f"tolerance must be a finite number >= 0, got {tolerance}.")
