"""Proving again: the checker's own bounds on the mean prediction, its softmax and its rules."""

from __future__ import annotations

from typing import Any

import numpy as np

from certibayes.checker._arithmetic import Array, Interval, Program
from certibayes.checker._ball_enclosure import Round
from certibayes.checker._enclosure import enclose
from certibayes.prediction import Predictor


def networks_of(predictor: Predictor) -> list[dict[str, Any]]:
    """Return the parameters of every network as arrays, by name."""
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in predictor.samples.items()}
    return [{name: array[index] for name, array in arrays.items()} for index in range(predictor.size)]


def mean_bounds(
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
            low, high = softmax_bounds(logits)
            lowest, highest = lowest + low, highest + high
            pairs = pairs + smallest_lead(logits, labels)
            largest = np.maximum(largest, logits.magnitude.max(1, keepdims=True))
    # An exponent of magnitude 2 z is off by 2 z units, each sum of n terms by n: four times what all steps add up to.
    loss = 2.0**-51 * (4 * largest + 2 * classes + count + 16)
    with np.errstate(all="ignore"):
        loss = np.where(known[:, None] & (loss < 0.5), loss, np.nan)
        mean = Interval(lowest / count * (1 - loss), np.minimum(highest / count * (1 + loss) + 1e-300, 1.0))
        label = labels[:, None] == np.arange(classes)
        apart = np.where(label, mean.lower, -np.inf).max(1) - np.where(label, -np.inf, mean.upper).max(1)
        paired = np.where(label, np.inf, pairs / count - 2 * loss).min(1)
        # One of the two suffices. NaN, where nothing is known, exceeds nothing.
        return np.maximum(apart, paired), mean, loss[:, 0]


def softmax_bounds(z: Interval) -> tuple[Array, Array]:
    """σ_c = 1 / (1 + Σ exp(z_j - z_c)), j ≠ c: lowest with z_c at its lower end and the rest at their upper ends."""
    own = np.eye(z.lower.shape[1], dtype=bool)
    against = np.where(own, 0.0, np.exp(z.upper[:, None, :] - z.lower[:, :, None])).sum(2)
    beside = np.where(own, 0.0, np.exp(z.lower[:, None, :] - z.upper[:, :, None])).sum(2)
    return 1.0 / (1.0 + against), 1.0 / (1.0 + beside)


def smallest_lead(z: Interval, labels: Any) -> Array:
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


def as_rounded(mean: Interval, loss: Array, program: Program) -> tuple[Array, Array]:
    """Bounds on the probabilities as the program returns them: rounded once more, to its own precision."""
    if program.unit == 0.0:
        return mean.lower, mean.upper
    slack = 2 * loss[:, None] + 2 * program.unit
    return np.maximum(mean.lower * (1 - slack) - program.tiny, 0.0), mean.upper * (1 + slack) + program.tiny
