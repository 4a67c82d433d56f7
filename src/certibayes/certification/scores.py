"""Certified scores: how badly a predictor can be made to score by inputs of the ball, at most.

A certificate holds l <= p(x) <= u for the class probabilities of every input x of the ball. So over the ball

    -log p_y  <=  -log l_y,        Σ_c (p_c - [c = y])²  <=  max over {p : l <= p <= u, Σ p = 1},

and a mean of these over points bounds the negative log-likelihood and the Brier score that an attacker can bring
about, whatever the attack, as certified accuracy bounds accuracy under attack. The Brier score is convex, so its
maximum is at a vertex of the polytope: exact for up to ten classes, bounded by chords for more.

All methods of certification bound every class, of every point. The bounds are from each network's logits; what a method
proves beyond them is that certified points have p_c < p_y for all rivals, and so p_y > 1/C and p_c < 1/2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.certificates import Certificate
from certibayes.certificates.words import briefly
from certibayes.certification._polytope import lowest_sum
from certibayes.certification.abstention import class_bounds, entropy_bounds, program_slack


@dataclass(frozen=True, eq=False)
class CertifiedScores:
    """Worst cases over the balls of a certificate, for its labels; float64 (B,) each.

    Attributes:
        nll: upper bounds on -log p_y, in nats; infinite where the label's probability may be 0.
        brier: upper bounds on the Brier score, from 0 to 2.
        entropy_lower: lower bounds on the entropy of the mean prediction, in nats.
        entropy_upper: upper bounds.
        certificate: where the bounds come from.
    """

    nll: Tensor
    brier: Tensor
    entropy_lower: Tensor
    entropy_upper: Tensor
    certificate: Certificate

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.nll)

    @property
    def accuracy(self) -> float:
        """Fraction of all points that are certified: a lower bound on accuracy under attack."""
        return self.certificate.certified_fraction

    def summary(self) -> dict[str, float]:
        """Return means over points: no attack brings a higher mean NLL or Brier score about. NaN if there are none."""
        means = {name: getattr(self, name) for name in ("nll", "brier", "entropy_lower", "entropy_upper")}
        return {"accuracy": self.accuracy, **{name: float(values.mean()) for name, values in means.items()}}

    @property
    def statement(self) -> str:
        """What was proved, in words built from this record alone."""
        return (
            "For every input of a point's ball, the negative log-likelihood of its label, in nats, is at most nll, the "
            "Brier score at most brier, and the entropy of the mean prediction, in nats, lies between entropy_lower "
            f"and entropy_upper. Balls, predictor and arithmetic are those of this certificate: "
            f"{self.certificate.statement}"
        )

    def __repr__(self) -> str:
        means, c = self.summary(), self.certificate
        return (
            f"CertifiedScores({len(self)} points at {briefly(c.eps, c.norm)}: accuracy at least {self.accuracy:.1%}, "
            f"NLL at most {means['nll']:.4f}, Brier score at most {means['brier']:.4f}, entropy between "
            f"{means['entropy_lower']:.4f} and {means['entropy_upper']:.4f})"
        )


@torch.no_grad()
def certified_scores(certificate: Certificate) -> CertifiedScores:
    """Bound negative log-likelihood, Brier score and entropy over the balls of a certificate.

    They hold for the exact mean of the softmax of the networks' float logits, and for programs that compute scores from
    ``predictor(x)``, as those of ``certibayes.evaluation`` do (for logits up to 2¹⁶).

    Args:
        certificate: from ``certify`` with the true labels; without them scores are those of the predicted classes.

    Raises:
        UnsoundBounds: no distribution lies between the certificate's bounds.
    """
    lower, upper = class_bounds(certificate)
    is_label = certificate.labels[:, None].to(lower.device) == torch.arange(lower.shape[-1], device=lower.device)
    lower, upper = _with_proofs(certificate, lower, upper, is_label)
    slack = program_slack(certificate)
    truth = is_label.to(lower)
    brier = -lowest_sum(lambda p, points: -(p - truth[points]).square(), lower, upper) + slack
    # The label has what the others cannot have.
    others = upper.masked_fill(is_label, 0.0).sum(-1)
    own = torch.maximum(lower.masked_fill(~is_label, 0.0).sum(-1), (1 - others) * (1 - 2.0**-40) - 2.0**-40)
    # A logarithm in the predictor's precision is off by a relative half unit.
    nll = -own.log() * (1 + slack) + slack
    return CertifiedScores(nll, brier, *entropy_bounds(certificate), certificate)


def _with_proofs(certificate: Certificate, lower: Tensor, upper: Tensor, is_label: Tensor) -> tuple[Tensor, Tensor]:
    """Tighten the bounds of certified points by what was proved of them: no rival is as probable as the label."""
    certified = certificate.certified.to(lower.device)[:, None]
    least, most = (1 - 2.0**-40) / lower.shape[-1], 0.5 * (1 + 2.0**-40)
    tighter_lower = torch.where(certified & is_label, lower.clamp(min=least), lower)
    tighter_upper = torch.where(certified & ~is_label, upper.clamp(max=most), upper)
    # In ideal rounding a proof by other bounds may contradict these by a hair; then only these are taken.
    agree = (tighter_lower <= tighter_upper).all(-1) & (tighter_lower.sum(-1) <= 1) & (tighter_upper.sum(-1) >= 1)
    where = agree[:, None]
    return torch.where(where, tighter_lower, lower), torch.where(where, tighter_upper, upper)
