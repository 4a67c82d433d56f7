"""The variables of a linear relaxation; whatever their values, the bound is sound.

Lower slopes of unstable activations may be anything in [0, 1] (alpha-CROWN; Xu et al., 2021), and so may the
coefficients of multi-neuron cuts above ReLU units (``bounds.cuts``; Anderson et al., 2020). Where the sign s of an
activation's input z is fixed, s z >= 0, so β s z may be subtracted from a lower bound for any multiplier β >= 0
(beta-CROWN; Wang et al., 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from certibayes.bounds.cuts import Cuts

Slopes = Mapping[str, Tensor] | str
"""Lower slopes of unstable activations by node, in [0, 1], or "zero" or "adaptive" for all of them."""


@dataclass(frozen=True)
class Relaxation:
    """The variables of a linear relaxation, by node, for S quantities of each of B examples.

    Attributes:
        slopes: lower slopes of unstable activations, in [0, 1], (B, S, *shape), and 0 for nodes that are
            left out. ``"zero"`` is 0 for all, ``"adaptive"`` CROWN's choice of 1 where an interval is more positive
            than negative.
        cuts: multi-neuron cuts above ReLU units.
        multipliers: β >= 0 of signs that are fixed, (B, S, *shape).
        signs: of the inputs of activations: 1 or -1 where they are fixed, else 0; (B, S, *shape). The backward pass
            subtracts ``multipliers[name] * signs[name]`` from the coefficients on them.
    """

    slopes: Slopes = "zero"
    cuts: Mapping[str, Cuts] = field(default_factory=dict)
    multipliers: Mapping[str, Tensor] = field(default_factory=dict)
    signs: Mapping[str, Tensor] = field(default_factory=dict)

    def slope(self, name: str) -> Tensor | str:
        """Lower slopes of one node."""
        return self.slopes if isinstance(self.slopes, str) else self.slopes.get(name, "zero")


PLAIN = Relaxation()
"""CROWN with lower slopes 0, no cuts and nothing fixed."""
