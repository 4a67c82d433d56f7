"""An independent check of a certificate that was written to a file.

``certify`` proves; this file doubts. It shares no code with the bounds and rules it checks: boxes, layers, softmax and
rules are written again, in float64 and for one network at a time (``certify.enclosure``). For every point that a
certificate marks it says one of three things:

- *confirmed*: the checker's own intervals prove the class;
- *not confirmed*: they do not, which is no fault of a certificate made with tighter bounds than intervals;
- *refuted*: an input in the ball was found that the predictor gives another class.

The bounds on probabilities are judged likewise. A file that speaks of another predictor or of other points is
not checked at all: its digests say so.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from certibayes.certify.arithmetic import Array, Interval, Program
from certibayes.certify.ball_enclosure import Round
from certibayes.certify.claim import FLOATS, Claim, read_certificate
from certibayes.certify.enclosure import enclose
from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.prediction import Predictor

__all__ = ["Check", "Claim", "check_certificate", "read_certificate"]


@dataclass(frozen=True)
class Check:
    """What became of a certificate's claims.

    Attributes:
        problems: why the file does not belong to the predictor and the points; if there are any, nothing was checked.
        claimed: points that the certificate marks, (B,).
        confirmed: points whose class was proved again, (B,).
        refuted: points it marks for which another class was found, (B,).
        bounds_confirmed: points whose bounds on probabilities were proved again, (B,).
        bounds_refuted: points with a probability outside its bounds, (B,).
        note: why nothing could be confirmed, where the network holds operations that the checker does not know.
    """

    problems: tuple[str, ...]
    claimed: Tensor
    confirmed: Tensor
    refuted: Tensor
    bounds_confirmed: Tensor
    bounds_refuted: Tensor
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the file belongs to predictor and points and nothing in it is refuted."""
        return not (self.problems or bool(self.refuted.any()) or bool(self.bounds_refuted.any()))

    def counts(self) -> dict[str, int]:
        """Count points by what was found."""
        points, claimed = len(self.claimed), int(self.claimed.sum())
        confirmed, refuted = int(self.confirmed.sum()), int(self.refuted.sum())
        bounds, outside = int(self.bounds_confirmed.sum()), int(self.bounds_refuted.sum())
        return {
            "points": points,
            "certified": claimed,
            "confirmed": confirmed,
            "not_confirmed": claimed - confirmed - refuted,
            "refuted": refuted,
            "bounds_confirmed": bounds,
            "bounds_not_confirmed": points - bounds - outside,
            "bounds_refuted": outside,
        }


def check_certificate(
    record: Mapping[str, Any],
    predictor: Predictor,
    x: Tensor,
    *,
    attempts: int = 8,
    seed: int = 0,
    batch_size: int = 50,
    progress: Callable[[int, int], None] | None = None,
) -> Check:
    """Check a certificate against the predictor and the points that it should be about.

    Args:
        record: from ``Certificate.to_json`` or ``read_certificate``.
        predictor: the one that was certified.
        x: the points, exactly as they were certified.
        attempts: random corners, and as many inner points, tried against each claim.
        seed: of the random points.
        batch_size: points checked at once.
        progress: called with (points done, all points).

    Raises:
        CorruptFile: the record is not a certificate.
    """
    if predictor.task != "classification":
        raise InvalidInput("class certificates need a classifier; this predictor does regression.")
    claim = Claim.from_json(record)
    problems = _mismatches(claim, predictor, x)
    count = len(claim.labels)
    nothing = torch.zeros(count, dtype=torch.bool)
    if problems:
        return Check(tuple(problems), torch.from_numpy(claim.certified), nothing, nothing, nothing, nothing)
    points = x.detach().cpu().double().numpy()
    eps = np.broadcast_to(_radii(claim.eps, points.shape), points.shape)
    networks = _networks(predictor)
    rng = np.random.default_rng(seed)
    proved, inside, flipped, outside = (np.zeros(count, dtype=bool) for _ in range(4))
    note = ""
    for start in range(0, count, batch_size):
        part = slice(start, start + batch_size)
        ball = _ball(points[part], eps[part], claim)
        around = None if claim.norm == "linf" else _round_ball(points[part], eps[part], ball, claim)
        tolerance: Array | float = 0.0
        try:
            margin, mean, loss = _mean_bounds(claim.program, networks, predictor, ball, claim.labels[part], around)
            proved[part] = margin > 4 * claim.program.unit * (1 + math.log(predictor.classes)) + 4 * loss
            lower, upper = _as_rounded(mean, loss, claim)
            inside[part] = ((claim.lower[part] <= lower) & (upper <= claim.upper[part])).all(1)
            if claim.rounding == "ideal":
                # Such bounds were themselves computed in floats: only what no rounding explains refutes them.
                _, floats, _ = _mean_bounds(claim.float_program, networks, predictor, ball, claim.labels[part], around)
                tolerance = 1e-9 + 4 * np.nan_to_num(
                    np.maximum(mean.lower - floats.lower, floats.upper - mean.upper), nan=np.inf, posinf=np.inf
                )
        except UnsupportedLayer as error:
            note, tolerance = str(error), math.inf if claim.rounding == "ideal" else 0.0
        tried = _tried(predictor, claim, points[part], eps[part], claim.labels[part], attempts, rng)
        for probabilities, classes in tried:
            below, above = claim.lower[part] - probabilities, probabilities - claim.upper[part]
            outside[part] |= (np.maximum(below, above) > tolerance).any(1)
            flipped[part] |= _flips(probabilities, classes, claim.labels[part], tolerance)
        if progress is not None:
            progress(min(start + batch_size, count), count)
    # A point that is marked was, by the meaning of the mark, predicted as its label.
    refuted = claim.certified & (flipped | (claim.predicted != claim.labels))
    return Check(
        problems=(),
        claimed=torch.from_numpy(claim.certified),
        confirmed=torch.from_numpy(claim.certified & proved & ~refuted),
        refuted=torch.from_numpy(refuted),
        bounds_confirmed=torch.from_numpy(inside & ~outside),
        bounds_refuted=torch.from_numpy(outside),
        note=note,
    )


# Does the file belong to the predictor and the points?


def _mismatches(claim: Claim, predictor: Predictor, x: Tensor) -> list[str]:
    found = []
    if _predictor_digest(predictor) != claim.digest:
        found.append("the certificate is about another predictor: the digest of network and weight samples differs")
    if _inputs_digest(x) != claim.inputs_digest or len(x) != len(claim.labels):
        found.append("the certificate is about other points: their digest differs")
    if (dtype := str(predictor.dtype).removeprefix("torch.")) != claim.dtype:
        found.append(f"the certificate is about a {claim.dtype} program, and this one runs in {dtype}")
    if predictor.size != claim.samples:
        found.append(f"the certificate speaks of {claim.samples} weight samples, and there are {predictor.size}")
    if len(claim.labels) and claim.lower.shape[1:] != (predictor.classes,):
        found.append(f"the certificate's bounds are not about {predictor.classes} classes")
    if len(claim.labels) and (claim.labels.min() < 0 or claim.labels.max() >= predictor.classes):
        found.append("the certificate names classes that the predictor does not have")
    if not found and _radii(claim.eps, tuple(x.shape)) is None:
        found.append(f"the certificate's radii of shape {claim.eps.shape} do not fit the points")
    if not found and claim.domain is not None and x.numel():
        # Compared in the program's precision: float32(0.1) is a little more than 0.1 and still the domain's end.
        low, high = (FLOATS[claim.dtype](end) for end in claim.domain)
        values = x.detach().to(predictor.dtype)
        if float(values.min()) < low or float(values.max()) > high:
            found.append(f"points lie outside the domain {claim.domain} that the certificate states")
    return found


def _predictor_digest(predictor: Predictor) -> str:
    """Compute the digest anew; the predictor's own may be remembered from before a change."""
    sha = hashlib.sha256(json.dumps(predictor.graph.to_json(), sort_keys=True).encode())
    for name, tensor in sorted(predictor.samples.items()):
        sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        sha.update(tensor.detach().cpu().numpy().tobytes())
    return sha.hexdigest()


def _inputs_digest(x: Tensor) -> str:
    sha = hashlib.sha256(f"inputs:{x.dtype}:{tuple(x.shape)};".encode())
    sha.update(x.detach().cpu().numpy().tobytes())
    return sha.hexdigest()


def _radii(eps: Array, shape: tuple[int, ...]) -> Any:
    """Shape radii so that they broadcast to the points, or return None: one for all, one for each, or as they are."""
    if eps.shape == shape[:1]:
        return eps.reshape(-1, *(1,) * (len(shape) - 1))
    try:
        fits = np.broadcast_shapes(eps.shape, shape) == shape
    except ValueError:
        fits = False
    return eps if fits else None


# Proving again


def _networks(predictor: Predictor) -> list[dict[str, Any]]:
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in predictor.samples.items()}
    return [{name: array[index] for name, array in arrays.items()} for index in range(predictor.size)]


def _ball(x: Array, eps: Array, claim: Claim) -> Interval:
    """Enclose every input that the claim is about, as the program reads it; no norm is smaller than l-infinity."""
    lower = np.where(eps > 0, np.nextafter(x - eps, -np.inf), x)
    upper = np.where(eps > 0, np.nextafter(x + eps, np.inf), x)
    if claim.domain is not None:
        # The point itself is an input, also where it is the rounded end of the domain.
        lower = np.maximum(lower, np.minimum(claim.domain[0], x))
        upper = np.minimum(upper, np.maximum(claim.domain[1], x))
    if claim.rounding == "ideal":
        return Interval(lower, upper)
    # The program rounds its input to its own precision. Rounding is monotone: no input passes a rounded end.
    read = FLOATS[claim.dtype]
    return Interval(lower.astype(read).astype(np.float64), upper.astype(read).astype(np.float64))


def _round_ball(x: Array, eps: Array, box: Interval, claim: Claim) -> Round:
    """The ball of the claim; what reading an input rounds is its slack, a unit of its size."""
    radius = eps.reshape(len(x), -1).max(1) * (1 + 2.0**-50)
    units = 0.0 if claim.rounding == "ideal" else 4 * claim.program.unit
    slack = units * np.maximum(box.size, np.abs(x)) + claim.program.tiny
    return Round(x, radius, {"l2": 2, "l1": 1}[claim.norm], np.ones_like(x[:1]), slack)


def _mean_bounds(
    program: Program,
    networks: list[dict[str, Any]],
    predictor: Predictor,
    ball: Interval,
    labels: Any,
    around: Round | None = None,
) -> tuple[Array, Interval, Array]:
    """Bound the mean prediction.

    Returns:
        A lower bound (B,) on how much more probable the label is than any other class, by the better of two rules;
        bounds (B, C) on the probabilities; and the relative error (B,) that is accounted for in both, which is
        also more than what the predictor's softmax, mean and logarithm lose. NaN where nothing is known.
    """
    points, classes, count = len(labels), predictor.classes, len(networks)
    lowest, highest, pairs = (np.zeros((points, classes)) for _ in range(3))
    largest, known = np.zeros((points, 1)), np.ones(points, dtype=bool)
    for params in networks:
        logits, fine = enclose(predictor.graph, params, ball, program, around)
        logits = Interval(logits.lower.reshape(points, -1), logits.upper.reshape(points, -1))
        known &= fine
        with np.errstate(all="ignore"):
            low, high = _softmax_bounds(logits)
            lowest, highest = lowest + low, highest + high
            pairs = pairs + _smallest_lead(logits, labels)
            largest = np.maximum(largest, logits.size.max(1, keepdims=True))
    # An exponent of size 2 z is off by 2 z units, each sum of n terms by n: four times what all steps add up to.
    loss = 2.0**-51 * (4 * largest + 2 * classes + count + 16)
    with np.errstate(all="ignore"):
        loss = np.where(known[:, None] & (loss < 0.5), loss, np.nan)
        mean = Interval(lowest / count * (1 - loss), np.minimum(highest / count * (1 + loss) + 1e-300, 1.0))
        label = labels[:, None] == np.arange(classes)
        apart = np.where(label, mean.lower, -np.inf).max(1) - np.where(label, -np.inf, mean.upper).max(1)
        together = np.where(label, np.inf, pairs / count - 2 * loss).min(1)
        # One of the two suffices. NaN, where nothing is known, exceeds nothing.
        return np.maximum(apart, together), mean, loss[:, 0]


def _softmax_bounds(z: Interval) -> tuple[Array, Array]:
    """σ_c = 1 / (1 + Σ exp(z_j - z_c)), j ≠ c: lowest with z_c at its lower end and the rest at their upper ends."""
    own = np.eye(z.lower.shape[1], dtype=bool)
    against = np.where(own, 0.0, np.exp(z.upper[:, None, :] - z.lower[:, :, None])).sum(2)
    beside = np.where(own, 0.0, np.exp(z.lower[:, None, :] - z.upper[:, :, None])).sum(2)
    return 1.0 / (1.0 + against), 1.0 / (1.0 + beside)


def _smallest_lead(z: Interval, labels: Any) -> Array:
    """For each class c, the smallest σ_y - σ_c over the box of logits, (B, C).

    It grows with z_y and falls with z_c. With those two at their ends it is (e^y - e^c) / (e^y + e^c + rest), which is
    monotone in the rest: the smaller of both ends of the rest is the minimum.
    """
    classes = np.arange(z.lower.shape[1])
    own = np.take_along_axis(z.lower, labels[:, None], 1)
    top = np.maximum(own, z.upper)
    label, rival = np.exp(own - top), np.exp(z.upper - top)
    # others[b, c, j]: j is neither the label nor c.
    others = (classes != labels[:, None])[:, None, :] & ~np.eye(len(classes), dtype=bool)
    leads = []
    for end in z:
        rest = np.where(others, np.exp(end[:, None, :] - top[:, :, None]), 0.0).sum(2)
        leads.append((label - rival) / (label + rival + rest))
    return np.minimum(*leads)


def _as_rounded(mean: Interval, loss: Array, claim: Claim) -> tuple[Array, Array]:
    """Bounds on the probabilities as the program returns them: rounded once more, to its own precision."""
    if claim.rounding == "ideal":
        return mean.lower, mean.upper
    unit, tiny = claim.program.unit, claim.program.tiny
    slack = 2 * loss[:, None] + 2 * unit
    return np.maximum(mean.lower * (1 - slack) - tiny, 0.0), mean.upper * (1 + slack) + tiny


# Refuting


def _tried(
    predictor: Predictor, claim: Claim, x: Array, eps: Array, labels: Any, attempts: int, rng: np.random.Generator
) -> Iterator[tuple[Array, Any]]:
    """Yield probabilities (B, C) and predicted classes (B,) of inputs in the ball: what the claim must survive."""
    subject = predictor
    if claim.rounding == "ideal":
        subject = Predictor(predictor.graph, {name: t.double() for name, t in predictor.samples.items()})
    read = FLOATS[str(subject.dtype).removeprefix("torch.")]

    def moved(direction: Any) -> Array:
        """Go from x by eps times a direction in [-1, 1], and stay inside the ball and the domain also in floats."""
        if claim.norm != "linf":
            return moved_in_ball(np.broadcast_to(direction, x.shape))
        target = x + eps * direction
        low, high = (-np.inf, np.inf) if claim.domain is None else claim.domain
        there, home = np.clip(target, low, high).astype(read), x.astype(read)

        def allowed(point: Any) -> Any:
            return (np.abs(point - x) <= eps * (1 - 2.0**-50)) & (low <= point) & (point <= high)

        there = np.where(allowed(there.astype(np.float64)), there, np.nextafter(there, home))
        return np.where(allowed(there.astype(np.float64)), there, home)

    def moved_in_ball(direction: Any) -> Any:
        """The same for l2, along the direction, and for l1, along the coordinate in which it is largest."""
        flat = direction.reshape(len(x), -1)
        if claim.norm == "l1":
            flat = np.where(np.arange(flat.shape[1]) == np.abs(flat).argmax(1)[:, None], flat, 0.0)
        order, there = {"l2": 2, "l1": 1}[claim.norm], x.astype(read)
        unit = (flat / (np.linalg.norm(flat, order, axis=1, keepdims=True) + 1e-300)).reshape(x.shape)
        low, high = (-np.inf, np.inf) if claim.domain is None else claim.domain
        for share in (0.9, 1 - 2.0**-20, 1 - 2.0**-40):
            point = np.clip(x + eps * share * unit, low, high).astype(read)
            away = (point.astype(np.float64) - x).reshape(len(x), -1)
            near = np.linalg.norm(away, order, axis=1) <= eps.reshape(len(x), -1).min(1) * (1 - 2.0**-40)
            inside = near & ((low <= point) & (point <= high)).reshape(len(x), -1).all(1)
            there = np.where(inside.reshape(-1, *(1,) * (x.ndim - 1)), point, there)
        return there

    def judged(point: Any) -> tuple[Array, Any]:
        with torch.no_grad():
            given = torch.from_numpy(point).to(subject.device)
            return subject.probabilities(given).double().cpu().numpy(), subject.predict(given).cpu().numpy()

    yield judged(x.astype(read))
    yield judged(moved(-1.0))
    yield judged(moved(1.0))
    for _ in range(attempts):
        yield judged(moved(rng.choice([-1.0, 1.0], x.shape)))
        yield judged(moved(rng.uniform(-1.0, 1.0, x.shape)))
    point = moved(0.0)
    for _ in range(4):  # against the label's lead, from corner to corner
        given = torch.from_numpy(point).to(subject.device).requires_grad_(True)
        scores = subject(given)
        is_label = torch.from_numpy(labels).to(scores.device)[:, None] == torch.arange(
            scores.shape[1], device=scores.device
        )
        lead = scores.masked_fill(~is_label, 0.0).sum(1) - scores.masked_fill(is_label, -torch.inf).logsumexp(1)
        (gradient,) = torch.autograd.grad(lead.sum(), given)
        steepest = gradient.sign() if claim.norm == "linf" else gradient
        point = moved(-np.nan_to_num(steepest.double().cpu().numpy()))
        yield judged(point)


def _flips(probabilities: Array, classes: Any, labels: Any, tolerance: Array | float) -> Any:
    """Where another class wins, by more than what rounding explains."""
    rows = np.arange(len(labels))
    lead = probabilities[rows, classes] - probabilities[rows, labels]
    allowed = 2 * np.max(np.broadcast_to(tolerance, probabilities.shape), axis=1)
    # In the program itself nothing needs to be explained: classes decide, also where rounded probabilities tie.
    return (classes != labels) & ((lead > allowed) | (allowed == 0.0))
