"""The state of an attack: for each point, the worst input found so far, as the judge sees it.

Two models take part. The *judge* is the predictor that the result speaks of: it alone decides what is worse and what
has fallen. The *guide* is the model whose gradients show the way. They are the same for a fixed predictor; for a
posterior that is drawn afresh at every call the guide is a new draw each time (``resampled.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from certibayes.attacks.losses import Loss, margin_loss
from certibayes.regions import InputRegion

LogProbabilities = Callable[[Tensor], Tensor]
"""Inputs (B, ...) -> log-probabilities (B, C)."""


class Search:
    """The worst inputs found so far in a batch.

    Args:
        judge: maps inputs to log-probabilities, and decides.
        region: where the search may go.
        y: labels (B,), which the attack tries to leave.
        guide: whose gradients are followed; the judge's own by default.
        tick: called once for every look at the model.
        clean: what the judge says of the points themselves, (B, C), if that is known.

    Attributes:
        best: the worst inputs found, (B, ...).
        margin: their margin loss, (B,); a point has fallen where it is positive.
        predicted: what the judge last classified the whole batch as, (B,).
    """

    def __init__(
        self,
        judge: LogProbabilities,
        region: InputRegion,
        y: Tensor,
        guide: LogProbabilities | None = None,
        tick: Callable[[], None] | None = None,
        clean: Tensor | None = None,
    ):
        self.judge, self.region, self.y = judge, region, y
        self.guide = judge if guide is None else guide
        self.tick = tick
        self.best = region.center.clone()
        self._judge_all(clean)

    def unbroken(self) -> Tensor:
        """Return the indices of the points that stand."""
        return (self.margin <= 0).nonzero().squeeze(-1)

    def keep(self, index: Tensor, x: Tensor, margin: Tensor) -> None:
        """Take over inputs ``x`` of the points ``index`` where their margin is larger than any before."""
        if self.tick is not None:
            self.tick()
        better = margin > self.margin[index]
        if bool(better.any()):
            self.best[index[better]] = x[better]
            self.margin[index[better]] = margin[better]

    def look(self, index: Tensor, x: Tensor) -> Tensor:
        """Judge inputs ``x`` of the points ``index``, keep the best, and return their margins."""
        with torch.no_grad():
            margin = margin_loss(self.judge(x), self.y[index])
        self.keep(index, x, margin)
        return margin

    def climb(self, index: Tensor, x: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """Judge inputs ``x`` of the points ``index``, keep the best, and ask the guide for the way up.

        Returns:
            The guide's loss, (B,), and its gradient, (B, ...).
        """
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            outputs = self.guide(x)
            values = loss(outputs, self.y[index])
            # Weights take no gradients, so a layer costs two products: forward, and back to its input.
            (gradient,) = torch.autograd.grad(values.sum(), x)
        x, outputs = x.detach(), outputs.detach()
        if self.guide is self.judge:
            self.keep(index, x, margin_loss(outputs, self.y[index]))
        else:
            self.look(index, x)
        return values.detach(), gradient

    def rejudge(self) -> None:
        """Judge the best inputs of the whole batch once more.

        Floats depend a little on how many inputs are judged at once; what counts is the batch as it is reported.
        """
        self._judge_all(None)

    def _judge_all(self, outputs: Tensor | None) -> None:
        if outputs is None:
            with torch.no_grad():
                outputs = self.judge(self.best)
        self.margin, self.predicted = margin_loss(outputs, self.y), outputs.argmax(-1)
