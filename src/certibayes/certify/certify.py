"""``certify``: a predictor and balls of inputs in, a certificate out."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from certibayes.bounds import LARGEST, Box, Domain, by_name, ideal_box, interval_bounds, outward_box, within_range
from certibayes.bounds.checks import require_count, require_domain, require_floats, require_labels, require_radius
from certibayes.certify.certificate import Certificate
from certibayes.certify.rules import RULES, mean_probability_bounds
from certibayes.errors import InvalidInput, UnsoundBounds
from certibayes.networks import Node, direct_sums
from certibayes.networks.operations import Reshape
from certibayes.networks.samples import each
from certibayes.posteriors import Posterior
from certibayes.prediction import Predictor

BOUNDS = ("ibp",)


def certify(
    predictor: Predictor,
    x: Tensor,
    y: Tensor | None = None,
    *,
    eps: float,
    bounds: str = "ibp",
    rule: str = "theorem1",
    domain: Domain = None,
    rounding: str = "outward",
    batch_size: int = 500,
    progress: Callable[[int, int], None] | None = None,
) -> Certificate:
    """Prove, where possible, that no input within ``eps`` of a point changes its class.

    Args:
        predictor: from ``posterior.predictor(samples, seed)``; the certificate is about exactly these samples.
        x: points (B, ...), inside the domain.
        y: labels (B,); a point is certified if the ball is classified as its label. By default the predicted classes.
        eps: l-infinity radius.
        bounds: ``"ibp"``.
        rule: ``"theorem1"`` or ``"pairwise"``.
        domain: smallest and largest value an input can take; the ball is intersected with it.
        rounding: ``"outward"`` for a proof about the float program, ``"ideal"`` for exact arithmetic.
        batch_size: points bounded at once.
        progress: called with (points done, all points).

    Raises:
        InvalidInput: the points, labels or settings cannot be used.
        UnsoundBounds: a bound came out NaN, infinite or inverted; nothing is concluded from it.
    """
    _require_settings(predictor, bounds, rule, batch_size)
    require_radius(eps)
    require_floats(x, "the points")
    given = x.detach().to(predictor.device)
    x = given.to(predictor.dtype)
    predictor.graph.require_input(x)
    require_domain(x, domain)
    if x.numel() and float(x.abs().max()) + eps > LARGEST:
        raise InvalidInput("the points are beyond 2^30, where underflow is not accounted for. Scale them.")
    rounding_mode = by_name(rounding, predictor.dtype)
    predicted = predictor.predict(x, batch_size) if len(x) else torch.zeros(0, dtype=torch.int64)
    labels = predicted if y is None else y.to(predicted.device)
    require_labels(labels, predictor.classes, len(x))
    slack = _predictor_slack(predictor) if rounding_mode.outward else 0.0
    vanishing = torch.finfo(predictor.dtype).smallest_normal if rounding_mode.outward else 0.0
    certified, lowest, highest = [], [], []
    done = 0
    parts = zip(*(tensor.split(batch_size) for tensor in (given, labels, predicted)), strict=True)
    for part, part_labels, part_predicted in parts:
        if len(part) == 0:
            continue
        if rounding_mode.outward:
            box = outward_box(part, eps, domain, predictor.dtype)
        else:
            box = ideal_box(part.to(predictor.dtype), eps, domain)
        lower, upper = logit_bounds(predictor, box, rounding)
        smallest, largest = mean_probability_bounds(lower, upper)
        margin = RULES[rule](lower, upper, part_labels.to(lower.device), (smallest, largest))
        proved = margin > 2 * slack
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
        eps=float(eps),
        domain=domain,
        bounds=bounds,
        rule=rule,
        rounding=rounding,
        samples=predictor.size,
        dtype=str(predictor.dtype).removeprefix("torch."),
        digest=predictor.digest,
    )


@torch.no_grad()
def logit_bounds(predictor: Predictor, box: Box, rounding: str = "outward") -> tuple[Tensor, Tensor]:
    """Bound the logits of every network of a predictor.

    Returns:
        Lower and upper ends in float64, (N, B, C).

    Raises:
        UnsoundBounds: they are not finite, or inverted.
    """
    mode = by_name(rounding, predictor.dtype)

    def bound(params: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        sound = torch.ones((), dtype=torch.bool, device=predictor.device)

        def watch(node: Node, boxes: tuple[Box, ...], output: Box) -> Box:
            # An overflow can hide behind a bounded activation, so every layer is looked at.
            nonlocal sound
            if not isinstance(node.operation, Reshape):
                sound = sound & within_range(output)
            return output

        output = interval_bounds(predictor.graph, params, box, mode, watch)
        return output.centre, output.radius, sound

    lower, upper, flags = [], [], []
    with direct_sums():
        for centre, radius, sound in each(bound, predictor.samples):
            low, high = Box(centre, radius).ends()
            lower.append(low)
            upper.append(high)
            flags.append(sound)
    lows, highs = torch.cat(lower), torch.cat(upper)
    if not bool(torch.cat(flags).all() & (lows <= highs).all()):
        raise UnsoundBounds(
            "the bounds are NaN, infinite or inverted, or close to it, so nothing can be proved. Most likely the "
            "weights or the radius are so large that intervals explode; try a smaller eps, or look at the widths of "
            "the posterior."
        )
    return lows, highs


def _predictor_slack(predictor: Predictor) -> float:
    """Relative change that rounding the predictor's last step can make, with room to spare.

    Logits are bounded as the float program computes them. Softmax, mean and logarithm run in float64 and are
    rounded once to the predictor's precision, which is monotone but may produce a tie; a class that leads by more
    than 2 slack in probability leads by more than the float spacing at log p <= log C.
    """
    unit = torch.finfo(predictor.dtype).eps / 2
    return 4 * unit * (1 + math.log(predictor.classes)) + 2.0**-50 * (predictor.size + 16)


def _require_settings(predictor: Predictor, bounds: str, rule: str, batch_size: int) -> None:
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
    if predictor.dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"certificates need float32 or float64 precision, this predictor runs in {predictor.dtype}.")
    if predictor.device.type not in ("cpu", "cuda"):
        raise InvalidInput(f"certificates are made on cpu or cuda, whose arithmetic is known; not {predictor.device}.")
    if bounds not in BOUNDS:
        raise InvalidInput(f"bounds must be one of {', '.join(BOUNDS)}, got {bounds!r}.")
    if rule not in RULES:
        raise InvalidInput(f"rule must be one of {', '.join(RULES)}, got {rule!r}.")
    require_count(batch_size, "batch_size")


def _joined(parts: list[Tensor], empty: Tensor) -> Tensor:
    return torch.cat(parts) if parts else empty
