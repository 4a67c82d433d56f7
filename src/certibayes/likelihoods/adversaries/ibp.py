"""Interval bound propagation as the adversary: a bound on the worst case that costs about two forward passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from certibayes.bounds import Box, Rounding, interval_bounds, interval_margins, worst_logits
from certibayes.bounds.rounding import smoothed
from certibayes.likelihoods.adversaries.base import Adversary, Model, Threat


@dataclass(frozen=True, repr=False)
class IBP(Adversary):
    """Interval bound propagation: a certified lower bound on the robust likelihood (Proposition 1).

    Attributes:
        margins: fold the last layer into class margins, which is tighter than a box of logits.
        smoothing: τ > 0 puts sqrt(w² + τ²) in the place of |w|: still a bound, and smooth, as HMC needs it.
    """

    margins: bool = False
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        # Made once here, so that a smoothing that makes no sense is refused before training.
        _ = self._rounding

    @cached_property
    def _rounding(self) -> Rounding:
        return smoothed(self.smoothing)

    @property
    def is_bound(self) -> bool:
        """See the base class."""
        return True

    @property
    def box_rounding(self) -> Rounding | None:
        """See the base class; margins use the last layer's weights in another way."""
        return None if self.margins else self._rounding

    @property
    def margin_rounding(self) -> Rounding | None:
        """See the base class."""
        return self._rounding if self.margins else None

    def worst_logits(self, model: Model, threat: Threat, labels: Tensor) -> Tensor:
        """See the base class."""
        if self.margins:
            # A shift does not change a softmax: label at 0, rivals at minus their smallest margin.
            return -interval_margins(model.graph, model.params, threat.region.ideal_box(), labels, self._rounding)
        return worst_logits(self._outputs(model, threat), labels)

    def extremes(self, model: Model, threat: Threat) -> tuple[Tensor, Tensor]:
        """See the base class."""
        box = self._outputs(model, threat)
        return box.lower, box.upper

    def _outputs(self, model: Model, threat: Threat) -> Box:
        return interval_bounds(model.graph, model.params, threat.region.ideal_box(), self._rounding)

    def smoothed(self, tau: float) -> IBP:
        """See the base class."""
        return replace(self, smoothing=tau)
