"""``certify_regression``: how far a prediction can move within a ball.

Each network's outputs are bounded over the ball, l_i <= f^{w_i}(x) <= u_i. The predictive mean then lies between the
means of the l_i and of the u_i, and no network of the predictor leaves [min_i l_i, max_i u_i]. This is the certificate
that belongs to the robust Gaussian likelihood (Remark 1 of Wicker et al., 2021), which trains on the same extremes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from certibayes._version import __version__
from certibayes.bounds import by_name
from certibayes.bounds.checks import inputs_of, require_count
from certibayes.certify.border import region_for
from certibayes.certify.certificate import DISTANCES
from certibayes.certify.network_bounds import logit_bounds
from certibayes.errors import InvalidInput
from certibayes.posteriors.storage import tensor_digest
from certibayes.prediction import RegressionPredictor
from certibayes.regions import Domain, as_radius, domain_in_words, domain_to_json


@dataclass(frozen=True)
class RegressionCertificate:
    """What was proved about the predictions for a batch of points.

    Attributes:
        predicted: predictive mean at the point itself, (B, outputs).
        reference: what deviations are measured from: the targets where they were given, else ``predicted``; float64.
        lower: the predictive mean is at least this over the ball, float64 (B, outputs).
        upper: at most this, float64 (B, outputs).
        network_lower: every single network's output is at least this over the ball, float64 (B, outputs).
        network_upper: at most this, float64 (B, outputs).
        tolerance: allowed deviation, or None.
        eps: radius, or radii.
        domain: inputs are known to lie in it; None for all of space.
        bounds: how networks were bounded.
        rounding: ``"outward"`` if the proof holds for the float program, ``"ideal"`` if for exact arithmetic only.
        samples: number N of weight samples of the predictor.
        dtype: precision of the predictor.
        digest: SHA-256 of the predictor.
        inputs_digest: SHA-256 of the points, as ``tensor_digest({"inputs": x})`` computes it.
        targets_given: whether the reference are targets.
        version: of certibayes.
        norm: of the distance from the point: ``"linf"``, ``"l2"`` or ``"l1"``.
    """

    predicted: Tensor
    reference: Tensor
    lower: Tensor
    upper: Tensor
    network_lower: Tensor
    network_upper: Tensor
    tolerance: float | None
    eps: float | Tensor
    domain: Domain
    bounds: str
    rounding: str
    samples: int
    dtype: str
    digest: str
    inputs_digest: str
    targets_given: bool
    version: str = __version__
    norm: str = "linf"

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.predicted)

    @property
    def deviation(self) -> Tensor:
        """Over the ball the predictive mean is never further than this from the reference, float64 (B, outputs)."""
        largest = torch.maximum(self.upper - self.reference, self.reference - self.lower)
        return largest * (1 + 2.0**-50)  # the subtraction rounds

    @property
    def certified(self) -> Tensor | None:
        """Where no output deviates by more than the tolerance, (B,); None without a tolerance."""
        return None if self.tolerance is None else (self.deviation <= self.tolerance).all(-1)

    @property
    def certified_fraction(self) -> float | None:
        """Fraction of all points that are certified; None without a tolerance."""
        certified = self.certified
        if certified is None:
            return None
        return float(certified.double().mean()) if len(self) else 0.0

    @property
    def statement(self) -> str:
        """What was proved, in words."""
        where = domain_in_words(self.domain)
        program = (
            f"the {self.dtype} program that evaluates it by direct sums (no TF32, no autocast), in any batch size "
            "and on any number of threads"
            if self.rounding == "outward"
            else "the predictor in exact arithmetic; rounding of the program that runs is not accounted for"
        )
        marked = (
            ""
            if self.tolerance is None
            else f"For each point marked certified, it is nowhere further than {self.tolerance!r} from "
            f"{'the target' if self.targets_given else 'the prediction at the point itself (predicted)'}. "
        )
        return (
            f"For every point and every input{where} within {self._distance} of it, the predictive mean "
            f" of the {self.samples} fixed weight sample{'s' if self.samples != 1 else ''} with digest "
            f"sha256:{self.digest[:16]} lies between lower and upper, and the output of each of these networks between "
            f"network_lower and network_upper. {marked}"
            f"Proved by {self.bounds} bounds, for {program}. "
            "Nothing is said about observation noise, other weight samples, other radii or other kinds of change."
        )

    @property
    def _distance(self) -> str:
        if isinstance(self.eps, Tensor):
            return f"the given {DISTANCES[self.norm]} radii, up to {float(self.eps.max()) if len(self) else 0.0!r},"
        return f"{DISTANCES[self.norm]} distance {self.eps!r}"

    def __repr__(self) -> str:
        certified = self.certified
        what = "" if certified is None else f"{int(certified.sum())} of "
        within = "" if certified is None else f" certified up to {self.tolerance:g}"
        return f"RegressionCertificate({what}{len(self)} points{within} within {self._distance}, {self.rounding})"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings."""
        fields = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(self).items()}
        certified = self.certified
        return {
            "statement": self.statement,
            **fields,
            "domain": domain_to_json(self.domain),
            "deviation": self.deviation.tolist(),
            "certified": None if certified is None else certified.tolist(),
        }


def certify_regression(
    predictor: RegressionPredictor,
    x: Tensor,
    y: Tensor | None = None,
    *,
    eps: float | Tensor,
    norm: str = "linf",
    tolerance: float | None = None,
    bounds: str = "ibp",
    domain: Domain = None,
    rounding: str = "outward",
    batch_size: int = 500,
    progress: Callable[[int, int], None] | None = None,
) -> RegressionCertificate:
    """Bound the predictive mean, and the outputs of every network, over all inputs within ``eps`` of a point.

    Args:
        predictor: of a posterior that was fitted to targets of floats.
        x: points (B, ...), inside the domain.
        y: targets (B, outputs), if deviations are to be measured from them; by default from the prediction at x.
        eps: radius: a number; one per point, (B,); or, in l-infinity, one per input value; see ``certify``.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        tolerance: deviation up to which a point is certified.
        bounds: ``"ibp"`` or ``"crown"``.
        domain: smallest and largest value an input can take; the ball is intersected with it; see ``certify``.
        rounding: ``"outward"`` for a proof about the float program, ``"ideal"`` for exact arithmetic.
        batch_size: points bounded at once.
        progress: called with (points done, all points).

    Raises:
        InvalidInput: the points, targets or settings cannot be used.
        UnsoundBounds: a bound came out NaN, infinite or inverted; nothing is concluded from it.
    """
    _require_settings(predictor, bounds, tolerance, batch_size)
    region = region_for(predictor, x, eps, norm, domain)
    if y is not None:
        y = inputs_of(y, "the targets")
        if tuple(y.shape) != (len(region), predictor.classes):
            raise InvalidInput(f"targets must be ({len(region)}, {predictor.classes}), got {tuple(y.shape)}.")
    outward = by_name(rounding, predictor.dtype).outward
    nothing = torch.zeros(0, predictor.classes, dtype=torch.float64, device=predictor.device)
    predicted, ends = [nothing.to(predictor.dtype)], [(nothing,) * 4]
    for start in range(0, len(region), batch_size):
        part = region.take(slice(start, start + batch_size))
        read = part.to(predictor.dtype)
        box = part.outward_box(predictor.dtype) if outward else read.ideal_box()
        lower, upper = logit_bounds(predictor, box, rounding=rounding, bounds=bounds)
        ends.append((*_mean_bounds(lower, upper, predictor.dtype if outward else None), lower.amin(0), upper.amax(0)))
        with torch.no_grad():
            predicted.append(predictor(read.center))
        if progress is not None:
            progress(sum(map(len, predicted)), len(region))
    prediction = torch.cat(predicted)
    lowest, highest, network_lowest, network_highest = (torch.cat(column) for column in zip(*ends, strict=True))
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
        bounds=bounds,
        rounding=rounding,
        samples=predictor.size,
        dtype=str(predictor.dtype).removeprefix("torch."),
        digest=predictor.digest,
        inputs_digest=tensor_digest({"inputs": region.center}),
        targets_given=y is not None,
        norm=norm,
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


def _require_settings(predictor: RegressionPredictor, bounds: str, tolerance: float | None, batch_size: int) -> None:
    if not isinstance(predictor, RegressionPredictor):
        raise InvalidInput(
            f"certify_regression takes a regression predictor, not {type(predictor).__name__}. A posterior fitted to "
            "targets of floats makes one: posterior.predictor(samples=35, seed=0); classes are certified by certify."
        )
    if predictor.dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"certificates need float32 or float64 precision, this predictor runs in {predictor.dtype}.")
    if predictor.device.type not in ("cpu", "cuda"):
        raise InvalidInput(f"certificates are made on cpu or cuda, whose arithmetic is known; not {predictor.device}.")
    if bounds not in ("ibp", "crown"):
        raise InvalidInput(f"bounds must be ibp or crown, got {bounds!r}.")
    require_count(batch_size, "batch_size")
    if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
        raise InvalidInput(f"tolerance must be a finite number >= 0, got {tolerance}.")
