"""``certify``: a predictor and balls of inputs in, a certificate out."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from certibayes.bounds import by_name
from certibayes.bounds.checks import labels_of, require_classes, require_count
from certibayes.certificates import Certificate
from certibayes.certify.border import region_for
from certibayes.certify.judge import ALL_RULES, Judge
from certibayes.certify.network_bounds import BOUNDS, INTERMEDIATES, MEMORY
from certibayes.certify.origin import provenance_of
from certibayes.certify.points import Points
from certibayes.errors import InvalidInput
from certibayes.posteriors import Posterior
from certibayes.prediction import Predictor
from certibayes.regions import Domain, as_radius

DEFAULT_BOUNDS = {"joint": "crown", "best": "hull"}
"""By rule; ``"ibp"`` for all others."""


def certify(
    predictor: Predictor,
    x: Tensor,
    y: Tensor | None = None,
    *,
    eps: float | Tensor,
    norm: str = "linf",
    bounds: str | None = None,
    rule: str = "theorem1",
    domain: Domain = None,
    rounding: str = "outward",
    batch_size: int = 500,
    memory: int = MEMORY,
    intermediates: str = "ibp",
    budget: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Certificate:
    """Prove, where possible, that no input within ``eps`` of a point changes its class.

    Args:
        predictor: from ``posterior.predictor(samples, seed)``; the certificate is about exactly these samples.
        x: points (B, ...), inside the domain.
        y: labels (B,); a point is certified if the ball is classified as its label. By default the predicted classes.
        eps: radius: a number; one per point, (B,); or, in l-infinity, one per input value, (1, *shape) or (B, *shape);
            where it is 0, the input does not change.
        norm: in which distances from the point are measured: ``"linf"``, ``"l2"`` or ``"l1"``.
        bounds: ``"ibp"``, ``"crown"``, ``"alpha-crown"`` or ``"hull"``; for the rule ``best`` the tightest that may be
            tried. By default ``"ibp"``, for ``joint`` ``"crown"``, and for ``best`` ``"hull"``.
        rule: ``"theorem1"``, ``"pairwise"``, ``"elided"``, ``"joint"`` or ``"best"``, each at least as strong as the
            one before (but ``best`` optimises only against the rivals that keep a point open, the others against all).
            ``joint`` needs linear bounds.
        domain: smallest and largest value an input can take; the ball is intersected with it. Two numbers, or, where
            features differ, tensors of shape (1, *shape) or (B, *shape); None for no limit.
        rounding: ``"outward"`` for a proof about the float program, ``"ideal"`` for exact arithmetic.
        batch_size: points bounded at once.
        memory: bytes that linear bounds may take, with all that they keep of the layers in between; they go through a
            batch in smaller parts where they must.
        intermediates: what linear bounds know of the layers in between: ``"ibp"`` for intervals, ``"crown"`` for what
            CROWN itself says of them, which is tighter in deep networks and costs far more. Not with ``bounds="ibp"``.
        budget: seconds for attacks and branch and bound on points that the bounds leave open (rule ``best``). What is
            found is in ``certificate.attacked`` and ``certificate.counterexamples``; points that are neither certified
            nor attacked are unknown. What the bounds themselves take comes on top; ``"crown"`` is quick. Without a
            budget, points that the first networks show to be far out of reach are spared the costly bounds.
        progress: called with (points done, all points).

    Raises:
        InvalidInput: the points, labels or settings cannot be used.
        UnsoundBounds: a bound came out NaN, infinite or inverted; nothing is concluded from it.
    """
    bounds = DEFAULT_BOUNDS.get(rule, "ibp") if bounds is None else bounds
    require_predictor(predictor)
    _require_settings(bounds, rule, batch_size)
    require_count(memory, "memory")
    _require_intermediates(intermediates, bounds)
    require_budget(budget, rule)
    region = region_for(predictor, x, eps, norm, domain)
    x = region.center.to(predictor.dtype)
    rounding_mode = by_name(rounding, predictor.dtype)
    predicted = predictor.predict(x, batch_size) if len(x) else torch.zeros(0, dtype=torch.int64)
    labels = predicted if y is None else labels_of(y, predictor.classes, len(x)).to(predicted.device)
    slack = _predictor_slack(predictor) if rounding_mode.outward else 0.0
    vanishing = torch.finfo(predictor.dtype).smallest_normal if rounding_mode.outward else 0.0
    judge = Judge(predictor, bounds, rule, rounding, slack, memory, intermediates)
    certified, lowest, highest, attacked, counterexamples = [], [], [], [], []
    done, spent = 0, 0.0
    for start in range(0, len(x), batch_size):
        index = slice(start, start + batch_size)
        part, part_labels, part_predicted = region.take(index), labels[index], predicted[index]
        read = part.to(predictor.dtype)
        box = part.outward_box(predictor.dtype) if rounding_mode.outward else read.ideal_box()
        # Each batch has its share of the time that earlier ones have left.
        share = None if budget is None else (budget - spent) * len(part) / (len(x) - done)
        verdict = judge(Points(read, part_labels, part_predicted, box), share)
        spent += verdict.spent
        smallest, largest = verdict.means
        proved = verdict.margin > 2 * slack
        broken, inputs = verdict.attacked, verdict.inputs
        if budget is not None and torch.promote_types(part.center.dtype, predictor.dtype) != predictor.dtype:
            # The ball is around the points as they were given, not as a coarser predictor reads them.
            inputs = part.project(inputs.to(part.center.dtype))
            broken = broken & (predictor.predict(inputs) != part_labels)
        attacked.append(broken)
        counterexamples.append(inputs)
        # In exact arithmetic this is implied; in ideal rounding a tie of the float program might differ.
        certified.append(proved & (part_predicted == part_labels))
        # Probabilities below the smallest normal float lose digits and then vanish.
        lowest.append((smallest * (1 - slack) - vanishing).clamp(min=0.0))
        highest.append((largest * (1 + slack) + vanishing).clamp(max=1.0 + slack))
        done += len(part)
        if progress is not None:
            progress(done, len(x))
    return Certificate(
        labels=labels,
        predicted=predicted,
        certified=_joined(certified, torch.zeros(0, dtype=torch.bool)),
        lower=_joined(lowest, torch.zeros(0, predictor.classes, dtype=torch.float64)),
        upper=_joined(highest, torch.zeros(0, predictor.classes, dtype=torch.float64)),
        eps=as_radius(eps),
        norm=norm,
        domain=region.domain,
        rounding=rounding,
        provenance=provenance_of(predictor, region.center, bounds=bounds, rule=rule, intermediates=intermediates),
        attacked=None if budget is None else _joined(attacked, torch.zeros(0, dtype=torch.bool)),
        counterexamples=None if budget is None else _joined(counterexamples, region.center),
        spent=None if budget is None else spent,
    )


def _predictor_slack(predictor: Predictor) -> float:
    """Relative change that rounding the predictor's last step can make, with room to spare.

    Logits are bounded as the float program computes them. Softmax, mean and logarithm run in float64 and are
    rounded once to the predictor's precision, which is monotone but may produce a tie; a class that leads by more
    than 2 slack in probability leads by more than the float spacing at log p <= log C.
    """
    unit = torch.finfo(predictor.dtype).eps / 2
    return 4 * unit * (1 + math.log(predictor.classes)) + 2.0**-50 * (predictor.size + 16)


def require_predictor(predictor: Predictor) -> None:
    """Raise unless it is a predictor whose classes can be certified; say how to make one."""
    if isinstance(predictor, Posterior):
        raise InvalidInput(
            "certificates are about fixed weight samples. Draw them first: "
            "certify(posterior.predictor(samples=35, seed=0), ...)."
        )
    if not isinstance(predictor, Predictor):
        raise InvalidInput(
            f"certify takes a Predictor, not {type(predictor).__name__}. For a single network write "
            "certibayes.Point(net).predictor(); for several, certibayes.Samples.from_modules([...]).predictor(n)."
        )
    if predictor.task != "classification":
        raise InvalidInput("class certificates need a classifier; this predictor does regression.")
    require_classes(predictor.classes)
    if predictor.dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"certificates need float32 or float64 precision, this predictor runs in {predictor.dtype}.")
    if predictor.device.type not in ("cpu", "cuda"):
        raise InvalidInput(f"certificates are made on cpu or cuda, whose arithmetic is known; not {predictor.device}.")


def require_budget(budget: float | None, rule: str) -> None:
    """Raise unless there is none, or some seconds and a rule that can use them."""
    if budget is not None and not (math.isfinite(budget) and budget > 0 and rule == "best"):
        raise InvalidInput(f"budget is a positive number of seconds, and only the rule best can use it; got {budget}.")


def _require_intermediates(intermediates: str, bounds: str) -> None:
    if intermediates not in INTERMEDIATES:
        raise InvalidInput(f"intermediates must be one of {', '.join(INTERMEDIATES)}, got {intermediates!r}.")
    if intermediates != "ibp" and bounds == "ibp":
        raise InvalidInput(
            f"intermediates={intermediates!r} is for linear bounds; ibp has intervals in every layer. "
            'Take bounds="crown", "alpha-crown" or "hull" with it.'
        )


def _require_settings(bounds: str, rule: str, batch_size: int) -> None:
    if bounds not in BOUNDS:
        raise InvalidInput(f"bounds must be one of {', '.join(BOUNDS)}, got {bounds!r}.")
    if rule == "joint" and bounds == "ibp":
        raise InvalidInput('the rule joint needs linear bounds: bounds="crown", "alpha-crown" or "hull".')
    if rule not in ALL_RULES:
        raise InvalidInput(f"rule must be one of {', '.join(ALL_RULES)}, got {rule!r}.")
    require_count(batch_size, "batch_size")


def _joined(parts: list[Tensor], empty: Tensor) -> Tensor:
    return torch.cat(parts) if parts else empty
