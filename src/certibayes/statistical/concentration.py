"""Concentration inequalities: what a mean over independent draws says about the expectation, with a confidence.

Hoeffding (1963), empirical Bernstein (Maurer and Pontil, 2009) and, for proportions, Clopper and Pearson (1934).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.support.checks import require_count
from certibayes.support.optional import require_package


class Sums(NamedTuple):
    """Sums over independent draws of quantities in [0, 1], which is all that the inequalities need.

    The sum of n such numbers, in any order, is off by less than n² 2⁻⁵³, their mean by n 2⁻⁵³; see ``summation_slack``.
    """

    draws: int
    total: Tensor
    squares: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Sums:
        """Sum over the first dimension of ``values``, (n, ...)."""
        values = values.double()
        return cls(len(values), values.sum(0), values.square().sum(0))

    def plus(self, value: Tensor) -> Sums:
        """Add one draw."""
        return Sums(self.draws + 1, self.total + value, self.squares + value.square())

    @property
    def mean(self) -> Tensor:
        """Mean over the draws."""
        return self.total / self.draws

    @property
    def variance(self) -> Tensor:
        """Unbiased variance over the draws, never less than the exact one of these numbers."""
        deviations = (self.squares - self.total * self.mean).clamp(min=0.0)
        return deviations / (self.draws - 1) + 8 * summation_slack(self.draws)


NOTHING = Sums(0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64))


def summation_slack(draws: int) -> float:
    """More than rounding in float64 can change a mean of n numbers in [0, 1], or what is computed from it."""
    return (draws + 16) * 2.0**-50


def hoeffding(sums: Sums, failure: float) -> tuple[Tensor, Tensor]:
    """Bound E[Z], Z in [0, 1]: |mean - E[Z]| <= sqrt( log(1/δ) / (2 n) ), each side with probability 1 - δ.

    Hoeffding, "Probability inequalities for sums of bounded random variables", JASA 58, 1963, Theorem 2.
    """
    return _around(sums, torch.full_like(sums.total, math.sqrt(-math.log(failure) / (2 * sums.draws))))


def bernstein(sums: Sums, failure: float) -> tuple[Tensor, Tensor]:
    """Bound E[Z], Z in [0, 1], with the sample variance V: better than Hoeffding where V is small.

        |mean - E[Z]| <= sqrt( 2 V log(2/δ) / n ) + 7 log(2/δ) / (3 (n - 1)),  each side with probability 1 - δ.

    Maurer and Pontil, "Empirical Bernstein bounds and sample variance penalization", COLT 2009, Theorem 4.
    """
    if sums.draws < 2:
        raise InvalidInput("an empirical variance needs at least 2 draws.")
    depth = math.log(2) - math.log(failure)
    return _around(sums, (2 * depth / sums.draws * sums.variance).sqrt() + 7 * depth / (3 * (sums.draws - 1)))


def clopper_pearson(sums: Sums, failure: float) -> tuple[Tensor, Tensor]:
    """Bound the probability p of success by inverting the binomial test; k of n draws succeeded.

    The lower bound is the p at which k or more successes have probability δ, a quantile of Beta(k, n - k + 1); the
    upper bound is 1 minus the lower one of the failures. Clopper and Pearson, Biometrika 26, 1934.
    """
    if not bool((sums.squares == sums.total).all()):
        raise InvalidInput("Clopper-Pearson bounds are for proportions: every draw must be 0 or 1.")

    lower, others = (
        torch.from_numpy(_smallest_proportion(k.numpy(), sums.draws, failure))
        for k in (sums.total, sums.draws - sums.total)
    )
    return lower, (1 - others + 2.0**-52).clamp(max=1.0)


def _smallest_proportion(
    successes: NDArray[np.float64], draws: float | NDArray[np.float64], failure: float
) -> NDArray[np.float64]:
    betaincinv = require_package("scipy.special", "statistical").betaincinv
    # Quantiles are accurate to many more digits than the nine that are asked for here; smaller is safe.
    quantile = betaincinv(np.maximum(successes, 1), draws - successes + 1, failure)
    return np.asarray(np.where(successes > 0, quantile * (1 - 1e-9), 0.0))


def binomial_tail(successes: int, draws: int, probability: float) -> float:
    """Return P[k or more of n draws succeed], each with a probability p in (0, 1]; its last digits are off."""
    if successes <= 0 or probability >= 1.0:
        return 1.0
    success, failure, ways = math.log(probability), math.log1p(-probability), math.lgamma(draws + 1)
    return math.fsum(
        math.exp(ways - math.lgamma(k + 1) - math.lgamma(draws - k + 1) + k * success + (draws - k) * failure)
        for k in range(successes, draws + 1)
    )


def _around(sums: Sums, radius: Tensor) -> tuple[Tensor, Tensor]:
    radius = radius + summation_slack(sums.draws)
    return (sums.mean - radius).clamp(min=0.0), (sums.mean + radius).clamp(max=1.0)


INEQUALITIES: dict[str, Callable[[Sums, float], tuple[Tensor, Tensor]]] = {
    "hoeffding": hoeffding,
    "bernstein": bernstein,
    "clopper-pearson": clopper_pearson,
}
"""Lower and upper bounds on the mean of a quantity in [0, 1], each failing with at most the given probability."""


def hoeffding_tail(mean: Tensor, threshold: float, draws: int) -> Tensor:
    """Bound P[ average of n draws <= t ] for draws in [-1, 1] whose expectation is at least m > t.

    exp(-n kl(a, b)) with a = (1 + t)/2, b = (1 + m)/2 and kl(a, b) = a log(a/b) + (1 - a) log((1 - a)/(1 - b)), which
    for t = 0 is (1 - m²)^(n/2). Hoeffding (1963), Theorem 1. It falls with m, so a lower bound on m may stand for it.

    Args:
        mean: m, float64, any shape.
        threshold: t in [0, 1).
        draws: n.

    Returns:
        Probabilities, 1 where m <= t.
    """
    high, low = (1 + threshold) / 2, (1 - threshold) / 2
    entropy = high * (math.log(high) - ((1 + mean) / 2).log()) + low * (math.log(low) - ((1 - mean) / 2).log())
    # (1 + m) / 2 and (1 - m) / 2 are off by 2⁻⁵³ of themselves, their logarithms by 2⁻⁵³ and 2⁻⁵³ of themselves.
    entropy = entropy * (1 - 2.0**-40) - 2.0**-48
    return torch.where(mean > threshold, torch.exp(-draws * entropy), 1.0).clamp(max=1.0)


def samples_needed(
    margin: float, *, confidence: float = 0.99, inequality: str = "fresh", statements: int = 1, observed: float = 1.0
) -> int:
    """Return the smallest number N of independent draws that suffices.

    Args:
        margin: see ``inequality``; in (0, 1].
        confidence: wanted probability of success.
        inequality: what is to succeed, and by which inequality it is shown.
            ``"fresh"``: a predictor of N fresh weight samples classifies the whole ball as y, where the worst-case
            predictive of y leads that of every rival by ``margin``: (1 - margin²)^(N/2) <= δ in exact arithmetic.
            ``"hoeffding"``: a mean in [0, 1] is known up to ``margin``: sqrt(log(1/δ) / (2 N)) <= margin.
            ``"clopper-pearson"``: if the fraction ``observed`` of the draws succeeds, rounded down to a whole number,
            the probability of success is shown to be at least observed - margin. Every N is tried in turn, since
            rounding makes the bound rise and fall.
        statements: number of one-sided bounds that must hold jointly, δ = (1 - confidence) / statements. For
            ``"fresh"`` the C - 1 rivals; for ``robust_probability`` 2, and times the number of points if joint.
        observed: see above.
    """
    require_confidence(confidence)
    require_count(statements, "statements")
    if not 0 < margin <= 1:
        raise InvalidInput(f"margin must lie in (0, 1], got {margin}.")
    failure = failure_per_statement(confidence, statements)
    if inequality == "fresh":
        return _first(lambda n: margin == 1 or n / 2 * math.log1p(-(margin**2)) <= math.log(failure))
    if inequality == "hoeffding":
        return _first(lambda n: -math.log(failure) <= 2 * n * margin**2)
    if inequality != "clopper-pearson":
        raise InvalidInput(f'inequality must be "fresh", "hoeffding" or "clopper-pearson", got {inequality!r}.')
    if not margin <= observed <= 1:
        raise InvalidInput(f"observed must lie between margin and 1, got {observed}.")
    start, step = 1, 1024
    while start < 10**6:
        counts = np.arange(start, start + step, dtype=np.float64)
        enough = _smallest_proportion(np.floor(observed * counts), counts, failure) >= observed - margin
        if enough.any():
            return start + int(enough.argmax())
        start, step = start + step, 2 * step
    raise InvalidInput("more than a million draws would be needed; allow a larger margin.")


def _first(suffices: Callable[[int], bool]) -> int:
    """Return the smallest n for which a monotone condition holds."""
    high = 1
    while not suffices(high):
        high *= 2
        if high > 2**60:
            raise InvalidInput("no number of draws that could ever be made suffices; allow a larger margin.")
    return bisect.bisect_left(range(1, high + 1), True, key=suffices) + 1


def require_confidence(confidence: float) -> None:
    """Raise unless ``confidence`` is a probability strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise InvalidInput(f"a confidence lies strictly between 0 and 1, got {confidence}.")


def failure_per_statement(confidence: float, *divisors: int) -> float:
    """Split 1 - confidence evenly, rounded down; a batch of no points counts as one."""
    return (1.0 - confidence) * (1 - 2.0**-40) / math.prod(max(divisor, 1) for divisor in divisors)
