"""What an attack returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

UNBROKEN, MISCLASSIFIED = -1, 0
"""Values of ``Attacked.broken_by`` that name no attack."""


@dataclass(frozen=True, eq=False)
class Attacked:
    """The outcome of an attack: an upper bound on robustness, never a proof of it.

    Attributes:
        inputs: the worst inputs found, inside ball and domain, (B, ...).
        labels: what each input should be classified as, (B,).
        predicted: what the attacked inputs are classified as, (B,).
        success: where the two differ, (B,); misclassified clean inputs count.
        distance: of the attacked inputs from the points, in ``norm``, (B,).
        broken_by: which attack came first: k for ``methods[k - 1]``, 0 where the point itself is misclassified, -1
            where it is unbroken, (B,).
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

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.success)

    def __repr__(self) -> str:
        after = self.robust_accuracy_after()
        broken = [f"{name} {int((self.broken_by == stage).sum())}" for stage, name in enumerate(self.methods, 1)]
        return (
            f"Attacked({len(self)} points, {self.norm})\n"
            f"  clean accuracy:  {after['clean']:.1%}\n"
            f"  robust accuracy: {self.robust_accuracy:.1%}\n"
            f"  points broken:   {', '.join(broken)}"
        )

    @property
    def robust_accuracy(self) -> float:
        """Fraction of all points still classified as their label."""
        return float((~self.success).double().mean()) if len(self.success) else 0.0

    def robust_accuracy_after(self) -> dict[str, float]:
        """Return the accuracy before any attack (``"clean"``) and the robust accuracy after each, in order."""
        stages = ("clean", *self.methods)
        if not len(self.success):
            return dict.fromkeys(stages, 0.0)
        broken = [(self.broken_by != UNBROKEN) & (self.broken_by <= stage) for stage in range(len(stages))]
        return {name: float((~by_then).double().mean()) for name, by_then in zip(stages, broken, strict=True)}

    def breakers(self) -> list[str]:
        """Return the attack that broke each point, ``"clean"`` where none was needed, ``""`` where none did."""
        names = ("clean", *self.methods)
        return ["" if stage == UNBROKEN else names[stage] for stage in self.broken_by.tolist()]


def first_broken(broken_by: Tensor, success: Tensor, stage: int) -> Tensor:
    """Mark the points that are broken now and were not before, and those that are unbroken again, (B,)."""
    now = torch.where(broken_by == UNBROKEN, stage, broken_by)
    return torch.where(success, now, UNBROKEN)
