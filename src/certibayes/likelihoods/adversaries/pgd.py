"""Projected gradient descent as the adversary: adversarial training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.attacks import PGD as PGDAttack
from certibayes.attacks import cross_entropy_loss
from certibayes.likelihoods.adversaries.base import Adversary, Model, Threat


@dataclass(frozen=True, repr=False)
class PGD(Adversary):
    """Projected gradient descent: adversarial training, as the paper's central column. It proves nothing.

    It climbs as ``certibayes.attacks.PGD`` does in l-infinity, once and from a random start, on the cross-entropy of
    one network.

    Attributes:
        steps: iterations.
        step_size: relative to the radius.
    """

    steps: int = 10
    step_size: float = 0.25
    needs_starts = True
    attacks_alone = True

    def __post_init__(self) -> None:
        # Made once here, so that settings that make no sense are refused before training.
        _ = self._attack

    @cached_property
    def _attack(self) -> PGDAttack:
        return PGDAttack(self.steps, restarts=1, step_size=self.step_size)

    def worst_inputs(self, loss: Callable[[Tensor], Tensor], threat: Threat) -> Tensor:
        """Return the inputs (B, ...) on which the climb ends.

        They are constants of the likelihood: no gradient flows through the search for them.

        Args:
            loss: inputs (B, ...) -> loss (B,), to be made large.
            threat: the inputs to choose from, and where to start.
        """
        return self._attack.ascend(loss, threat.region, threat.start).detach()

    def attacked(self, model: Model, threat: Threat, labels: Tensor) -> Tensor:
        """See the base class: those that the climb of the network's cross-entropy ends on."""
        constant = model.detached()

        def loss(x: Tensor) -> Tensor:
            return cross_entropy_loss(functional.log_softmax(constant(x), -1), labels)

        return self.worst_inputs(loss, threat)

    def worst_logits(self, model: Model, threat: Threat, labels: Tensor) -> Tensor:
        """See the base class."""
        return model(self.attacked(model, threat, labels))

    def extremes(self, model: Model, threat: Threat) -> tuple[Tensor, Tensor]:
        """See the base class; one attack for each output and direction."""
        constant = model.detached()
        ends = []
        for sign in (-1.0, 1.0):
            outputs = []
            for k in range(model.graph.classes):

                def loss(x: Tensor, sign: float = sign, k: int = k) -> Tensor:
                    return sign * constant(x)[:, k]

                outputs.append(model(self.worst_inputs(loss, threat))[:, k])
            ends.append(torch.stack(outputs, -1))
        return ends[0], ends[1]
