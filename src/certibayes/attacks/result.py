"""What an attack returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

UNBROKEN, MISCLASSIFIED = -1, 0
"""Values of ``Attacked.broken_by`` that name no attack."""


@dataclass(frozen=True)
class Attacked:
    """The outcome of an attack: an upper bound on robustness, never a proof of it.

    Attributes:
        inputs: the worst inputs found, inside ball and domain, (B, ...).
        labels: what each input should be classified as, (B,).
        predicted: what the attacked inputs are classified as, (B,).
        success: where the two differ, (B,); misclassified clean inputs count.
        distance: of the attacked inputs from the points, in ``norm``, (B,).
        broken_by: which attack came first: k for ``methods[k - 1]``, 0 where the point itself is misclassified, -1
            where it stands, (B,).
        methods: the attacks, in the order in which they ran.
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
    """

    inputs: Tensor
    labels: Tensor
    predicted: Tensor
    success: Tensor
    distance: Tensor
    broken_by: Tensor
    methods: tuple[str, ...]
    norm: str

    @property
    def robust_accuracy(self) -> float:
        """Fraction of all points still classified as their label."""
        return float((~self.success).double().mean()) if len(self.success) else 0.0

    def robust_accuracy_after(self) -> dict[str, float]:
        """Return the fraction that stood before any attack (``"clean"``) and after each, in order."""
        stages = ("clean", *self.methods)
        if not len(self.success):
            return dict.fromkeys(stages, 0.0)
        fallen = [(self.broken_by != UNBROKEN) & (self.broken_by <= stage) for stage in range(len(stages))]
        return {name: float((~down).double().mean()) for name, down in zip(stages, fallen, strict=True)}

    def breakers(self) -> list[str]:
        """Return for each point the attack that broke it, ``"clean"`` where none was needed, ``""`` where it stands."""
        names = ("clean", *self.methods)
        return ["" if stage == UNBROKEN else names[stage] for stage in self.broken_by.tolist()]


def first_broken(broken_by: Tensor, success: Tensor, stage: int) -> Tensor:
    """Mark the points that have fallen by now and were standing, or that stand again, (B,)."""
    fell = torch.where(broken_by == UNBROKEN, stage, broken_by)
    return torch.where(success, fell, UNBROKEN)
