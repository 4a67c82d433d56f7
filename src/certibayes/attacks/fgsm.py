"""The fast gradient sign method (Goodfellow et al., 2015): one step from the point, as long as the ball allows.

x + r sign(∇ loss(x))  for l-infinity, and the steepest direction of the same length for l2 and l1, projected.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from certibayes.attacks.base import Attack, require_losses
from certibayes.attacks.losses import LOSSES
from certibayes.attacks.search import Search


@dataclass(frozen=True)
class FGSM(Attack):
    """The fast gradient sign method: one step.

    Attributes:
        loss: ``"cross-entropy"``, ``"margin"`` or ``"dlr"``.
    """

    loss: str = "cross-entropy"

    def __post_init__(self) -> None:
        require_losses(self.loss)

    @property
    def name(self) -> str:
        """See ``Attack``."""
        return "fgsm"

    @property
    def evaluations(self) -> int:
        """See ``Attack``."""
        return 2

    def run(self, search: Search, generator: torch.Generator) -> None:
        """Make one step from every point that is not broken yet."""
        index = search.unbroken()
        if index.numel() == 0:
            return
        place = search.region.take(index)
        _, gradient = search.loss_and_gradient(index, place.center, LOSSES[self.loss])
        search.evaluate(index, place.project(place.center + place.steepest_step(place.center, gradient, 1.0)))
