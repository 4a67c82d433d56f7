"""Exp-IBP: a convex combination of the logarithms of the attack's loss and the bound's (De Palma et al., 2024).

    -log p_worst = L_attack^(1 - alpha) L_bound^alpha,        L = -log softmax_y(z).

The geometric mean of two losses is never above their arithmetic one, so this is never below MTL-IBP.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.likelihoods.adversaries._mixture import Mixture
from certibayes.likelihoods.categorical import label_log_probability


@dataclass(frozen=True, repr=False)
class ExpIBP(Mixture):
    """A convex combination of the log-losses of attack and bound. It proves nothing, unless alpha is 1.

    Attributes:
        alpha: weight of the bound, from 0 to 1.
        attack: the attack; by default one long step from a random start.
        bound: the bound; by default intervals, with the last layer folded into class margins.
        attack_scale: radius of the attack, relative to that of the bound.
    """

    def mixed(self, attacked: Tensor, bounded: Tensor, labels: Tensor) -> Tensor:
        """Return log-probabilities (B,)."""
        # A loss below the precision of a softmax is rounded to 0, which has no logarithm.
        smallest = torch.finfo(attacked.dtype).eps
        logs = [(-label_log_probability(logits, labels)).clamp(min=smallest).log() for logits in (attacked, bounded)]
        return -torch.lerp(logs[0], logs[1], self.alpha).exp()
