"""CROWN-IBP as the adversary: linear bounds on the outputs, intervals for what lies between."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.bounds import interval_bounds, interval_margins, linear_bounds, linear_margins
from certibayes.errors import InvalidInput
from certibayes.likelihoods.adversaries.base import Adversary, Model, Threat


@dataclass(frozen=True, repr=False)
class CROWNIBP(Adversary):
    """Linear bounds over interval ones (Zhang et al., 2020): a certified lower bound as well, and never a lower one.

    The paper names linear bounds as an alternative to intervals. Class margins are bounded by linear functions of the
    input, with the last layer folded in; pre-activation bounds are intervals, so a step costs a few times that of
    ``IBP``, and more the more classes there are.

    Attributes:
        beta: 1 takes the better of linear and interval margins, 0 interval margins alone (``IBP(margins=True)``);
            in between the two are mixed.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta <= 1.0:
            raise InvalidInput(f"beta mixes two bounds, so it is from 0 to 1, got {self.beta}.")

    @property
    def is_bound(self) -> bool:
        """See the base class."""
        return True

    def worst_logits(self, model: Model, threat: Threat, labels: Tensor) -> Tensor:
        """See the base class: label at 0, rivals at minus their smallest margin."""
        box = threat.region.ideal_box()
        if self.beta == 0.0:
            return -interval_margins(model.graph, model.params, box, labels)
        linear = linear_margins(model.graph, model.params, box, labels).to(threat.region.center.dtype)
        if self.beta == 1.0:
            return -linear
        return -torch.lerp(interval_margins(model.graph, model.params, box, labels), linear, self.beta)

    def extremes(self, model: Model, threat: Threat) -> tuple[Tensor, Tensor]:
        """See the base class."""
        box = threat.region.ideal_box()
        intervals = interval_bounds(model.graph, model.params, box) if self.beta < 1.0 else None
        if self.beta == 0.0 and intervals is not None:
            return intervals.lower, intervals.upper
        lower, upper = (end.to(threat.region.center.dtype) for end in linear_bounds(model.graph, model.params, box))
        if intervals is None:
            return lower, upper
        return torch.lerp(intervals.lower, lower, self.beta), torch.lerp(intervals.upper, upper, self.beta)
