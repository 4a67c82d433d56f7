"""Certified uncertainty: what a certificate's class bounds say about confidence and entropy over the whole ball.

A certificate holds l <= p(x) <= u for the class probabilities of every input x of the ball. So no input can be
classified with more confidence than the largest u_c: where that is at most τ, it is proved that a rule which abstains
below confidence τ abstains on the whole ball, as it should far from the data. And the entropy of p(x) lies between the
extremes of H over the polytope {p : l <= p <= u, Σ p = 1}.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from certibayes.certificates import Abstention, Certificate
from certibayes.certification._polytope import lowest_sum
from certibayes.errors import InvalidInput, UnsoundBounds


def max_confidence(certificate: Certificate) -> Tensor:
    """Bound the confidence, max_c p_c(x), over the ball from above; float64 (B,)."""
    return certificate.upper.amax(-1)


def abstains(certificate: Certificate, tau: float) -> Tensor:
    """Tell where it is proved that no input of the ball is classified with confidence above ``tau``, (B,)."""
    if not 0 < tau <= 1:
        raise InvalidInput(f"tau is a confidence in (0, 1], got {tau}.")
    return max_confidence(certificate) <= tau


@torch.no_grad()
def entropy_bounds(certificate: Certificate) -> tuple[Tensor, Tensor]:
    """Bound the entropy of the mean prediction over the ball, in nats; float64 (B,) each.

    They hold for H(p) = -Σ p log p of the exact mean of the softmax of the networks' float logits, and for programs
    that compute it from ``predictor(x)`` in the predictor's precision, or in float64 as ``certibayes.uncertainty`` does
    (for logits up to 2¹⁶, beyond which the rounding of exponents would show).

    Raises:
        UnsoundBounds: no distribution lies between the certificate's bounds.
    """
    lower, upper = class_bounds(certificate)
    classes, slack = lower.shape[-1], program_slack(certificate)
    smallest = lowest_entropy(lower, upper) - slack
    largest = highest_entropy(lower, upper) + slack
    return smallest.clamp(min=0.0), largest.clamp(max=math.log(classes) + slack)


def class_bounds(certificate: Certificate) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds on class probabilities over the ball, float64 (B, C), with room for our rounding.

    Raises:
        UnsoundBounds: no distribution lies between the certificate's bounds.
    """
    lower, upper = certificate.lower.double(), certificate.upper.double()
    # A relative 2⁻⁴⁰ is more than any sum in here rounds, so that rounding cannot make the polytope lose a point.
    lower, upper = lower * (1 - 2.0**-40), (upper * (1 + 2.0**-40)).clamp(max=1.0)
    if not bool((lower <= upper).all() and (lower.sum(-1) <= 1).all() and (upper.sum(-1) >= 1).all()):
        raise UnsoundBounds("no distribution lies between the class bounds of this certificate.")
    return lower, upper


def highest_entropy(lower: Tensor, upper: Tensor) -> Tensor:
    """Bound H(p) from above over {p : lower <= p <= upper, Σ p = 1}; (B, C) to (B,).

    H is concave, and its maximum fills up like water: p_c = clamp(λ, l_c, u_c) with the level λ at which p sums to 1.
    Whatever the level, weak duality with the multiplier ν = 1 + log λ of Σ p = 1 gives a bound,

        H(p) = Σ_c h(p_c) + ν (Σ p - 1) <= Σ_c max_{l_c <= q <= u_c} (h(q) + ν q) - ν = Σ_c (h(q_c) + ν q_c) - ν,

    with h(q) = -q log q and q_c = clamp(λ, l_c, u_c), where h' = -ν or an end is met. So bisection need not be exact.
    """
    low, high = torch.zeros_like(lower[:, :1]), torch.ones_like(lower[:, :1])
    for _ in range(60):
        level = (low + high) / 2
        enough = torch.clamp(level, lower, upper).sum(-1, keepdim=True) >= 1
        low, high = torch.where(enough, low, level), torch.where(enough, level, high)
    multiplier = 1 + high.log()
    filled = torch.clamp(high, lower, upper)
    return (_h(filled) + multiplier * filled).sum(-1) - multiplier.squeeze(-1)


def lowest_entropy(lower: Tensor, upper: Tensor) -> Tensor:
    """Bound H(p) from below over {p : lower <= p <= upper, Σ p = 1}; (B, C) to (B,). See ``lowest_sum``."""
    return lowest_sum(lambda p, points: _h(p), lower, upper)


def certify_abstention(certificate: Certificate, tau: float) -> Abstention:
    """Collect what a certificate proves about confidence and entropy.

    Args:
        certificate: from ``certify``, with any labels; they play no part.
        tau: the confidence below which a prediction is withheld, in (0, 1].
    """
    # A number of numpy could not be written.
    tau = float(tau)
    certified = abstains(certificate, tau)
    return Abstention(certified, max_confidence(certificate), *entropy_bounds(certificate), tau, certificate)


def _h(p: Tensor) -> Tensor:
    """-p log p, with 0 log 0 = 0."""
    return torch.special.entr(p)


def program_slack(certificate: Certificate) -> float:
    """How far the entropy of a program may be from that of the exact mean prediction, and our own rounding.

    A log-probability in the predictor's precision is off by u |log p|, which changes p log p by up to
    p (log² p + |log p|) u, and Σ p log² p <= 1 + log² C; products and a sum of C terms round by (C + 4) u |p log p|,
    and Σ |p log p| <= log C. Twice that is less than the following. In here every term is at most 745 2⁻⁵³ C off, and a
    coordinate that is off by t = 2⁻⁴⁰ changes h by t log(1/t).
    """
    classes = certificate.lower.shape[-1]
    unit = torch.finfo(getattr(torch, certificate.dtype)).eps / 2 if certificate.rounding == "outward" else 0.0
    return unit * (classes + 8) * (2 + math.log(classes)) ** 2 + classes * 2.0**-34
