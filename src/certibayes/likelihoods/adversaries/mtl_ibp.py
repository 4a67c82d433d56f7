"""MTL-IBP: a convex combination of the attack's loss and the bound's (De Palma et al., 2024).

    log p_worst = (1 - alpha) log softmax_y(z_attack) + alpha log softmax_y(z_bound).

Of likelihoods it is the geometric mean. The logarithm of a softmax is concave in its logits, so this is never above
CC-IBP.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.likelihoods.adversaries._mixture import Mixture
from certibayes.likelihoods.categorical import label_log_probability


@dataclass(frozen=True, repr=False)
class MTLIBP(Mixture):
    """A convex combination of the losses of attack and bound. It proves nothing, unless alpha is 1.

    Attributes:
        alpha: weight of the bound, from 0 to 1.
        attack: the attack; by default one long step from a random start.
        bound: the bound; by default intervals, with the last layer folded into class margins.
        attack_scale: radius of the attack, relative to that of the bound.
    """

    def mixed(self, attacked: Tensor, bounded: Tensor, labels: Tensor) -> Tensor:
        """Return log-probabilities (B,)."""
        return torch.lerp(label_log_probability(attacked, labels), label_log_probability(bounded, labels), self.alpha)
