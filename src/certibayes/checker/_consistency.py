"""Do a certificate's words and marks agree with its record, with each other, and with the predictor?"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from certibayes.certificates.certificate import contradictions, statement
from certibayes.checker._arithmetic import Array, Interval
from certibayes.checker._balls import Balls, contains
from certibayes.checker._claim import FLOATS, Claim
from certibayes.checker._mean import as_rounded, mean_bounds, networks_of
from certibayes.errors import UnsupportedLayer
from certibayes.prediction import Predictor

SHOWN = 8
"""Words of two statements that are shown where they begin to differ."""


def disagreements(claim: Claim, stated: str) -> list[str]:
    """Return what in a certificate contradicts itself, its statement included.

    Args:
        claim: what the record says.
        stated: the statement beside it.
    """
    found = contradictions(claim.certificate)
    given, expected = stated.split(" "), statement(claim.certificate).split(" ")
    if given != expected:
        first = next((k for k, (a, b) in enumerate(zip(given, expected, strict=False)) if a != b), None)
        first = min(len(given), len(expected)) if first is None else first
        here, there = (" ".join(words[first : first + SHOWN]) for words in (given, expected))
        found.append(f'the statement is not what the record says: "{here} ..." where it should read "{there} ..."')
    return found


def wrongly_predicted(claim: Claim, predictor: Predictor, x: Tensor, batch_size: int) -> Any:
    """Tell where the predictor does not give a point the class that the certificate says it does, (B,)."""
    found = np.zeros(len(x), dtype=bool)
    for start in range(0, len(x), batch_size):
        part = slice(start, start + batch_size)
        possible = _possible_classes(claim, predictor, x[part])
        found[part] = ~possible[np.arange(len(possible)), claim.predicted[part]]
    return found


def wrongly_attacked(claim: Claim, predictor: Predictor, x: Tensor, balls: Balls, batch_size: int) -> Any:
    """Tell where a counterexample lies outside ball or domain, or is given the label after all, (B,)."""
    found = np.zeros(len(x), dtype=bool)
    marked = claim.attacked.nonzero()[0]
    if len(marked) and claim.counterexamples.shape != balls.x.shape:
        found[marked] = True
        return found
    for start in range(0, len(marked), batch_size):
        part = marked[start : start + batch_size]
        inputs = claim.counterexamples[part]
        possible = _possible_classes(claim, predictor, torch.from_numpy(inputs))
        possible[np.arange(len(part)), claim.labels[part]] = False
        outside = [not contains(balls, index, point, claim) for index, point in zip(part, inputs, strict=True)]
        found[part] = outside | ~possible.any(1)
    return found


def _possible_classes(claim: Claim, predictor: Predictor, x: Tensor) -> Any:
    """Tell which classes the predictor may give inputs (B, ...) on any machine, (B, C).

    Its answer here is one. Another machine adds in another order, so where classes are so close that rounding
    decides, the others are possible, too.
    """
    given = x.detach().to(predictor.device, predictor.dtype)
    own = predictor.predict(given).cpu().numpy()
    possible = own[:, None] == np.arange(predictor.classes)
    values: Array = given.cpu().numpy().astype(FLOATS[claim.dtype]).astype(np.float64)
    try:
        labels = np.zeros(len(values), dtype=np.int64)
        program = claim.float_program
        _, mean, loss = mean_bounds(program, networks_of(predictor), predictor, Interval(values, values), labels)
    except UnsupportedLayer:
        return possible
    lower, upper = as_rounded(mean, loss, program)
    # Where nothing is known, NaN exceeds nothing.
    return possible | (upper >= lower.max(1, keepdims=True))
