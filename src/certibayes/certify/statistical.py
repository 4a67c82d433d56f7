"""Statistical certificates: what holds for weights that are drawn afresh, with a confidence.

``certify`` proves things about fixed weight samples. Here the weights are random, w ~ posterior, and two quantities
of the posterior itself are bounded from n independent draws of it:

* the robust probability   P_w[ network w classifies every input of the ball as y ],   by ``robust_probability``;
* the worst-case predictive   E_w[ min over the ball of softmax_c f^w ],   by ``posterior_predictive_bounds``.

No network's true minimum is known, only a certified bound: l_c(w) <= softmax_c f^w(x) <= u_c(w) for all x of the ball.
These bounds are functions of w alone, so over independent draws they are independent and identically distributed
with values in [0, 1], and concentration inequalities bound E_w[l_c] and E_w[u_c]. What is proved is on the safe side,

    min_x E_w[ softmax_c f^w(x) ]  >=  E_w[ min_x softmax_c f^w(x) ]  >=  E_w[ l_c(w) ].

A union bound makes all figures of a point hold together; with ``joint``, those of all points. It needs no independence
between classes or points, so one set of draws serves all. Cardelli et al., "Statistical guarantees for the robustness
of Bayesian neural networks", IJCAI 2019, and Wicker et al., "Probabilistic safety for Bayesian neural networks", UAI
2020, bound the first quantity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from certibayes.bounds import Domain
from certibayes.bounds.checks import require_count, require_labels
from certibayes.certify.certificate import Certificate
from certibayes.certify.certify import certify
from certibayes.certify.concentration import METHODS, NOTHING, require_confidence
from certibayes.certify.statistical_results import FreshPredictorBounds, PredictiveBounds, RobustProbability, Trial
from certibayes.errors import InvalidInput
from certibayes.networks.device import find_device
from certibayes.networks.seeds import derived_seed
from certibayes.posteriors import Point, Posterior
from certibayes.posteriors.storage import tensor_digest
from certibayes.prediction import Predictor

__all__ = [
    "FreshPredictorBounds",
    "PredictiveBounds",
    "RobustProbability",
    "Trial",
    "posterior_predictive_bounds",
    "robust_probability",
    "smallest_differences",
]

Progress = Callable[[int, int], None]


def robust_probability(
    posterior: Posterior,
    x: Tensor,
    y: Tensor,
    *,
    eps: float | Tensor,
    norm: str = "linf",
    domain: Domain = None,
    samples: int = 500,
    confidence: float = 0.99,
    method: str = "clopper-pearson",
    joint: bool = False,
    seed: int = 0,
    bounds: str = "ibp",
    rule: str = "pairwise",
    rounding: str = "outward",
    **options: Any,
) -> RobustProbability:
    """Bound the probability that a network drawn from the posterior classifies the whole ball as y.

    Each drawn network is certified by itself; k of n succeed, and k is binomial with the probability that a drawn
    network is certified, which is at most the probability that it is robust.

    Args:
        posterior: one that is drawn from independently.
        x: points (B, ...), inside the domain.
        y: labels (B,), chosen before the draws.
        eps: radius; see ``certify``.
        norm: see ``certify``.
        domain: smallest and largest value an input can take; the ball is intersected with it.
        samples: number n of draws.
        confidence: probability that both bounds of a point hold.
        method: ``"clopper-pearson"`` (exact), ``"hoeffding"`` or ``"bernstein"``.
        joint: whether they hold for all points at once; otherwise for each point by itself.
        seed: of the draws; they differ from those of ``posterior.predictor`` with the same seed.
        bounds: see ``certify``.
        rule: see ``certify``.
        rounding: see ``certify``.
        **options: ``batch_size``, the points bounded at once; ``device``, where networks are bounded, by default where
            the posterior is; ``progress``, called with (draws done, all draws).

    Raises:
        InvalidInput: the posterior's samples are not independent, or a setting cannot be used.
    """
    trial = _trial(posterior, x, y, samples, seed, confidence, method, joint, eps, norm, domain, bounds, rule, rounding)
    sums = NOTHING
    for certificate in _certificates(posterior, x, y, trial, **options):
        sums = sums.plus(certificate.certified.double().cpu())
    lower, upper = METHODS[method](sums, trial.failure(2))
    return RobustProbability(y.cpu(), sums.total.long(), lower, upper, trial)


def posterior_predictive_bounds(
    posterior: Posterior,
    x: Tensor,
    y: Tensor,
    *,
    eps: float | Tensor,
    norm: str = "linf",
    domain: Domain = None,
    samples: int = 500,
    confidence: float = 0.99,
    method: str = "bernstein",
    joint: bool = False,
    seed: int = 0,
    bounds: str = "ibp",
    rounding: str = "outward",
    **options: Any,
) -> PredictiveBounds:
    """Bound the predictive of the posterior itself, E_w[softmax f^w], over the ball.

    For C classes there are 3 C - 1 one-sided bounds for a point: C from below, C from above, and C - 1 on the
    differences between label and rival, D_c(w) in [-1, 1]; each may fail with probability (1 - confidence) / (3 C - 1).

    Args:
        posterior: see ``robust_probability``, as for all that is not named here.
        x: points (B, ...), inside the domain.
        y: labels (B,), chosen before the draws.
        eps: radius; see ``certify``.
        norm: see ``certify``.
        domain: smallest and largest value an input can take; the ball is intersected with it.
        samples: number n of draws.
        confidence: probability that all bounds of a point hold.
        method: ``"bernstein"`` or ``"hoeffding"``; Clopper-Pearson bounds are for proportions.
        joint: whether they hold for all points at once; otherwise for each point by itself.
        seed: of the draws.
        bounds: see ``certify``.
        rounding: see ``certify``.
        **options: see ``robust_probability``.

    Raises:
        InvalidInput: the posterior's samples are not independent, or a setting cannot be used.
    """
    if method == "clopper-pearson":
        raise InvalidInput(
            "Clopper-Pearson bounds are for proportions; probabilities between 0 and 1 need method='bernstein' or "
            "'hoeffding'."
        )
    # Class bounds do not depend on a rule; this is the cheapest one.
    rule = "theorem1"
    trial = _trial(posterior, x, y, samples, seed, confidence, method, joint, eps, norm, domain, bounds, rule, rounding)
    labels, low, high, leads = y.cpu(), NOTHING, NOTHING, NOTHING
    for certificate in _certificates(posterior, x, y, trial, **options):
        # The certified range of the float program may exceed 1 by its rounding; the softmax of its logits does not.
        smallest, largest = certificate.lower.cpu(), certificate.upper.cpu().clamp(max=1.0)
        low, high = low.plus(smallest), high.plus(largest)
        leads = leads.plus((smallest_differences(smallest, largest, labels) + 1) / 2)
    bound, failure = METHODS[method], trial.failure(3 * posterior.graph.classes - 1)
    is_label = labels[:, None] == torch.arange(posterior.graph.classes)
    # From [-1, 1] to [0, 1] and back rounds by 2⁻⁵², far less than the slack of the bounds.
    margins = (2 * bound(leads, failure)[0] - 1).masked_fill(is_label, 1.0)
    return PredictiveBounds(labels, bound(low, failure)[0], bound(high, failure)[1], margins, trial)


def smallest_differences(lower: Tensor, upper: Tensor, labels: Tensor) -> Tensor:
    """Bound p_y - p_c from below for every c, over all distributions p between ``lower`` and ``upper``.

    Since p sums to 1, p_c <= min(u_c, 1 - p_y - Σ of the other l_j); the difference then grows with p_y >= l_y, so

        p_y - p_c  >=  l_y - min( u_c, 1 - l_y - Σ_{j ≠ y, c} l_j ).

    Args:
        lower: l, float64 (B, C).
        upper: u, float64 (B, C).
        labels: y, (B,).

    Returns:
        (B, C) in [-1, 1]; 1 for the label itself.
    """
    is_label = labels[:, None] == torch.arange(lower.shape[-1], device=labels.device)
    own = lower.masked_fill(~is_label, 0.0).sum(-1, keepdim=True)
    # C additions of numbers in [0, 1] whose sum is at most 1, and as many roundings.
    rest = 1 - lower.sum(-1, keepdim=True) + lower + (lower.shape[-1] + 8) * 2.0**-50
    return (own - torch.minimum(upper, rest)).clamp(-1.0, 1.0).masked_fill(is_label, 1.0)


def _certificates(
    posterior: Posterior,
    x: Tensor,
    y: Tensor,
    trial: Trial,
    batch_size: int = 500,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> Iterator[Certificate]:
    """Yield the certificate of one network after the other, each drawn afresh from one stream of random numbers."""
    generator = torch.Generator().manual_seed(derived_seed(trial.seed, "statistical certificate"))
    for done in range(trial.samples):
        network = Predictor(posterior.graph, posterior.sample(1, generator))
        yield certify(
            network if device is None else network.to(find_device(device)),
            x,
            y,
            eps=trial.eps,
            norm=trial.norm,
            domain=trial.domain,
            bounds=trial.bounds,
            rule=trial.rule,
            rounding=trial.rounding,
            batch_size=batch_size,
        )
        if progress is not None:
            progress(done + 1, trial.samples)


def _trial(
    posterior: Posterior,
    x: Tensor,
    y: Tensor,
    samples: int,
    seed: int,
    confidence: float,
    method: str,
    joint: bool,
    *ball_and_bounds: Any,
) -> Trial:
    """Check what can be checked before anything is drawn."""
    _require_independent(posterior)
    if posterior.task != "classification":
        raise InvalidInput("class certificates need a classifier; this posterior does regression.")
    require_count(samples, "samples")
    require_confidence(confidence)
    require_labels(y, posterior.graph.classes, len(x))
    if method not in METHODS:
        raise InvalidInput(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    tensors = posterior.tensors()
    digest = tensor_digest({**tensors, **{f"buffer:{name}": b for name, b in posterior.buffers.items()}})
    # As networks will be drawn, not as the posterior is stored; this one is not used.
    drawn = posterior.sample(1, torch.Generator())
    dtype = str(next(iter(drawn.values())).dtype).removeprefix("torch.")
    kind = type(posterior).__name__
    points = tensor_digest({"inputs": x})
    return Trial(kind, digest, dtype, samples, seed, confidence, method, joint, len(x), points, *ball_and_bounds)


def _require_independent(posterior: Posterior) -> None:
    if not isinstance(posterior, Posterior):
        raise InvalidInput(
            f"statistical certificates draw weights from a posterior; got {type(posterior).__name__}. Fixed weight "
            "samples are certified without any chance: certify(predictor, ...)."
        )
    if posterior.independent:
        return
    if isinstance(posterior, Point):
        raise InvalidInput("a Point is a single network with nothing random about it: certify(posterior.predictor()).")
    raise InvalidInput(
        f"a {type(posterior).__name__} posterior is a fixed set of samples, such as a Markov chain or an ensemble. "
        "Its samples are correlated, and picking among them again does not make independent draws, so no confidence "
        "bound would hold. Certify the very samples, certify(posterior.predictor(), ...), or use a posterior that "
        "can be drawn from, such as a DiagonalGaussian."
    )
