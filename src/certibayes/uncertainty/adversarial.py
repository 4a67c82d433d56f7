"""Adversarial examples to measure doubt on.

``attack`` stops where the predicted class changes, which is all that accuracy asks for. But that is at the decision
boundary, where two classes share the probability and the entropy is near log 2 whatever the network: it would measure
the attack, not the predictor. So what ``attack`` found is pushed on, by as many steps of projected gradient ascent on
the cross-entropy (Madry et al., 2018; the paper's PGD),

    x_{k+1} = Π( x_k + α sign ∇_x -log p̄_y(x_k) ),

where Π projects onto ball and domain, and for each input the iterate with the largest cross-entropy is kept. The paper
announces entropies on adversarial examples for its supplement, which has none, nor says how they were to be made.
"""

from __future__ import annotations

import torch
from torch import Tensor

from certibayes.bounds import Domain, ball
from certibayes.bounds.checks import require_count
from certibayes.prediction import Predictor


def push_on(
    predictor: Predictor,
    x: Tensor,
    y: Tensor,
    start: Tensor,
    *,
    eps: float,
    domain: Domain = None,
    steps: int = 20,
    batch_size: int = 500,
) -> Tensor:
    """Push inputs on until the predictor gives their labels as little as possible, (B, ...).

    Args:
        predictor: the predictor.
        x: clean inputs (B, ...), the centres of the balls.
        y: their labels (B,).
        start: where to start in each ball, (B, ...).
        eps: l-infinity radius.
        domain: smallest and largest value of an input.
        steps: of ascent, each 2.5 eps / steps long.
        batch_size: inputs pushed at once.
    """
    require_count(steps, "steps")
    require_count(batch_size, "batch_size")
    lower, upper = ball(x, eps, domain)
    columns = (start, y, torch.minimum(lower, start), torch.maximum(upper, start))
    batches = zip(*(column.split(batch_size) for column in columns), strict=True)
    step_size = 2.5 * eps / steps
    return torch.cat([_climb(predictor, at, label, low, high, steps, step_size) for at, label, low, high in batches])


def _climb(
    predictor: Predictor, x: Tensor, y: Tensor, lower: Tensor, upper: Tensor, steps: int, step_size: float
) -> Tensor:
    best, largest = x, x.new_full((len(x),), -torch.inf)
    for step in range(steps + 1):
        x = x.detach().requires_grad_(step < steps)
        loss = -predictor(x).gather(-1, y[:, None]).squeeze(-1)
        better = loss.detach() > largest
        best = torch.where(better.view(-1, *[1] * (x.dim() - 1)), x.detach(), best)
        largest = torch.where(better, loss.detach(), largest)
        if step < steps:
            (gradient,) = torch.autograd.grad(loss.sum(), x)
            x = torch.clamp(x + step_size * gradient.sign(), lower, upper)
    return best
