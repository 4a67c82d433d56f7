"""Operations that move numbers and change none."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from certibayes.networks.operations.base import Operation, Weights


@dataclass(frozen=True)
class Reshape(Operation):
    """Give every example the stated shape; flatten, view and reshape all become this."""

    shape: tuple[int, ...]

    def evaluate(self, weights: Weights, *inputs: Tensor) -> Tensor:
        """See the class."""
        return inputs[0].reshape(inputs[0].shape[0], *self.shape)
