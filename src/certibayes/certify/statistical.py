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

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from certibayes._version import __version__
from certibayes.bounds import Domain
from certibayes.bounds.checks import require_count, require_labels
from certibayes.certify.certificate import DISTANCES, Certificate
from certibayes.certify.certify import certify
from certibayes.certify.concentration import (
    METHODS,
    NOTHING,
    hoeffding_tail,
    require_confidence,
    share_of_failure,
    summation_slack,
)
from certibayes.errors import InvalidInput
from certibayes.networks.device import find_device
from certibayes.networks.seeds import derived_seed
from certibayes.posteriors import Point, Posterior
from certibayes.posteriors.storage import tensor_digest
from certibayes.prediction import Predictor

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Trial:
    """How networks were drawn and bounded, and what confidence that buys.

    Attributes:
        posterior: kind of the posterior.
        digest: SHA-256 of its tensors.
        dtype: their precision, in which networks run.
        samples: number n of independent draws.
        seed: of the draws.
        confidence: probability, over the draws, that what is stated holds.
        method: the inequality.
        joint: whether it holds for all points together, or for each by itself.
        points: number of points.
        inputs_digest: SHA-256 of the points, as ``tensor_digest({"inputs": x})`` computes it.
        eps: radius.
        norm: of the distance from a point: ``"linf"``, ``"l2"`` or ``"l1"``.
        domain: inputs are known to lie in it; None for all of space.
        bounds: how networks were bounded.
        rule: when a network counts as certified.
        rounding: ``"outward"`` if bounds hold for the float program, ``"ideal"`` if for exact arithmetic only.
        version: of certibayes.
    """

    posterior: str
    digest: str
    dtype: str
    samples: int
    seed: int
    confidence: float
    method: str
    joint: bool
    points: int
    inputs_digest: str
    eps: float | Tensor
    norm: str
    domain: Domain
    bounds: str
    rule: str
    rounding: str
    version: str = __version__

    def failure(self, statements: int) -> float:
        """Return the probability with which each of ``statements`` one-sided bounds of a point may fail."""
        return share_of_failure(self.confidence, statements, self.points if self.joint else 1)

    @property
    def confidence_in_words(self) -> str:
        """Over what the confidence is, and for how many points at once."""
        scope = f"for all {self.points} points together" if self.joint else "for each point by itself"
        return (
            f"With confidence {self.confidence!r}, {scope}, over {self.samples} independent draws from the "
            f"{self.posterior} posterior with digest sha256:{self.digest[:16]} (seed {self.seed}, which must not have "
            "been chosen by its outcome)"
        )

    @property
    def ball_in_words(self) -> str:
        """Which inputs are meant."""
        where = "" if self.domain is None else f" with values in [{self.domain[0]:g}, {self.domain[1]:g}]"
        if isinstance(self.eps, Tensor):
            return (
                f"every input{where} within the given {DISTANCES[self.norm]} radii, up to {_largest(self.eps)!r}, of it"
            )
        return f"every input{where} within {DISTANCES[self.norm]} distance {self.eps!r} of it"

    @property
    def proof_in_words(self) -> str:
        """How a single network was bounded."""
        program = f"as {self.dtype} programs that evaluate them by direct sums (no TF32, no autocast)"
        ideal = "in exact arithmetic; rounding of the program that runs is not accounted for"
        return f"by {self.bounds} bounds for networks {program if self.rounding == 'outward' else ideal}"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings."""
        return {name: _plain(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class RobustProbability:
    """Bounds on the probability that a drawn network is robust at a point.

    Attributes:
        labels: the class in question for each point, (B,).
        certified: how many of the drawn networks are proved to classify the whole ball as the label, (B,).
        lower: P_w[network w is robust] is at least this, float64 (B,).
        upper: P_w[network w is certified] is at most this, float64 (B,). A network may be robust without a proof, so
            this bounds what the bounds can show, not robustness.
        trial: draws, confidence and ball.
    """

    labels: Tensor
    certified: Tensor
    lower: Tensor
    upper: Tensor
    trial: Trial

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.labels)

    @property
    def statement(self) -> str:
        """What was proved, in words."""
        trial = self.trial
        return (
            f"{trial.confidence_in_words}: a network drawn afresh classifies the point, and {trial.ball_in_words}, as "
            "the point's label with probability at least lower; and the probability that this can be proved of it is "
            f"at most upper. A network counts as robust only where that is proved, {trial.proof_in_words}, rule "
            f"{trial.rule}. Confidence bounds by {trial.method}, corrected for both sides"
            f"{' and all points' if trial.joint else ''} (union bound). "
            "Nothing is said about the mean prediction, other radii or other kinds of change."
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings."""
        return _record(self)


@dataclass(frozen=True)
class PredictiveBounds:
    """Bounds on the worst-case predictive of a posterior, E_w[softmax f^w(x)] over the ball.

    Attributes:
        labels: the class in question for each point, (B,).
        lower: over the whole ball, every class probability of the posterior predictive is at least this, float64
            (B, C).
        upper: at most this, float64 (B, C).
        margins: for every rival c, the predictive of the label minus that of c is at least this over the whole ball,
            float64 (B, C); 1 for the label itself. Differences are bounded network by network, which is tighter than
            ``lower`` of the label minus ``upper`` of c.
        trial: draws, confidence and ball.
    """

    labels: Tensor
    lower: Tensor
    upper: Tensor
    margins: Tensor
    trial: Trial

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.labels)

    @property
    def certified(self) -> Tensor:
        """Where the posterior predictive classifies the whole ball as the label, (B,)."""
        return self.margins.amin(-1) > 0

    @property
    def statement(self) -> str:
        """What was proved, in words."""
        trial = self.trial
        return (
            f"{trial.confidence_in_words}: at the point and {trial.ball_in_words}, every class probability of the "
            "posterior predictive (the mean of the softmax over all weights of the posterior, not over a sample) lies "
            "between lower and upper, and that of the point's label exceeds that of each rival by at least margins; so "
            "where certified, the posterior predictive classifies the whole ball as the label. "
            f"Each drawn network was bounded {trial.proof_in_words}. Confidence bounds by {trial.method}, corrected "
            f"for all classes, both sides and all rivals{' and all points' if trial.joint else ''} (union bound). "
            "Nothing is said about any finite set of weight samples, other radii or other kinds of change."
        )

    def fresh_predictor(self, samples: int, confidence: float = 0.99) -> FreshPredictorBounds:
        """Carry the bounds over to a predictor with weights that are yet to be drawn.

        Two things are random. These bounds hold with the confidence of their own draws; and if they hold, the
        mean of N fresh draws stays near E_w by Hoeffding's inequality: with D_c(w) <= min over the ball of
        softmax_y - softmax_c, a number in [-1, 1] with E_w[D_c] >= margin_c,

            P[ the fresh predictor errs somewhere in the ball ]  <=  Σ_c P[ mean of N draws of D_c <= t ]
                                                                 <=  Σ_c exp(-N kl( (1 + t)/2 , (1 + margin_c)/2 )),

        which is Theorem 1 of Hoeffding (1963); kl is the relative entropy of two coins, and t is the lead that rounding
        in the predictor could take back (0 for ideal arithmetic).

        Args:
            samples: N, of ``posterior.predictor(samples, seed)``; its draws are never those behind these bounds.
            confidence: wanted probability over the fresh draws; for all points together if these bounds are joint.
        """
        require_count(samples, "samples")
        require_confidence(confidence)
        points = len(self) if self.trial.joint else 1
        allowed = share_of_failure(confidence, 2 * self.lower.shape[-1], points)
        lead = self._lead(samples)
        # The lead is also more than the predictor's own rounding of a probability; the rest pays for this line.
        radius = math.sqrt(-math.log(allowed) / (2 * samples)) * (1 + 2.0**-40) + lead + summation_slack(samples)
        failure = (hoeffding_tail(self.margins, lead, samples).sum(-1) * (1 + 2.0**-40)).clamp(max=1.0)
        return FreshPredictorBounds(
            labels=self.labels,
            lower=(self.lower - radius).clamp(min=0.0),
            upper=(self.upper + radius).clamp(max=1.0 + lead),
            failure=failure,
            certified=failure <= share_of_failure(confidence, 1, points),
            samples=samples,
            confidence=confidence,
            trial=self.trial,
        )

    def _lead(self, samples: int) -> float:
        """Lead in probability that shows in the float predictor; twice the slack that ``certify`` allows for."""
        if self.trial.rounding == "ideal":
            return 0.0
        unit = torch.finfo(getattr(torch, self.trial.dtype)).eps / 2
        return 2 * (4 * unit * (1 + math.log(self.lower.shape[-1])) + 2.0**-50 * (samples + 16))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings."""
        return {**_record(self), "certified": self.certified.tolist()}


@dataclass(frozen=True)
class FreshPredictorBounds:
    """Bounds on what a predictor with N freshly drawn weight samples does over the ball.

    Attributes:
        labels: the class in question for each point, (B,).
        lower: all its class probabilities over the ball are at least this, float64 (B, C).
        upper: at most this, float64 (B, C).
        failure: probability that it classifies some input of the ball as another class is at most this, float64 (B,).
        certified: where that is no more than the wanted confidence leaves, (B,).
        samples: N.
        confidence: wanted probability over the N fresh draws.
        trial: draws behind the bounds on the posterior, with a confidence of their own.
    """

    labels: Tensor
    lower: Tensor
    upper: Tensor
    failure: Tensor
    certified: Tensor
    samples: int
    confidence: float
    trial: Trial

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.labels)

    @property
    def statement(self) -> str:
        """What was proved, in words."""
        trial = self.trial
        together = ", for all points together" if trial.joint else ""
        return (
            f"{trial.confidence_in_words}, the following is true of the posterior. Draw {self.samples} further weight "
            f"samples independently and average their softmax. With probability at least {self.confidence!r} over "
            f"these fresh draws{together}, its class probabilities at the point and {trial.ball_in_words} lie between "
            "lower and upper; and the probability that it classifies any of them as another class than the point's "
            "label is at most failure. Where certified, that is no more than this confidence leaves. "
            f"Each drawn network was bounded {trial.proof_in_words}; confidence bounds by {trial.method}, fresh draws "
            "by Hoeffding's inequality, corrected for all classes, both sides and all rivals (union bound). "
            "Nothing is said about weight samples that are already fixed; certify them instead."
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain lists, numbers and strings."""
        return _record(self)


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


def _largest(eps: Tensor) -> float:
    return float(eps.max()) if eps.numel() else 0.0


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _record(result: Any) -> dict[str, Any]:
    """Everything a result holds, as plain lists, numbers and strings."""
    fields = {name: _plain(value) for name, value in vars(result).items() if name != "trial"}
    return {"statement": result.statement, **fields, "trial": result.trial.to_json()}
