"""Regression: the Gaussian likelihood and its robust form (Remark 1 of the paper).

For one output with noise variance s²,

    p(y | x, w) = N(r; 0, s²) with the residual  r = max{ |E[f_max] - y|, |E[f_min] - y| },

where f_max and f_min are the extremes over the ball and E averages over p_eps; several outputs multiply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from certibayes.bounds import Box
from certibayes.errors import InvalidInput
from certibayes.likelihoods.adversaries import IBP, Adversary, Model, Threat
from certibayes.likelihoods.base import Batch
from certibayes.likelihoods.curriculum import DEFAULT_RAMP, Curriculum
from certibayes.likelihoods.radius import RadiusDistribution, TwoPoint
from certibayes.likelihoods.ramp import Ramp
from certibayes.likelihoods.robust import RobustLikelihood, radius_distribution
from certibayes.networks import Graph, Params

Extremes = tuple[Tensor, Tensor]
"""Smallest and largest outputs, (B, outputs) each."""


@dataclass(frozen=True, init=False, repr=False)
class RobustGaussian(RobustLikelihood):
    """The robust Gaussian likelihood; without a radius it is the standard one.

    Attributes:
        noise_std: standard deviation s of the observation noise, the same for every output.
        p_eps: distribution of the radius; a number stands for ``eps``. By default all radii are 0.
        adversary: ``IBP()``, ``CROWNIBP()`` or ``PGD()``.
        domain: values an input can take, or None; as in ``RobustCategorical``.
        ramp: how training comes to this likelihood; as in ``RobustCategorical``, but by default lam is constant, and
            radii grow linearly over half of training where ``eps`` is given: there is no worst case to be given up.
        eps: the radius that is to be certified, instead of ``p_eps``; as in ``RobustCategorical``.
        scale: what radii are multiples of; as in ``RobustCategorical``.
    """

    noise_std: float

    def __init__(
        self,
        noise_std: float = 1.0,
        p_eps: RadiusDistribution | float | None = None,
        adversary: Adversary = IBP(),  # noqa: B008 - frozen
        domain: Any = None,
        ramp: Curriculum | Ramp | str | None = DEFAULT_RAMP,
        *,
        eps: float | None = None,
        scale: Any = None,
    ) -> None:
        if not isinstance(noise_std, Real):
            raise InvalidInput(
                f"noise_std is the standard deviation of the observation noise, got {noise_std!r}. "
                "The radius goes by name: RobustGaussian(noise_std=1.0, eps=0.1)."
            )
        if not (math.isfinite(noise_std) and noise_std > 0):
            raise InvalidInput(f"noise_std must be positive, got {noise_std}.")
        object.__setattr__(self, "noise_std", noise_std)
        super().__init__(
            radius_distribution(p_eps, eps) or TwoPoint(0.0),
            adversary,
            domain,
            self.chosen_ramp(ramp, p_eps if eps is None else eps),
            scale,
        )
        if not adversary.for_regression:
            raise InvalidInput(
                f"{adversary} is an adversary for classification: it speaks of labels. For regression take IBP(), "
                "CROWNIBP() or PGD()."
            )

    @property
    def program(self) -> Any:
        """See the base class."""
        return (*super().program, self.noise_std)

    def validate(self, graph: Graph, batch: Batch) -> None:
        """See the base class."""
        if not batch.targets.is_floating_point() or tuple(batch.targets.shape[1:]) != graph.output_shape:
            raise InvalidInput(
                f"targets have shape {tuple(batch.targets.shape)} and type {batch.targets.dtype}, but the network "
                f"predicts {graph.output_shape} floats per example. Reshape the targets to "
                f"(N, {graph.classes})."
            )
        super().validate(graph, batch)

    def worst_outputs(self, model: Model, threat: Threat, targets: Tensor) -> Extremes:
        """Return smallest and largest outputs, (B, outputs) each."""
        return self.adversary.extremes(model, threat)

    def worst_in_box(self, box: Box, targets: Tensor) -> Extremes:
        """Return smallest and largest outputs, (B, outputs) each."""
        return box.lower, box.upper

    def log_p(self, clean: Tensor | None, worst: Sequence[Extremes], targets: Tensor, log_weights: Tensor) -> Tensor:
        """Average the extremes over p_eps, and return the log density of the larger residual, (B,)."""
        ends = list(worst) if clean is None else [(clean, clean), *worst]
        weights = log_weights.exp()
        lower = torch.stack([weight * low for weight, (low, _) in zip(weights, ends, strict=True)]).sum(0)
        upper = torch.stack([weight * high for weight, (_, high) in zip(weights, ends, strict=True)]).sum(0)
        squared = torch.maximum((upper - targets).square(), (lower - targets).square())
        constant = math.log(2 * math.pi * self.noise_std**2)
        return (-0.5 * (squared / self.noise_std**2 + constant)).sum(-1)

    def predicted_targets(self, graph: Graph, params: Params, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """See the base class: the prediction plus observation noise."""
        mean = graph.evaluate(params, inputs)
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + self.noise_std * noise

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        return {**super().describe(), "noise_std": self.noise_std}
