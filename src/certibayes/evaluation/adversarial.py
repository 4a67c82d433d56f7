"""Adversarial examples to measure uncertainty on.

``attack`` stops where the predicted class changes, which is all that accuracy asks for. But that is at the decision
boundary, where two classes are equally probable and the entropy is near log 2 whatever the network: it would measure
the attack, not the predictor. So what ``attack`` found is pushed on, by as many steps of projected gradient ascent on
the cross-entropy (Madry et al., 2018; the paper's PGD),

    x_{k+1} = Π( x_k + α r direction(∇_x -log p̄_y(x_k)) ),

where direction is the steepest one of the norm (signs for l-infinity) and Π projects onto ball and domain, and for each
input the iterate with the largest cross-entropy is kept. The paper announces entropies on adversarial examples for its
supplement, which has none, nor says how they were to be made.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from certibayes.attacks import cross_entropy_loss
from certibayes.errors import InvalidInput
from certibayes.prediction import Predictor
from certibayes.regions import Domain, InputRegion, require_radius_within, resolve_domain
from certibayes.support.checks import inputs_of, labels_of, require_count


def push_on(  # noqa: PLR0913 - public
    predictor: Predictor,
    x: Tensor,
    y: Tensor,
    start: Tensor,
    *,
    eps: float | Tensor,
    norm: str = "linf",
    domain: Domain | Literal["predictor"] = "predictor",
    steps: int = 20,
    batch_size: int = 500,
) -> Tensor:
    """Push inputs on until the predictor gives their labels as little as possible, (B, ...).

    Args:
        predictor: the predictor.
        x: clean inputs (B, ...), the centers of the balls: a tensor, an array or nested lists; as are ``y`` and
            ``start``.
        y: their labels (B,).
        start: where to start in each ball, (B, ...).
        eps: radius, as in ``attack``.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
        domain: smallest and largest value of an input, as in ``attack``; by default the predictor's own.
        steps: of ascent, each 2.5 eps / steps long.
        batch_size: inputs pushed at once.
    """
    require_count(steps, "steps")
    require_count(batch_size, "batch_size")
    x = inputs_of(x, "the inputs")
    known = resolve_domain(domain, predictor)
    region = InputRegion.around(x, eps, norm, known)
    require_radius_within(known, eps, norm)
    begin = inputs_of(start, "the starts").to(region.center)
    if begin.shape != region.center.shape:
        raise InvalidInput(f"starts have shape {tuple(begin.shape)}, and inputs {tuple(x.shape)}; give one per input.")
    labels = labels_of(y, predictor.classes, len(region)).to(region.center.device)
    parts = [slice(first, first + batch_size) for first in range(0, len(region), batch_size)]
    pushed = [_climb(predictor, region.take(part), labels[part], begin[part], steps) for part in parts]
    return torch.cat(pushed) if pushed else region.center


def _climb(predictor: Predictor, region: InputRegion, y: Tensor, start: Tensor, steps: int) -> Tensor:
    """Return the iterate with the largest cross-entropy, (B, ...)."""
    x = region.project(start)
    best, largest = x, x.new_full((len(x),), -torch.inf)
    for step in range(steps + 1):
        x = x.detach().requires_grad_(step < steps)
        loss = cross_entropy_loss(predictor(x), y)
        better = loss.detach() > largest
        best = torch.where(better.view(-1, *[1] * (x.dim() - 1)), x.detach(), best)
        largest = torch.where(better, loss.detach(), largest)
        if step < steps:
            (gradient,) = torch.autograd.grad(loss.sum(), x)
            x = x.detach()
            x = region.project(x + region.steepest_step(x, gradient, 2.5 / steps))
    return best
