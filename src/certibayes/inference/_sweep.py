"""A pass over all training data, for algorithms that end with one."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from certibayes.inference._batches import BatchSource
from certibayes.inference.target import Target
from certibayes.likelihoods import Batch, Noise
from certibayes.support.seeds import derived_seed


class FullSweep:
    """All training examples in batches, each with its noise at full radius; the same again on every pass."""

    def __init__(self, target: Target, source: BatchSource, seed: int):
        self.target, self.source, self.seed = target, source, seed

    def __iter__(self) -> Iterator[tuple[Batch, Noise]]:
        """Start over."""
        generator = torch.Generator().manual_seed(derived_seed(self.seed, "sweep"))
        for batch in self.source.everything():
            yield batch, self.target.likelihood.draw(1.0, batch, generator)
