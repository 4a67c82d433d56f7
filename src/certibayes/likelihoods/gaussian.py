"""Regression: the Gaussian likelihood and its robust form (Remark 1 of the paper).

For one output with noise variance s²,

    p(y | x, w) = N(y; 0, s²) with the residual  max{ |E[f_max] - y|, |E[f_min] - y| },

where f_max and f_min are the extremes over the ball and E averages over p_eps; several outputs multiply.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.likelihoods.adversary import IBP, Adversary
from certibayes.likelihoods.base import Batch, Gradients, Likelihood, Noise
from certibayes.likelihoods.curvature import BoxObserver, PointObserver
from certibayes.likelihoods.radius import LinearRamp, RadiusDistribution, TwoPoint
from certibayes.likelihoods.robust import closed_form_gradients, draw_noise
from certibayes.networks import Graph, Params
from certibayes.regions import Domain, as_domain, domain_to_json, require_domain


@dataclass(frozen=True)
class RobustGaussian(Likelihood):
    """The robust Gaussian likelihood; with the default radius 0 it is the standard one.

    Attributes:
        noise_std: standard deviation s of the observation noise, the same for every output.
        p_eps: distribution of the radius.
        adversary: ``IBP()`` or ``PGD()``.
        domain: values an input can take, or None; as in ``RobustCategorical``.
        ramp: scales the radii while training.
    """

    noise_std: float = 1.0
    p_eps: RadiusDistribution = field(default_factory=lambda: TwoPoint(0.0))
    adversary: Adversary = field(default_factory=IBP)
    domain: Domain = None
    ramp: LinearRamp | None = field(default_factory=LinearRamp)

    def __post_init__(self) -> None:
        object.__setattr__(self, "domain", as_domain(self.domain))
        if not (math.isfinite(self.noise_std) and self.noise_std > 0):
            raise InvalidInput(f"noise_std must be positive, got {self.noise_std}.")

    def validate(self, graph: Graph, batch: Batch) -> None:
        """See the base class."""
        if not batch.targets.is_floating_point() or tuple(batch.targets.shape[1:]) != graph.output_shape:
            raise InvalidInput(
                f"targets have shape {tuple(batch.targets.shape)} and type {batch.targets.dtype}, but the network "
                f"predicts {graph.output_shape} floats an example. Reshape the targets to "
                f"(N, {graph.classes})."
            )
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
        """See the base class and the module."""
        lower = upper = torch.zeros_like(batch.targets)
        if self.p_eps.clean > 0.0:
            prediction = graph.evaluate(params, batch.inputs, on_point)
            lower = upper = self.p_eps.clean * prediction
        for k in range(len(noise.radii)):
            low, high = self.adversary.extremes(
                graph, params, batch.inputs, noise.radii[k], self.domain, noise.starts, on_box
            )
            weight = noise.log_weights[k].exp()
            lower, upper = lower + weight * low, upper + weight * high
        squared = torch.maximum((upper - batch.targets).square(), (lower - batch.targets).square())
        constant = math.log(2 * math.pi * self.noise_std**2)
        return (-0.5 * (squared / self.noise_std**2 + constant)).sum(-1)

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
        """See the base class: the prediction plus observation noise."""
        mean = graph.evaluate(params, inputs)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + self.noise_std * noise

    def smoothed(self, tau: float) -> RobustGaussian:
        """See the base class."""
        return replace(self, adversary=self.adversary.smoothed(tau))

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        return {
            "name": "RobustGaussian",
            "noise_std": self.noise_std,
            "p_eps": self.p_eps.describe(),
            "adversary": self.adversary.describe(),
            "domain": domain_to_json(self.domain),
            "ramp": None if self.ramp is None else [self.ramp.start, self.ramp.end],
        }
