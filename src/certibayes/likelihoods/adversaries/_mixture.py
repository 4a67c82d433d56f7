"""What the adversaries between attack and bound share: one of each, and a weight between them.

An attack is too easy on a network and a bound too hard. De Palma et al. ("Expressive losses for verified robustness via
convex combinations", ICLR 2024) put the two together with a weight alpha: 0 is the attack, 1 the bound. Nothing in
between is a bound; what such a posterior proves is for certificates to say, which need the tighter bounds the smaller
alpha is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.likelihoods.adversaries.base import Adversary, Model, Threat
from certibayes.likelihoods.adversaries.ibp import IBP
from certibayes.likelihoods.adversaries.pgd import PGD

ONE_STEP = PGD(steps=1, step_size=10.0)
"""From a random start to the corner of the ball that its gradient points to."""


@dataclass(frozen=True, repr=False)
class Mixture(Adversary):
    """Base of the mixtures; each says in ``mixed`` what is mixed.

    Attributes:
        alpha: weight of the bound, from 0 to 1.
        attack: the attack; by default one long step from a random start.
        bound: the bound; by default intervals, with the last layer folded into class margins.
        attack_scale: radius of the attack, relative to that of the bound. An attack that goes further than the radius
            that is to be certified may be worse than the bound.
    """

    alpha: float = 0.5
    attack: PGD = ONE_STEP
    bound: Adversary = IBP(margins=True)  # noqa: RUF009 - frozen
    attack_scale: float = 1.0
    needs_starts = True
    for_regression = False

    def __post_init__(self) -> None:
        require_fraction(self.alpha, "alpha is the weight of the bound, 0 for the attack alone and 1 for the bound")
        require_parts(self)
        if not (math.isfinite(self.attack_scale) and self.attack_scale > 0.0):
            raise InvalidInput(f"attack_scale is relative to the radius and must be positive, got {self.attack_scale}.")

    @property
    def is_bound(self) -> bool:
        """See the base class: only without the attack."""
        return self.alpha == 1.0

    @property
    def uses_bounds(self) -> bool:
        """See the base class: unless there is the attack alone."""
        return self.alpha > 0.0

    def worst_outputs(self, model: Model, threat: Threat, labels: Tensor) -> Tensor:
        """See the base class; what has no weight is not computed."""
        if self.alpha == 1.0:
            return self.bound.worst_outputs(model, threat, labels)
        attacked = self.attack.worst_logits(model, threat.scaled(self.attack_scale), labels)
        if self.alpha == 0.0:
            return attacked
        return self.mixed(attacked, self.bound.worst_logits(model, threat, labels), labels)

    def mixed(self, attacked: Tensor, bounded: Tensor, labels: Tensor) -> Tensor:
        """Return worst outputs, as ``worst_outputs`` has them, of the attack and of the bound together.

        Args:
            attacked: logits (B, C) of the attacked inputs.
            bounded: logits (B, C) whose softmax at the label is a bound.
            labels: (B,).
        """
        raise NotImplementedError

    def smoothed(self, tau: float) -> Self:
        """See the base class: the bound is smoothed."""
        return replace(self, bound=self.bound.smoothed(tau))


def require_fraction(value: Any, meaning: str) -> None:
    """Raise unless ``value`` is from 0 to 1."""
    if not 0.0 <= value <= 1.0:
        raise InvalidInput(f"{meaning}; got {value}.")


def require_parts(adversary: Any) -> None:
    """Raise unless an adversary's ``attack`` is an attack and its ``bound`` a bound."""
    name = type(adversary).__name__
    if not isinstance(adversary.attack, PGD):
        raise InvalidInput(f"the attack of {name} is an adversary PGD(steps=8, ...), got {adversary.attack!r}.")
    bound = adversary.bound
    if not (isinstance(bound, Adversary) and bound.is_bound and not bound.needs_starts):
        raise InvalidInput(f"the bound of {name} is an adversary that bounds, such as IBP(), got {bound!r}.")
