"""Refuting: inputs in the ball that a claim must survive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from certibayes.checker._arithmetic import Array
from certibayes.checker._balls import Balls
from certibayes.checker._claim import FLOATS, Claim
from certibayes.prediction import Predictor


def tried(
    predictor: Predictor, claim: Claim, balls: Balls, labels: Any, attempts: int, rng: np.random.Generator
) -> Iterator[tuple[Array, Any]]:
    """Yield probabilities (B, C) and predicted classes (B,) of inputs in the ball: what the claim must survive."""
    x, eps, low, high = balls
    subject = predictor
    if claim.rounding == "ideal":
        subject = Predictor(predictor.graph, {name: t.double() for name, t in predictor.samples.items()})
    read = FLOATS[str(subject.dtype).removeprefix("torch.")]

    def moved(direction: Any) -> Array:
        """Go from x by eps times a direction in [-1, 1], and stay inside the ball and the domain also in floats."""
        if claim.norm != "linf":
            return moved_in_ball(np.broadcast_to(direction, x.shape))
        target = x + eps * direction
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
        for fraction in (0.9, 1 - 2.0**-20, 1 - 2.0**-40):
            point = np.clip(x + eps * fraction * unit, low, high).astype(read)
            away = (point.astype(np.float64) - x).reshape(len(x), -1)
            near = np.linalg.norm(away, order, axis=1) <= eps.reshape(len(x), -1).min(1) * (1 - 2.0**-40)
            inside = near & ((low <= point) & (point <= high)).reshape(len(x), -1).all(1)
            there = np.where(inside.reshape(-1, *(1,) * (x.ndim - 1)), point, there)
        return there

    def classified(point: Any) -> tuple[Array, Any]:
        with torch.no_grad():
            given = torch.from_numpy(point).to(subject.device)
            return subject.probabilities(given).double().cpu().numpy(), subject.predict(given).cpu().numpy()

    yield classified(x.astype(read))
    yield classified(moved(-1.0))
    yield classified(moved(1.0))
    for _ in range(attempts):
        yield classified(moved(rng.choice([-1.0, 1.0], x.shape)))
        yield classified(moved(rng.uniform(-1.0, 1.0, x.shape)))
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
        yield classified(point)


def flips(probabilities: Array, classes: Any, labels: Any, tolerance: Array | float) -> Any:
    """Where another class wins, by more than what rounding explains."""
    rows = np.arange(len(labels))
    lead = probabilities[rows, classes] - probabilities[rows, labels]
    allowed = 2 * np.max(np.broadcast_to(tolerance, probabilities.shape), axis=1)
    # In the program itself nothing needs to be explained: classes decide, also where rounded probabilities tie.
    return (classes != labels) & ((lead > allowed) | (allowed == 0.0))
