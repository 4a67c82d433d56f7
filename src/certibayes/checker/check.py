"""An independent check of a certificate that was written to a file.

``certify`` proves; this room takes nothing on trust. It shares no code with the bounds and rules it checks: boxes,
layers, softmax and rules are written again, in float64 and for one network at a time (``_enclosure``). For every point
that a certificate marks it says one of three things:

- *confirmed*: the checker's own intervals prove the class;
- *not confirmed*: they do not, which is no fault of a certificate made with tighter bounds than intervals;
- *refuted*: an input in the ball was found that the predictor gives another class.

The bounds on probabilities are checked likewise. Predicted classes are computed again, counterexamples are tried, and
every word of the statement is built again from the record and compared. A file that speaks of another predictor or of
other points is not checked at all: its digests say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from certibayes.certificates import Certificate
from certibayes.certificates.certificate import parse
from certibayes.checker._arithmetic import Array
from certibayes.checker._balls import Balls, balls_of, box_around, round_balls
from certibayes.checker._belonging import mismatches
from certibayes.checker._claim import Claim
from certibayes.checker._consistency import disagreements, wrongly_attacked, wrongly_predicted
from certibayes.checker._mean import as_rounded, mean_bounds, networks_of
from certibayes.checker._search import flips, tried
from certibayes.data.points import points_of
from certibayes.errors import InvalidInput, UnsupportedLayer
from certibayes.prediction import Predictor
from certibayes.support.progress import Report, reporting
from certibayes.support.tensors import as_tensor


@dataclass(frozen=True)
class Check:
    """What became of a certificate's claims.

    Attributes:
        problems: why the file does not belong to the predictor and the points; if there are any, nothing was checked.
        contradictions: what in the file contradicts itself: its statement and its record, or two of its marks.
        claimed: points that the certificate marks, (B,).
        confirmed: points whose class was proved again, (B,).
        refuted: points it marks for which another class was found, (B,).
        bounds_confirmed: points whose bounds on probabilities were proved again, (B,).
        bounds_refuted: points with a probability outside its bounds, (B,).
        predicted_refuted: points that the predictor gives another class than the certificate says, (B,).
        attacked: points that the certificate marks as attacked, (B,).
        attacked_refuted: those whose counterexample is none, (B,).
        note: why nothing could be confirmed, where the network holds operations that the checker does not know.
    """

    problems: tuple[str, ...]
    contradictions: tuple[str, ...]
    claimed: Tensor
    confirmed: Tensor
    refuted: Tensor
    bounds_confirmed: Tensor
    bounds_refuted: Tensor
    predicted_refuted: Tensor
    attacked: Tensor
    attacked_refuted: Tensor
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the file belongs to predictor and points, its words agree, and nothing in it is refuted."""
        refuted = (self.refuted, self.bounds_refuted, self.predicted_refuted, self.attacked_refuted)
        return not (self.problems or self.contradictions or any(bool(where.any()) for where in refuted))

    @property
    def holds_strictly(self) -> bool:
        """Whether it holds and nothing is left open: every marked point and all bounds are confirmed."""
        return self.holds and bool((self.confirmed | ~self.claimed).all() and self.bounds_confirmed.all())

    def __repr__(self) -> str:
        if self.problems:
            return f"Check(not checked: {'; '.join(self.problems)})"
        counts = self.counts()
        refuted = sum(count for name, count in counts.items() if name.endswith("refuted"))
        return (
            f"Check({'holds' if self.holds else 'does not hold'}: {counts['confirmed']} of {counts['certified']} "
            f"certified points and the bounds of {counts['bounds_confirmed']} of {counts['points']} points confirmed, "
            f"{refuted} claims refuted, {len(self.contradictions)} contradictions)"
        )

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
            "predicted_refuted": int(self.predicted_refuted.sum()),
            "attacked": int(self.attacked.sum()),
            "attacked_refuted": int(self.attacked_refuted.sum()),
        }


def check_certificate(
    certificate: Certificate | Mapping[str, Any],
    predictor: Predictor,
    x: Any,
    *,
    attempts: int = 8,
    seed: int = 0,
    batch_size: int = 50,
    progress: bool | Report = False,
) -> Check:
    """Check a certificate against the predictor and the points that it should be about.

    Args:
        certificate: a certificate, or what ``Certificate.to_json`` or ``read_record`` returns.
        predictor: the one that was certified.
        x: the points (B, ...), exactly as they were certified: what ``certify`` took; targets beside them are left out.
        attempts: random corners, and as many inner points, tried against each claim.
        seed: of the random points.
        batch_size: points checked at once.
        progress: True shows a bar on standard error, False nothing; a function is called with (points done, all
            points).

    Raises:
        CorruptFile: the record is not a certificate.
    """
    if predictor.task != "classification":
        raise InvalidInput("class certificates need a classifier; this predictor does regression.")
    record = certificate.to_json() if isinstance(certificate, Certificate) else certificate
    claim = Claim.of(parse(record))
    claimed, attacked = torch.from_numpy(claim.certified), torch.from_numpy(claim.attacked)
    nothing = torch.zeros(len(claim.labels), dtype=torch.bool)
    x = as_tensor(points_of(x).x, "the points").detach()
    points = x.cpu().double().numpy()
    problems, balls = mismatches(claim, predictor, x), balls_of(claim, points)
    if problems or balls is None:
        return Check(tuple(problems), (), claimed, nothing, nothing, nothing, nothing, nothing, attacked, nothing)
    found = _Findings(predictor, claim, attempts, np.random.default_rng(seed))
    with reporting(progress, "checking") as report:
        for start in range(0, len(points), batch_size):
            found.look_at(slice(start, start + batch_size), balls)
            report(min(start + batch_size, len(points)), len(points))
    # A point that is marked was, by the meaning of the mark, predicted as its label.
    refuted = claim.certified & (found.flipped | (claim.predicted != claim.labels))
    return Check(
        problems=(),
        contradictions=tuple(disagreements(claim, record["statement"])),
        claimed=claimed,
        confirmed=torch.from_numpy(claim.certified & found.proved & ~refuted),
        refuted=torch.from_numpy(refuted),
        bounds_confirmed=torch.from_numpy(found.inside & ~found.outside),
        bounds_refuted=torch.from_numpy(found.outside),
        predicted_refuted=torch.from_numpy(wrongly_predicted(claim, predictor, x, batch_size)),
        attacked=attacked,
        attacked_refuted=torch.from_numpy(wrongly_attacked(claim, predictor, x, balls, batch_size)),
        note=found.note,
    )


class _Findings:
    """What is found out about classes and bounds, batch by batch.

    Attributes:
        proved: where the class was proved again, (B,).
        inside: where the bounds on probabilities were proved again, (B,).
        flipped: where another class was found in the ball, (B,).
        outside: where a probability outside its bounds was found, (B,).
        note: why nothing could be proved.
    """

    def __init__(self, predictor: Predictor, claim: Claim, attempts: int, rng: np.random.Generator):
        self.predictor, self.claim, self.attempts, self.rng = predictor, claim, attempts, rng
        self.networks = networks_of(predictor)
        self.proved, self.inside, self.flipped, self.outside = (np.zeros(len(claim.labels), dtype=bool) for _ in "1234")
        self.note = ""

    def look_at(self, part: slice, all_balls: Balls) -> None:
        """Prove, and try to refute, what is claimed of some points."""
        claim, balls = self.claim, all_balls.part(part)
        labels, lower, upper = claim.labels[part], claim.lower[part], claim.upper[part]
        tolerance = self._prove(part, balls)
        for probabilities, classes in tried(self.predictor, claim, balls, labels, self.attempts, self.rng):
            below, above = lower - probabilities, probabilities - upper
            self.outside[part] |= (np.maximum(below, above) > tolerance).any(1)
            self.flipped[part] |= flips(probabilities, classes, labels, tolerance)

    def _prove(self, part: slice, balls: Balls) -> Array | float:
        """Prove what can be proved, and return by how much rounding may break an ideal claim, (B, C) or a number."""
        claim, predictor, ideal = self.claim, self.predictor, self.claim.rounding == "ideal"
        box = box_around(balls, claim)
        around, labels = round_balls(balls, box, claim), claim.labels[part]
        try:
            margin, mean, loss = mean_bounds(claim.program, self.networks, predictor, box, labels, around)
            self.proved[part] = margin > 4 * claim.program.unit * (1 + math.log(predictor.classes)) + 4 * loss
            lower, upper = as_rounded(mean, loss, claim.program)
            self.inside[part] = ((claim.lower[part] <= lower) & (upper <= claim.upper[part])).all(1)
            if not ideal:
                return 0.0
            # Such bounds were themselves computed in floats: only what no rounding explains refutes them.
            _, floats, _ = mean_bounds(claim.float_program, self.networks, predictor, box, labels, around)
            wider = np.maximum(mean.lower - floats.lower, floats.upper - mean.upper)
            return 1e-9 + 4 * np.nan_to_num(wider, nan=np.inf, posinf=np.inf)
        except UnsupportedLayer as error:
            self.note = str(error)
            return math.inf if ideal else 0.0
