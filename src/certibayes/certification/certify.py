"""``certify``: a predictor and a region of inputs in, a certificate out."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from certibayes.bounds import by_name
from certibayes.certificates import Certificate
from certibayes.certification._batch import batch_size_for, memory_for
from certibayes.certification._border import asked_of, region_for
from certibayes.certification._origin import provenance_of
from certibayes.certification._stage import run
from certibayes.certification.clock import Clock
from certibayes.certification.methods import Method, as_method
from certibayes.certification.problem import Problem
from certibayes.certification.state import State
from certibayes.errors import InvalidInput
from certibayes.posteriors import Posterior
from certibayes.prediction import Predictor
from certibayes.regions import Domain, InputRegion, as_radius
from certibayes.support.checks import labels_of, require_classes
from certibayes.support.progress import Report, reporting

SHARED = 4
"""A fourth of the memory is for what stages share."""

UNBOUNDED = (
    "the bounds of some layer are NaN or come close to overflow, most likely because weights or radius are so large "
    "that intervals explode; try a smaller eps, or look at the standard deviations of the posterior"
)
"""Why nothing could be concluded about a point."""


def certify(  # noqa: PLR0913 - public
    predictor: Predictor,
    x: Any,
    y: Any = None,
    *,
    eps: Any,
    norm: str = "linf",
    domain: Domain | Literal["predictor"] = "predictor",
    method: str | Method = "auto",
    rounding: str = "outward",
    batch_size: int | None = None,
    memory: int | None = None,
    progress: bool | Report = False,
) -> Certificate:
    """Prove, where possible, that no input within ``eps`` of a point changes its class.

    Args:
        predictor: from ``posterior.predictor(samples, seed)``; the certificate is about exactly these samples.
        x: points (B, ...), inside the domain: a tensor, an array or a table of pandas; or what yields points with their
            labels, a torch ``Dataset`` or ``DataLoader``, a ``DataSet`` (its test split), a data set of Hugging Face.
        y: labels (B,); a point is certified if the ball is classified as its label. By default those that come with
            the points, else the predicted classes.
        eps: radius: a number; one per point, (B,); or, in l-infinity, one per input value, (1, *shape) or (B, *shape);
            where it is 0, the input does not change. For a table of pandas also radii by name, ``{"bmi": 1.5}``;
            columns that are not named do not change.
        norm: in which distances from the point are measured: ``"linf"``, ``"l2"`` or ``"l1"``.
        domain: smallest and largest value an input can take; the ball is intersected with it. By default the
            predictor's own, ``predictor.domain``, as far as it knows one. Otherwise two numbers, or, where features
            differ, tensors of shape (1, *shape) or (B, *shape); None for no limits.
        method: how it is proved: ``"auto"``, ``"theorem1"`` (the paper's rule), ``"pairwise"``, ``"elided"``,
            ``"joint"`` or ``"best"``, or an object with settings, such as ``Best(bounds="crown", budget=60)``.
        rounding: ``"outward"`` for a proof about the float program, ``"ideal"`` for exact arithmetic.
        batch_size: points bounded at once; by default as many as the device has room for, on a CPU at most 500. It
            changes nothing but the last bits of a bound.
        memory: bytes that linear bounds may take, with all that they keep of the layers in between; they go through a
            batch in smaller parts where they must. By default 2 GiB on a CPU, and a quarter of a GPU's memory.
        progress: True shows a bar on standard error, False nothing; a function is called with (points done, all
            points).

    Returns:
        What was proved. Points with non-finite bounds are not certified and have a reason, ``certificate.reasons``.
        With a budget, ``certificate.attacked`` and ``certificate.counterexamples`` hold what was found on the way;
        points that are neither certified nor attacked are unknown.

    Raises:
        InvalidInput: the points, labels or settings cannot be used.
        UnsoundBounds: finite bounds came out inverted: a rule is wrong, and nothing is concluded.
    """
    chosen = as_method(method)
    require_predictor(predictor)
    at_once, memory = batch_size_for(predictor, batch_size), memory_for(predictor, memory)
    x, y, eps = asked_of(predictor, x, y, eps)
    region = region_for(predictor, x, eps, norm, domain)
    chosen = chosen.decided(predictor, region)
    mode = by_name(rounding, predictor.dtype)
    slack = _predictor_slack(predictor) if mode.outward else 0.0
    if y is not None:
        labels = labels_of(y, predictor.classes, len(region)).to(predictor.device)
    elif len(region):
        labels = predictor.predict(region.center.to(predictor.dtype), at_once)
    else:
        labels = torch.zeros(0, dtype=torch.int64)
    clock, parts = Clock(chosen.seconds), []
    with reporting(progress, "certifying") as report:
        for start in range(0, len(region), at_once):
            index = slice(start, start + at_once)
            part = region.take(index)
            read = part.to(predictor.dtype)
            problem = Problem(
                predictor=predictor,
                region=read,
                box=part.outward_box(predictor.dtype) if mode.outward else read.ideal_box(),
                labels=labels[index],
                predicted=labels[index] if y is None else None,
                rounding=rounding,
                threshold=2 * slack,
                memory=memory,
                intermediates=chosen.intermediates,
            ).sharing(memory // SHARED)
            # Each batch has its part of the time that earlier ones have left.
            own = clock.part(len(part), len(region) - start)
            first, *others = chosen.stages
            # What the first bounds prove need not be predicted: the point itself lies in its region.
            state = first(problem, State.start(problem), own).with_predictions(problem)
            state = run(tuple(others), problem, state, own)
            parts.append(_outcome(problem, part, state, slack))
            report(start + len(part), len(region))
    return _certificate(
        predictor,
        parts,
        labels=labels,
        eps=as_radius(eps),
        norm=norm,
        domain=region.domain,
        rounding=rounding,
        provenance=provenance_of(
            predictor, region.center, bounds=chosen.bounds, method=chosen.name, intermediates=chosen.intermediates
        ),
        spent=None if chosen.seconds is None else clock.spent,
        harder=advice(chosen, region.center, region.domain),
    )


def advice(method: Method, x: Tensor, domain: Domain) -> str:
    """Say what would try harder than a method on points (B, ...) that it leaves open."""
    if domain is None and len(x) and bool(((x >= 0) & (x <= 1)).all()):
        return f"{method.harder}; or, if no input can leave [0, 1], domain=(0.0, 1.0)"
    return method.harder


def _outcome(problem: Problem, given: InputRegion, state: State, slack: float) -> dict[str, Tensor]:
    """Return what a certificate keeps of a batch, each (B, ...)."""
    broken, inputs = state.broken, state.counterexamples
    if torch.promote_types(given.center.dtype, inputs.dtype) != inputs.dtype:
        # The ball is around the points as they were given, not as a coarser predictor reads them.
        inputs = given.project(inputs.to(given.center.dtype))
        broken = broken & (problem.predictor.predict(inputs) != problem.labels)
    # Probabilities below the smallest normal float lose digits, and then underflow.
    underflow = torch.finfo(problem.predictor.dtype).smallest_normal if problem.arithmetic.outward else 0.0
    lowest, highest = state.probabilities
    return {
        # In exact arithmetic the second is implied; in ideal rounding a tie of the float program might differ.
        "certified": state.proved & (state.predicted == problem.labels),
        "predicted": state.predicted,
        "lower": (lowest * (1 - slack) - underflow).clamp(min=0.0),
        "upper": (highest * (1 + slack) + underflow).clamp(max=1.0 + slack),
        "attacked": broken,
        "counterexamples": inputs,
        "unbounded": state.unbounded,
    }


def _certificate(predictor: Predictor, parts: list[dict[str, Tensor]], **stated: Any) -> Certificate:
    """Join the outcomes of all batches."""
    nothing = torch.zeros(0, predictor.classes, dtype=torch.float64)
    empty = dict.fromkeys(("certified", "attacked", "unbounded"), nothing[:, 0] > 0)
    empty |= {"lower": nothing, "upper": nothing, "counterexamples": nothing, "predicted": stated["labels"]}
    whole: dict[str, Any] = {
        name: torch.cat([part[name] for part in parts]) if parts else none for name, none in empty.items()
    }
    reasons = dict.fromkeys(whole.pop("unbounded").nonzero().flatten().tolist(), UNBOUNDED)
    if stated["spent"] is None:
        whole["attacked"] = whole["counterexamples"] = None
    return Certificate(**whole, **stated, reasons=reasons)


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
        raise InvalidInput(
            "class certificates need a classifier; this predictor does regression. certify_regression bounds its "
            "predictions."
        )
    require_classes(predictor.classes)
    require_arithmetic(predictor)


def require_arithmetic(predictor: Predictor) -> None:
    """Raise unless the predictor runs in a precision and on a device whose arithmetic is known."""
    if predictor.dtype not in (torch.float32, torch.float64):
        raise InvalidInput(f"certificates need float32 or float64 precision, this predictor runs in {predictor.dtype}.")
    if predictor.device.type not in ("cpu", "cuda"):
        raise InvalidInput(f"certificates are made on cpu or cuda, whose arithmetic is known; not {predictor.device}.")
