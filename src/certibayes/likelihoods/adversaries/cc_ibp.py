"""CC-IBP: a convex combination of attacked and bounded logits (De Palma et al., 2024).

    z = (1 - alpha) z_attack + alpha z_bound,        p_worst = softmax_y(z).

Only differences of logits matter to a softmax, so these are the paper's combinations of logit differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.likelihoods.adversaries._mixture import Mixture
from certibayes.likelihoods.adversaries.base import Model, Threat


@dataclass(frozen=True, repr=False)
class CCIBP(Mixture):
    """A convex combination of attacked and bounded logits. It proves nothing, unless alpha is 1.

    Attributes:
        alpha: weight of the bound, from 0 to 1.
        attack: the attack; by default one long step from a random start.
        bound: the bound; by default intervals, with the last layer folded into class margins.
        attack_scale: radius of the attack, relative to that of the bound.
    """

    def worst_logits(self, model: Model, threat: Threat, labels: Tensor) -> Tensor:
        """See the base class."""
        return self.worst_outputs(model, threat, labels)

    def mixed(self, attacked: Tensor, bounded: Tensor, labels: Tensor) -> Tensor:
        """Return logits (B, C)."""
        return torch.lerp(attacked, bounded, self.alpha)
