"""The probability that a network drawn from the posterior is robust."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from certibayes.certification import Method, as_method
from certibayes.posteriors import Posterior
from certibayes.regions import Domain, as_radius, resolve_domain
from certibayes.statistical._draws import Draws
from certibayes.statistical.concentration import INEQUALITIES, NOTHING
from certibayes.statistical.results import RobustProbability
from certibayes.support.progress import Report


def robust_probability(  # noqa: PLR0913 - public
    posterior: Posterior,
    x: Tensor,
    y: Tensor,
    *,
    eps: float | Tensor,
    norm: str = "linf",
    domain: Domain | Literal["predictor"] = "predictor",
    samples: int = 500,
    confidence: float = 0.99,
    inequality: str = "clopper-pearson",
    joint: bool = False,
    seed: int = 0,
    method: str | Method = "pairwise",
    rounding: str = "outward",
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    progress: bool | Report = False,
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
        domain: see ``certify``; by default the posterior's own, ``posterior.domain``.
        samples: number n of draws.
        confidence: probability that both bounds of a point hold.
        inequality: ``"clopper-pearson"`` (exact), ``"hoeffding"`` or ``"bernstein"``.
        joint: whether they hold for all points at once; otherwise for each point by itself.
        seed: of the draws; they differ from those of ``posterior.predictor`` with the same seed.
        method: see ``certify``.
        rounding: see ``certify``.
        batch_size: points bounded at once; see ``certify``.
        device: where networks are bounded; by default where the posterior is.
        progress: True shows a bar on standard error, False nothing; a function is called with (draws done, all
            draws).

    Raises:
        InvalidInput: the posterior's samples are not independent, or a setting cannot be used.
    """
    draws = Draws(posterior, x, y, batch_size, device, progress)
    trial = draws.trial(
        samples, seed, as_method(method),
        confidence=confidence, inequality=inequality, joint=joint, eps=as_radius(eps), norm=norm,
        domain=resolve_domain(domain, posterior), rounding=rounding,
    )  # fmt: skip
    sums = NOTHING
    for certificate in draws.certificates(trial):
        sums = sums.plus(certificate.certified.double().cpu())
    lower, upper = INEQUALITIES[inequality](sums, trial.failure(2))
    return RobustProbability(draws.y.cpu(), sums.total.long(), lower, upper, trial)
