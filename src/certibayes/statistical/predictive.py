"""The worst-case predictive of the posterior itself."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from certibayes.certification import Method, Theorem1, as_method
from certibayes.errors import InvalidInput
from certibayes.posteriors import Posterior
from certibayes.regions import Domain, as_radius, resolve_domain
from certibayes.statistical._draws import Draws
from certibayes.statistical.concentration import INEQUALITIES, NOTHING
from certibayes.statistical.results import PredictiveBounds
from certibayes.support.progress import Report


def posterior_predictive_bounds(  # noqa: PLR0913 - public
    posterior: Posterior,
    x: Tensor,
    y: Tensor,
    *,
    eps: float | Tensor,
    norm: str = "linf",
    domain: Domain | Literal["predictor"] = "predictor",
    samples: int = 500,
    confidence: float = 0.99,
    inequality: str = "bernstein",
    joint: bool = False,
    seed: int = 0,
    method: str | Method = "theorem1",
    rounding: str = "outward",
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    progress: bool | Report = False,
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
        domain: see ``certify``; by default the posterior's own, ``posterior.domain``.
        samples: number n of draws.
        confidence: probability that all bounds of a point hold.
        inequality: ``"bernstein"`` or ``"hoeffding"``; Clopper-Pearson bounds are for proportions.
        joint: whether they hold for all points at once; otherwise for each point by itself.
        seed: of the draws.
        method: see ``certify``; class bounds do not depend on a rule, so of it count ``bounds`` and
            ``intermediates``.
        rounding: see ``certify``.
        batch_size: see ``robust_probability``.
        device: likewise.
        progress: likewise.

    Raises:
        InvalidInput: the posterior's samples are not independent, or a setting cannot be used.
    """
    if inequality == "clopper-pearson":
        raise InvalidInput(
            "Clopper-Pearson bounds are for proportions; probabilities between 0 and 1 need inequality='bernstein' or "
            "'hoeffding'."
        )
    chosen, draws = as_method(method), Draws(posterior, x, y, batch_size, device, progress)
    # Class bounds do not depend on a rule; theorem1 is the cheapest one.
    trial = draws.trial(
        samples, seed, Theorem1(chosen.bounds, chosen.intermediates),
        confidence=confidence, inequality=inequality, joint=joint, eps=as_radius(eps), norm=norm,
        domain=resolve_domain(domain, posterior), rounding=rounding,
    )  # fmt: skip
    labels, low, high, leads = draws.y.cpu(), NOTHING, NOTHING, NOTHING
    for certificate in draws.certificates(trial):
        # The certified range of the float program may exceed 1 by its rounding; the softmax of its logits does not.
        smallest, largest = certificate.lower.cpu(), certificate.upper.cpu().clamp(max=1.0)
        low, high = low.plus(smallest), high.plus(largest)
        leads = leads.plus((smallest_differences(smallest, largest, labels) + 1) / 2)
    bound, failure = INEQUALITIES[inequality], trial.failure(3 * posterior.graph.classes - 1)
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
