"""SABR: bounds over a small box around an attacked input.

Mueller et al., "Certified training: small boxes are all you need", ICLR 2023. With radius eps and box fraction c, the
attack finds x' in the ball; the box has radius c eps, and its center is the point nearest to x' for which it lies in
the ball,

    center = clamp( x', x - (1 - c) eps, x + (1 - c) eps ).

It is cut by the domain as the ball is. c = 0 is the attack, c = 1 bounds over the whole ball.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from certibayes.bounds import Box, Rounding
from certibayes.likelihoods.adversaries._mixture import require_fraction, require_parts
from certibayes.likelihoods.adversaries.base import Adversary, Model, Threat
from certibayes.likelihoods.adversaries.ibp import IBP
from certibayes.likelihoods.adversaries.pgd import PGD
from certibayes.regions import InputRegion


@dataclass(frozen=True, repr=False)
class SABR(Adversary):
    """Bounds over a small box around an attacked input. They prove nothing, unless the fraction is 1.

    Attributes:
        box_fraction: radius of the box, as a fraction of that of the ball.
        attack: the attack.
        bound: the bound; by default intervals, with the last layer folded into class margins.
    """

    box_fraction: float = 0.4
    attack: PGD = PGD(steps=8)  # noqa: RUF009 - frozen
    bound: Adversary = IBP(margins=True)  # noqa: RUF009 - frozen
    needs_starts = True
    for_regression = False

    def __post_init__(self) -> None:
        require_fraction(self.box_fraction, "box_fraction is the box's part of the radius, from 0 to 1")
        require_parts(self)

    @property
    def is_bound(self) -> bool:
        """See the base class: only over the whole ball."""
        return self.box_fraction == 1.0

    @property
    def uses_bounds(self) -> bool:
        """See the base class: unless the box is a point."""
        return self.box_fraction > 0.0

    @property
    def box_rounding(self) -> Rounding | None:
        """See the base class."""
        return self.bound.box_rounding

    def small_region(self, model: Model, threat: Threat, labels: Tensor) -> InputRegion:
        """Return the box around the attacked inputs, as a region; no gradient flows through the search for it.

        Args:
            model: the network.
            threat: the ball in which it lies.
            labels: (B,).
        """
        region = threat.region
        if self.box_fraction == 1.0:
            return region
        room = (1.0 - self.box_fraction) * region.radius
        attacked = self.attack.attacked(model, threat, labels)
        center = torch.clamp(attacked, region.center - room, region.center + room)
        return InputRegion(center, self.box_fraction * region.radius, domain=region.domain)

    def box(self, model: Model, threat: Threat, labels: Tensor) -> Box:
        """See the base class."""
        return self.small_region(model, threat, labels).ideal_box()

    def worst_logits(self, model: Model, threat: Threat, labels: Tensor) -> Tensor:
        """See the base class."""
        small = threat._replace(region=self.small_region(model, threat, labels))
        return self.bound.worst_logits(model, small, labels)

    def smoothed(self, tau: float) -> SABR:
        """See the base class: the bound is smoothed."""
        return replace(self, bound=self.bound.smoothed(tau))
