"""Classification: the standard likelihood and the paper's robust likelihood.

    p(y | x, w) = E_{eps ~ p_eps}[ min over |x' - x| <= eps of softmax_y(f^w(x')) ]        (Eqn 4)

With IBP as the adversary the minimum is replaced by a lower bound, and so is the likelihood (Proposition 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.attacks import label_scores
from certibayes.likelihoods.adversary import IBP, Adversary
from certibayes.likelihoods.base import Batch, Gradients, Likelihood, Noise
from certibayes.likelihoods.curvature import (
    BoxObserver,
    PointObserver,
    applies_to,
    layer_gradients,
)
from certibayes.likelihoods.radius import LinearRamp, RadiusDistribution
from certibayes.likelihoods.robust import closed_form_gradients, draw_noise
from certibayes.networks import Graph, Params
from certibayes.regions import Domain, as_domain, domain_to_json, require_domain
from certibayes.support.checks import require_labels


@dataclass(frozen=True)
class Categorical(Likelihood):
    """The standard likelihood: softmax of the logits."""

    def validate(self, graph: Graph, batch: Batch) -> None:
        """See the base class."""
        require_labels(batch.targets, graph.classes)

    def log_likelihood(
        self,
        graph: Graph,
        params: Params,
        batch: Batch,
        noise: Noise,
        on_point: PointObserver | None = None,
    ) -> Tensor:
        """See the base class."""
        return label_log_probability(graph.evaluate(params, batch.inputs, on_point), batch.targets)

    def predicted_targets(self, graph: Graph, params: Params, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """See the base class."""
        return drawn_labels(graph.evaluate(params, inputs), generator)

    def value_grad_and_squares(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise
    ) -> Gradients:
        """See the base class; in closed form for networks of linear and convolutional layers."""
        if not applies_to(graph):
            return super().value_grad_and_squares(graph, params, buffers, batch, noise)
        weights = {**buffers, **params}
        return layer_gradients(
            graph,
            params,
            len(batch.inputs),
            lambda on_point, _: self.log_likelihood(graph, weights, batch, noise, on_point),
            passes=("point",),
        )


def label_log_probability(logits: Tensor, labels: Tensor) -> Tensor:
    """Log softmax of each example's own class, (B,)."""
    return label_scores(functional.log_softmax(logits, -1), labels)


def drawn_labels(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one class for each example from the softmax of its logits, (B,)."""
    return torch.multinomial(functional.softmax(logits, -1), 1, generator=generator).squeeze(-1)


@dataclass(frozen=True)
class RobustCategorical(Likelihood):
    """The robust likelihood.

    Attributes:
        p_eps: distribution of the radius, such as ``TwoPoint(eta=0.11, lam=0.25)``.
        adversary: ``IBP()``, ``IBP(margins=True)`` or ``PGD()``.
        domain: values an input can take, two numbers or, where features differ, tensors (1, *shape); balls are
            intersected with it. None for no limit.
        ramp: scales the radii while training; None for full radii from the start.
    """

    p_eps: RadiusDistribution
    adversary: Adversary = field(default_factory=IBP)
    domain: Domain = (0.0, 1.0)
    ramp: LinearRamp | None = field(default_factory=LinearRamp)

    def __post_init__(self) -> None:
        object.__setattr__(self, "domain", as_domain(self.domain))

    @property
    def bounded(self) -> bool:
        """See the base class: by any adversary but an attack, at any radius but 0."""
        return not self.adversary.needs_starts and self.p_eps.clean < 1.0

    def validate(self, graph: Graph, batch: Batch) -> None:
        """See the base class."""
        require_labels(batch.targets, graph.classes)
        require_domain(batch.inputs, self.domain)

    def draw(self, progress: float, batch: Batch, generator: torch.Generator | None) -> Noise:
        """See the base class."""
        return draw_noise(self.p_eps, self.ramp, self.adversary.needs_starts, progress, batch, generator)

    def log_likelihood(
        self,
        graph: Graph,
        params: Params,
        batch: Batch,
        noise: Noise,
        on_point: PointObserver | None = None,
        on_box: BoxObserver | None = None,
    ) -> Tensor:
        """Return log(clean mass * p_clean + sum of weight_k * p_worst(radius_k)), (B,)."""
        terms = []
        clean = self.p_eps.clean
        if clean > 0.0:
            logits = graph.evaluate(params, batch.inputs, on_point)
            terms.append(label_log_probability(logits, batch.targets) + math.log(clean))
        for k in range(len(noise.radii)):
            worst = self.adversary.worst_logits(graph, params, batch, noise.radii[k], self.domain, noise.starts, on_box)
            terms.append(label_log_probability(worst, batch.targets) + noise.log_weights[k])
        if len(terms) == 1:
            return terms[0]
        return torch.logsumexp(torch.stack(terms), 0)

    def value_grad_and_squares(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise
    ) -> Gradients:
        """See the base class; in closed form where there is one."""
        weights = {**buffers, **params}

        def evaluate(on_point: PointObserver, on_box: BoxObserver) -> Tensor:
            return self.log_likelihood(graph, weights, batch, noise, on_point, on_box)

        closed = closed_form_gradients(self.p_eps, self.adversary, graph, params, batch, noise, evaluate)
        return super().value_grad_and_squares(graph, params, buffers, batch, noise) if closed is None else closed

    def predicted_targets(self, graph: Graph, params: Params, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """See the base class."""
        return drawn_labels(graph.evaluate(params, inputs), generator)

    def smoothed(self, tau: float) -> RobustCategorical:
        """See the base class."""
        return replace(self, adversary=self.adversary.smoothed(tau))

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        return {
            "name": "RobustCategorical",
            "p_eps": self.p_eps.describe(),
            "adversary": self.adversary.describe(),
            "domain": domain_to_json(self.domain),
            "ramp": None if self.ramp is None else [self.ramp.start, self.ramp.end],
        }
