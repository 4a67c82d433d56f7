"""The state of an attack: for each point, the worst input found so far.

Two models take part. ``model`` is the predictor that the result is about: it alone decides which input is worse and
which point is broken. ``gradient_model`` is the one whose gradients are followed. They are the same for a fixed
predictor; for a posterior whose weights are drawn at every call, the gradient model is a new draw each time
(``resampled.py``).
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
        model: maps inputs to log-probabilities, and decides which points are broken.
        region: where the search may go.
        y: labels (B,), which the attack tries to leave.
        gradient_model: whose gradients are followed; the model's own by default.
        on_evaluation: called once for every evaluation of the model.
        clean: log-probabilities of the points themselves, (B, C), if they are known.

    Attributes:
        best: the worst inputs found, (B, ...).
        margin: their margin loss, (B,); a point is broken where it is positive.
        predicted: what the model last classified the whole batch as, (B,).
    """

    def __init__(
        self,
        model: LogProbabilities,
        region: InputRegion,
        y: Tensor,
        gradient_model: LogProbabilities | None = None,
        on_evaluation: Callable[[], None] | None = None,
        clean: Tensor | None = None,
    ):
        self.model, self.region, self.y = model, region, y
        self.gradient_model = model if gradient_model is None else gradient_model
        self.on_evaluation = on_evaluation
        self.best = region.center.clone()
        self._set_all(clean)

    def unbroken(self) -> Tensor:
        """Return the indices of the points that are not broken yet."""
        return (self.margin <= 0).nonzero().squeeze(-1)

    def keep(self, index: Tensor, x: Tensor, margin: Tensor) -> None:
        """Keep inputs ``x`` of the points ``index`` where their margin is larger than any before."""
        if self.on_evaluation is not None:
            self.on_evaluation()
        better = margin > self.margin[index]
        if bool(better.any()):
            self.best[index[better]] = x[better]
            self.margin[index[better]] = margin[better]

    def evaluate(self, index: Tensor, x: Tensor) -> Tensor:
        """Evaluate inputs ``x`` of the points ``index``, keep the best, and return their margins."""
        with torch.no_grad():
            margin = margin_loss(self.model(x), self.y[index])
        self.keep(index, x, margin)
        return margin

    def loss_and_gradient(self, index: Tensor, x: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
        """Evaluate inputs ``x`` of the points ``index``, keep the best, and differentiate a loss there.

        Returns:
            The gradient model's loss, (B,), and its gradient, (B, ...).
        """
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            outputs = self.gradient_model(x)
            values = loss(outputs, self.y[index])
            # Weights take no gradients, so a layer costs two products: forward, and back to its input.
            (gradient,) = torch.autograd.grad(values.sum(), x)
        x, outputs = x.detach(), outputs.detach()
        if self.gradient_model is self.model:
            self.keep(index, x, margin_loss(outputs, self.y[index]))
        else:
            self.evaluate(index, x)
        return values.detach(), gradient

    def reevaluate(self) -> None:
        """Evaluate the best inputs of the whole batch once more.

        Floats depend a little on the batch size; what counts is the batch as it is reported.
        """
        self._set_all(None)

    def _set_all(self, outputs: Tensor | None) -> None:
        if outputs is None:
            with torch.no_grad():
                outputs = self.model(self.best)
        self.margin, self.predicted = margin_loss(outputs, self.y), outputs.argmax(-1)
