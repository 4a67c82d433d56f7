"""Several targets as one: M models of one architecture whose steps are one program.

The states of M models are kept as one, with a leading dimension: all weights as {FLAT: (M, P)}, everything else as
(M, ...), numbers as (M, 1). An elementwise rule is then as right for M models as for one, and takes as many kernels;
only the gradients go through ``vmap``, each model with its own batch, noise and buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from certibayes.inference._flat import FLAT, FlatTarget
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Gradients, Noise
from certibayes.networks import Params
from certibayes.support.stacks import stack


@dataclass(frozen=True)
class ManyTarget(FlatTarget):
    """M targets that differ by buffers, noise, the prior's precision and the temperature alone.

    Parameters are {FLAT: (M, P)}, buffers (M, ...), noise (M, ...). Batches are (B, M, ...), examples first, so that
    their length is what an algorithm takes it for.

    ``precision`` is (P,) where all models have the same and (M, P) where they differ or are learned; so ``temperature``
    is a number, or a tensor (M, 1).
    """

    @classmethod
    def of_all(cls, targets: Sequence[Target], params: Params) -> ManyTarget:
        """Make one of several; ``params`` are any model's, for their names and shapes."""
        flat = [FlatTarget.of(target, params) for target in targets]
        precisions = [target.precision[FLAT] for target in flat]
        temperatures = [target.temperature for target in targets]
        differing: dict[str, Any] = {}
        learned = targets[0].groups is not None
        if learned or any(not torch.equal(precision, precisions[0]) for precision in precisions):
            differing["precision"] = {FLAT: torch.stack(precisions)}
        if len(set(temperatures)) > 1:
            differing["temperature"] = precisions[0].new_tensor(temperatures)[:, None]
        same = {field.name: getattr(flat[0], field.name) for field in fields(FlatTarget)}
        return cls(**{**same, **differing, "buffers": stack([target.buffers for target in targets])})

    def mean_loss_and_gradient(self, params: Params, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean losses (M,) and their gradients {FLAT: (M, P)}."""
        losses, gradient = self._mapped(FlatTarget.mean_loss_and_gradient, (0, 0), params, batch, noise)
        return losses, gradient

    def mean_loss_and_slopes(
        self, params: Params, batch: Batch, noise: Noise
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Return the mean losses (M,), their gradients and those with respect to |w|, {FLAT: (M, P)}."""
        losses, gradient, magnitudes = self._mapped(FlatTarget.mean_loss_and_slopes, (0, 0, 0), params, batch, noise)
        return losses, gradient, magnitudes

    def gradients(self, params: Params, batch: Batch, noise: Noise) -> Gradients:
        """Return log-likelihoods (B, M), their summed gradients, squares and magnitudes {FLAT: (M, P)}."""
        return Gradients(*self._mapped(FlatTarget.gradients, (1, 0, 0, 0), params, batch, noise))

    def _mapped(
        self, function: Callable[..., Any], out_dims: tuple[int, ...], params: Params, batch: Batch, noise: Noise
    ) -> tuple[Any, ...]:
        def one(weights: Tensor, buffers: dict[str, Tensor], data: tuple[Tensor, ...], *drawn: Tensor) -> Any:
            return tuple(function(self.with_buffers(buffers), {FLAT: weights}, Batch(*data), Noise(*drawn)))

        # Noise without an attack has no starts, and vmap does not take None.
        drawn = [part for part in noise if part is not None]
        mapped = torch.vmap(one, in_dims=(0, 0, 1, *(0 for _ in drawn)), out_dims=out_dims)
        return mapped(params[FLAT], self.buffers, tuple(batch), *drawn)


def stacked(states: Sequence[Any]) -> Any:
    """Return several states as one, with a leading dimension; numbers as (M, 1)."""

    def joined(*leaves: Tensor) -> Tensor:
        together = torch.stack(leaves)
        return together if leaves[0].dim() else together[:, None]

    return pytree.tree_map(joined, *states)


def row(state: Any, index: int, like: Any) -> Any:
    """Return one model's state, without copying.

    Args:
        state: of all models.
        index: of the model.
        like: a state of one model, for its shapes: what looks like (1,) may be a number.
    """
    return pytree.tree_map(lambda leaf, own: leaf[index].reshape(own.shape), state, like)
