"""Classification: the standard likelihood, p(y | x, w) = softmax_y(f^w(x))."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.bounds import Box, TrainingPass
from certibayes.likelihoods._curvature import applies_to, closed_form_gradients
from certibayes.likelihoods.base import Batch, Gradients, Likelihood, Noise
from certibayes.networks import Graph, Network, Params
from certibayes.support.checks import require_labels


def label_log_probability(logits: Tensor, labels: Tensor) -> Tensor:
    """Log softmax of each example's own class, (B,)."""
    return functional.log_softmax(logits, -1).gather(-1, labels[:, None]).squeeze(-1)


def drawn_labels(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one class for each example from the softmax of its logits, (B,)."""
    return torch.multinomial(functional.softmax(logits, -1), 1, generator=generator).squeeze(-1)


def _log_p_and_derivative(outputs: Box, labels: Tensor, scale: float) -> tuple[Tensor, Box]:
    """Return log softmax_y(z), (B,), and the derivative of ``scale`` times its sum, scale (1_y - softmax(z))."""
    log_softmax, labels = functional.log_softmax(outputs.center, -1), labels[:, None]
    is_label = labels == torch.arange(log_softmax.shape[-1], device=labels.device)
    slopes = (is_label.to(log_softmax) - log_softmax.exp()) * scale
    return log_softmax.gather(-1, labels).squeeze(-1), outputs._replace(center=slopes)


@dataclass(frozen=True)
class Categorical(Likelihood):
    """The standard likelihood: softmax of the logits."""

    def validate(self, graph: Graph, batch: Batch) -> None:
        """See the base class."""
        require_labels(batch.targets, graph.classes)

    def log_p(self, clean: Tensor | None, worst: Sequence[Tensor], targets: Tensor, log_weights: Tensor) -> Tensor:
        """See the base class."""
        assert clean is not None
        return label_log_probability(clean, targets)

    def value_and_grad(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise, scale: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See the base class; with derivatives that are written out."""
        if not self.keeps(Categorical, "log_likelihood", "passes", "log_p"):
            return super().value_and_grad(graph, params, buffers, batch, noise, scale)
        passes = TrainingPass(graph, params, buffers, batch.inputs, None)
        values, derivative = _log_p_and_derivative(passes.output, batch.targets, scale)
        return values, passes.gradient(derivative)

    def value_grad_and_squares(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise
    ) -> Gradients:
        """See the base class; in closed form for networks of linear and convolutional layers."""
        if not (applies_to(graph) and self.keeps(Categorical, "log_likelihood", "passes", "log_p")):
            return super().value_grad_and_squares(graph, params, buffers, batch, noise)

        def head(outputs: Box) -> tuple[Tensor, Box]:
            return _log_p_and_derivative(outputs, batch.targets, 1.0)

        return closed_form_gradients(head, Network(graph, dict(params), dict(buffers)), batch.inputs)

    def predicted_targets(self, graph: Graph, params: Params, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """See the base class."""
        return drawn_labels(graph.evaluate(params, inputs), generator)
