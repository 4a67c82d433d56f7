"""What is asked about a batch of points, and how it may be answered; nothing in it changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from certibayes.bounds import Box, Rounding, by_name
from certibayes.certification._narrowed import Narrowed, Share
from certibayes.prediction import Predictor
from certibayes.regions import InputRegion


@dataclass(frozen=True)
class Problem:
    """A batch of points whose labels are to be proved.

    Attributes:
        predictor: N networks.
        region: the inputs that a proof is about, around B points.
        box: the region as bounds see it, in the arithmetic of ``rounding``.
        labels: (B,).
        predicted: classes of the points themselves, (B,), where they are known before anything is bounded.
        rounding: ``"outward"`` or ``"ideal"``.
        threshold: a mean difference of probabilities is proved to be positive in the program that runs where it
            exceeds this.
        memory: bytes that linear bounds may take.
        intermediates: what linear bounds know of the layers in between, one of ``INTERMEDIATES``.
        share: what stages keep of that for others, if anything; of this very box.
    """

    predictor: Predictor
    region: InputRegion
    box: Box
    labels: Tensor
    predicted: Tensor | None
    rounding: str
    threshold: float
    memory: int
    intermediates: str = "ibp"
    share: Share | None = None

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.labels)

    @property
    def x(self) -> Tensor:
        """The points, (B, ...), in the predictor's precision."""
        return self.region.center

    @cached_property
    def arithmetic(self) -> Rounding:
        """The arithmetic of the program that runs, or exact arithmetic."""
        return by_name(self.rounding, self.predictor.dtype)

    def sharing(self, memory: int) -> Problem:
        """Return the problem with so many bytes for what stages find of the layers and others need."""
        every = torch.arange(len(self), device=self.labels.device)
        return replace(self, share=Share(Narrowed(len(self), memory), every))

    def take(self, points: Tensor) -> Problem:
        """Return the problem of some of the points."""
        return replace(
            self,
            region=self.region.take(points),
            box=self.box.take(points),
            labels=self.labels[points],
            predicted=None if self.predicted is None else self.predicted[points],
            share=None if self.share is None else self.share.take(points),
        )
