"""Whether Markov chains have run long enough: R-hat and effective sample size, of predictions and of weights.

M chains of n draws each estimate the variance of a quantity twice: within chains, by the mean W of their variances, and
across them, by adding the variance B/n of their means. Chains that have found the same distribution agree on both:

    R-hat = sqrt( ((n - 1)/n W + B/n) / W )  ->  1,          ESS = M n / (1 + 2 sum_t rho_t),

where rho_t is the autocorrelation at lag t, so that ESS is the number of independent draws that would estimate the mean
as well. Following Vehtari et al., "Rank-normalization, folding, and localization: an improved R-hat for assessing
convergence of MCMC", Bayesian Analysis 16(2), 2021, each chain is split in half, draws are replaced by the normal
scores of their ranks, and R-hat is the larger of that of the draws (location) and that of their distances from the
median (scale). ArviZ computes both.

What is measured matters. Hidden units may swap places without any change of the function, so chains that predict alike
can still disagree on weights: the verdict is about predictions. Ranks do not change under a monotone map, so class
probabilities are followed as log-odds, which tell apart what float64 rounds to 0 or 1.

A chain that does not move says nothing about the posterior, yet the formulas then give 0/0, or an ESS as large as the
number of draws. A quantity is called stuck if some chain never changes it. If other draws differ, this chain has
provably missed something: R-hat is infinite and ESS 0. If all draws of all chains are the same, nothing is known
(the value may be right, as for a saturated output, or every move was rejected): both are NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from certibayes.errors import InvalidInput, MissingPackage
from certibayes.posteriors import Posterior, Samples
from certibayes.support.checks import inputs_of, require_count
from certibayes.support.seeds import derived_seed

RHAT_BAR = 1.01
"""Vehtari et al. (2021): do not use draws whose R-hat is above."""

ESS_BAR = 100
"""Vehtari et al. (2021): effective draws for each chain, below which R-hat and ESS themselves cannot be trusted."""

MIN_DRAWS = 4
"""Draws in a chain, so that each half has a variance."""


@dataclass(frozen=True, eq=False)
class Convergence:
    """R-hat and effective sample size of each of a set of quantities, all of the same shape.

    Attributes:
        rhat: rank-normalized split R-hat, float64; infinite where a chain is shown to be stuck, NaN where nothing is
            known.
        ess: bulk effective sample size, float64; 0 and NaN likewise. It may exceed the number of draws, where draws
            alternate around their mean.
        stuck: whether some chain never changes the quantity.
    """

    rhat: Tensor
    ess: Tensor
    stuck: Tensor

    def __repr__(self) -> str:
        figures = self.summary()
        parts = [f"{figures['count']} quantities", f"{figures['stuck']} stuck"]
        if figures["rhat_max"] is not None and figures["ess_min"] is not None:
            parts[1:1] = [f"largest R-hat {figures['rhat_max']:.3f}", f"smallest ESS {figures['ess_min']:.0f}"]
        return f"Convergence({', '.join(parts)})"

    def summary(self) -> dict[str, float | int | None]:
        """Return the figures that matter over all quantities of which they are known; None if there are none."""
        return {
            "count": self.rhat.numel(),
            "rhat_median": _quantile(self.rhat, 0.5, "higher"),
            "rhat_95": _quantile(self.rhat, 0.95, "higher"),
            "rhat_max": _quantile(self.rhat, 1.0, "higher"),
            "ess_min": _quantile(self.ess, 0.0, "lower"),
            "ess_median": _quantile(self.ess, 0.5, "lower"),
            "stuck": int(self.stuck.sum()),
        }


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """How well Markov chains have mixed.

    Attributes:
        chains: number of chains.
        draws: number of draws in each.
        predictions: of each prediction, (points, outputs).
        weights: of each of the weights that were picked, (W,).
    """

    chains: int
    draws: int
    predictions: Convergence
    weights: Convergence

    def __repr__(self) -> str:
        chains = "1 chain" if self.chains == 1 else f"{self.chains} chains"
        return (
            f"Diagnostics({chains} of {self.draws} draws)\n"
            f"  predictions: {self.predictions}\n"
            f"  weights:     {self.weights}\n"
            f"  verdict:     {self.verdict}"
        )

    @property
    def passed(self) -> bool:
        """Whether predictions clear both usual bars and none is stuck; no proof that the chains have converged."""
        return self._passed_and_verdict()[0]

    @property
    def verdict(self) -> str:
        """What the figures mean for the predictions, in one sentence."""
        return self._passed_and_verdict()[1]

    @property
    def chance(self) -> float:
        """The R-hat that no prediction would exceed, with probability 99%, if all draws were independent.

        The largest of many R-hats exceeds 1 by chance alone, the more the shorter the chains. For m independent
        sequences of n normal draws B/W has the F distribution with m - 1 and m(n - 1) degrees of freedom; the level is
        shared among the predictions, and between location and scale, by Bonferroni's inequality.
        """
        from scipy.special import fdtri  # slow to import

        sequences, length = _sequences(self.chains, self.draws)
        if length < 2:
            return math.inf
        level = 1.0 - 0.01 / (2 * self.predictions.rhat.numel())
        ratio = float(fdtri(sequences - 1, sequences * (length - 1), level))
        return math.sqrt((ratio + length - 1) / length)

    def summary(self) -> dict[str, Any]:
        """Return a plain dictionary of figures over all predictions and all picked weights."""
        return {
            "chains": self.chains,
            "draws": self.draws,
            "predictions": self.predictions.summary(),
            "weights": self.weights.summary(),
            "rhat_bar": RHAT_BAR,
            "rhat_chance": self.chance,
            "ess_bar": ESS_BAR * self.chains,
            "passed": self.passed,
            "verdict": self.verdict,
        }

    def _passed_and_verdict(self) -> tuple[bool, str]:
        who = "the chain has" if self.chains == 1 else "chains have"
        count, stuck = self.predictions.rhat.numel(), int(self.predictions.stuck.sum())
        needed = MIN_DRAWS * (2 if self.chains == 1 else 1)
        if self.draws < needed:
            return (
                False,
                f"nothing can be said: R-hat needs {needed} draws in a chain, and there are {self.draws}.",
            )
        if stuck:
            who, which = ("the chain is", "it") if self.chains == 1 else ("chains are", "some chain")
            return False, f"{who} stuck: {stuck} of {count} predictions never change along {which}."
        figures = self.predictions.summary()
        worst, smallest = figures["rhat_max"], figures["ess_min"]
        assert worst is not None and smallest is not None  # known wherever nothing is stuck and draws suffice
        reaches = f"R-hat of predictions reaches {worst:.3f}"
        if worst > max(RHAT_BAR, self.chance):
            return False, f"{who} not mixed: {reaches}; {RHAT_BAR} is the usual bar."
        if worst > RHAT_BAR:
            return False, (
                f"{who} too few draws to tell: {reaches} ({RHAT_BAR} is the usual bar), but chance alone may take "
                f"it to {self.chance:.3f}."
            )
        bar = ESS_BAR * self.chains
        if smallest < bar:
            return False, (
                f"{who} too few effective draws: some prediction rests on {smallest:.0f}, and {bar} is the usual bar, "
                f"although {reaches} only."
            )
        caveat = ", though one chain cannot show what others would find" if self.chains == 1 else ""
        enough = f"every effective sample size is at least {smallest:.0f}"
        return True, f"no sign of trouble: {reaches} and {enough}{caveat}."


@torch.no_grad()
def diagnose(posterior: Posterior, x: Tensor, *, weights: int = 1000, seed: int = 0) -> Diagnostics:
    """Measure how well the Markov chains behind a posterior have mixed.

    A single chain can only be compared with itself: its two halves then stand for two chains, and are split again.

    Args:
        posterior: samples from Markov chains, as ``fit`` returns them for HMC and SGHMC: chain by chain, with the
            number of chains in ``posterior.metadata["chains"]``.
        x: inputs (points, ...) whose predictions are followed: log-odds of class probabilities or regression outputs.
        weights: number of single weights to follow, picked at random; all of them if there are fewer.
        seed: of that choice.

    Raises:
        InvalidInput: the posterior does not come from Markov chains.
        MissingPackage: ArviZ is not installed.
    """
    require_count(weights, "weights")
    x = inputs_of(x, "the inputs")
    if len(x) == 0:
        raise InvalidInput("there are no inputs to predict.")
    if not isinstance(posterior, Samples) or "chains" not in posterior.metadata:
        raise InvalidInput(
            f"R-hat and effective sample size are about Markov chains, and this posterior ({type(posterior).__name__}) "
            'holds none. If its samples are chains, one after another, set posterior.metadata["chains"] to how many.'
        )
    chains = int(posterior.metadata["chains"])
    require_count(chains, 'posterior.metadata["chains"]')
    if len(posterior) % chains:
        raise InvalidInput(f"{len(posterior)} samples cannot be {chains} chains of equal length.")
    return Diagnostics(
        chains,
        len(posterior) // chains,
        predictions=_convergence(_predictions(posterior, x), chains),
        weights=_convergence(_some_weights(posterior, weights, seed), chains),
    )


def _predictions(posterior: Samples, x: Tensor, batch_size: int = 500) -> Tensor:
    """Return what every sample network predicts, in float64: (S, points, outputs)."""
    predictor = posterior.predictor()
    parts = [predictor.sample_outputs(part.to(predictor.device)).double() for part in x.split(batch_size)]
    outputs = torch.cat(parts, 1)
    return outputs if posterior.task == "regression" else _log_odds(outputs)


def _log_odds(logits: Tensor) -> Tensor:
    """Return log p_c / (1 - p_c) of each class of a softmax, (..., C), however close p_c is to 0 or 1."""
    classes = logits.shape[-1]
    others = [[other for other in range(classes) if other != c] for c in range(classes)]
    return torch.stack([logits[..., c] - logits[..., others[c]].logsumexp(-1) for c in range(classes)], -1)


def _some_weights(posterior: Samples, number: int, seed: int) -> Tensor:
    """Return ``number`` weights of every sample, the same for all: (S, number)."""
    flat = [posterior.stacked[name].reshape(len(posterior), -1) for name in posterior.graph.parameters]
    total = sum(tensor.shape[1] for tensor in flat)
    generator = torch.Generator().manual_seed(derived_seed(seed, "diagnostics"))
    chosen = torch.randperm(total, generator=generator)[:number].sort().values
    picked, start = [], 0
    for tensor in flat:  # one by one, for all weights of all samples at once may not fit in memory twice
        here = chosen[(chosen >= start) & (chosen < start + tensor.shape[1])] - start
        picked.append(tensor[:, here.to(tensor.device)])
        start += tensor.shape[1]
    return torch.cat(picked, 1)


def _sequences(chains: int, draws: int) -> tuple[int, int]:
    """Return how many sequences R-hat compares, and how long each is: halves of chains, quarters of a single one."""
    return (4, draws // 4) if chains == 1 else (2 * chains, draws // 2)


def _convergence(series: Tensor, chains: int) -> Convergence:
    """Diagnose each quantity of ``series`` (S, ...), which is ordered chain by chain."""
    arviz, shape = _arviz(), series.shape[1:]
    values = series.double().cpu().numpy().reshape(chains, len(series) // chains, -1)
    draws, count = values.shape[1:]
    # Whole sequences only: ArviZ would leave out the middle draw, which may be the only one that differs.
    used = values[:, draws % (4 if chains == 1 else 2) :]
    rhat, ess = np.full(count, np.nan), np.full(count, np.nan)
    if draws < MIN_DRAWS:
        stuck = (values == values[:, :1]).all(1).any(0) & (draws > 1)
    else:
        stuck = (used == used[:, :1]).all(1).any(0)
        differs = (used != used[:1, :1]).any((0, 1))
        rhat[stuck & differs], ess[stuck & differs] = np.inf, 0.0
        moving = used[..., ~stuck]
        # Draws that change only between sequences have W = 0 and so, rightly, an infinite R-hat.
        with np.errstate(divide="ignore", invalid="ignore"):
            ess[~stuck] = arviz.ess(moving, chain_axis=0, draw_axis=1, method="bulk")
            if chains == 1:
                moving = moving.reshape(2, moving.shape[1] // 2, -1)
            if moving.shape[1] >= MIN_DRAWS:
                rhat[~stuck] = arviz.rhat(moving, chain_axis=0, draw_axis=1, method="rank")
    return Convergence(*(torch.from_numpy(result).reshape(shape) for result in (rhat, ess, stuck)))


def _quantile(values: Tensor, level: float, interpolation: str) -> float | None:
    """Return one of the values that are not NaN; never between two of them, one of which may be infinite."""
    known = values[~values.isnan()]
    return float(torch.quantile(known, level, interpolation=interpolation)) if known.numel() else None


def _arviz() -> Any:
    try:
        from arviz_stats.base import array_stats
    except ImportError as error:
        raise MissingPackage(
            'diagnostics need ArviZ. Install it with: pip install "certibayes[diagnostics]"'
        ) from error
    return array_stats
