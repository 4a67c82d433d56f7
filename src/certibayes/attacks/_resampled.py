"""Expectation over weights (Athalye et al., 2018): gradients of a posterior whose weights are drawn at every call.

A predictor that draws new weights for every call has no gradient to follow, only that of one draw. ``Resampled``
estimates the posterior predictive with K new draws at every call,

    log 1/K sum_k softmax(f^{w_k}(x)),    w_1, ..., w_K ~ p(w | D),

so that along a climb the noise of single draws averages out, and what is climbed is the expectation.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from certibayes.support.seeds import derived_seed


@runtime_checkable
class Resamplable(Protocol):
    """What weights can be drawn from: a posterior."""

    @property
    def task(self) -> str:
        """``"classification"`` or ``"regression"``."""

    def predictor(
        self, samples: int | None = None, seed: int = 0, device: str | torch.device | None = None
    ) -> nn.Module:
        """Fix ``samples`` weight samples, drawn from ``seed``, as a module that predicts."""


class Resampled:
    """A model that predicts with new weights at every call.

    Args:
        posterior: what to draw from.
        draws: weights drawn for each call, K.
        seed: the same seed gives the same draws, call by call.
    """

    def __init__(self, posterior: Resamplable, draws: int, seed: int):
        self.posterior, self.draws, self.seed = posterior, draws, seed
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Return log mean softmax of new draws, (B, C)."""
        self.calls += 1
        seed = derived_seed(self.seed, "resampled", self.calls)
        outputs: Tensor = self.posterior.predictor(self.draws, seed=seed, device=x.device)(x)
        return outputs
