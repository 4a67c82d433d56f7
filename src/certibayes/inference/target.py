"""The target of inference: likelihood, prior, data size and temperature for one network.

log p(w | D) = 1/T ( sum_i log p(y_i | x_i, w) + log p(w) ) + constant
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from certibayes.inference.learned_prior import Groups
from certibayes.likelihoods import PAIRS, Batch, Gradients, Likelihood, Noise
from certibayes.networks import Graph, Network, Params
from certibayes.networks.batch_norm import training_graph

BATCH_NORM = ("batch", "constant")
"""Where the statistics of batch norm may come from in training; see ``Target``."""


@dataclass(frozen=True)
class Target:
    """What an algorithm infers.

    Attributes:
        graph: the network.
        buffers: tensors that are constants inside a step.
        likelihood: standard or robust.
        precision: 1 / prior variance for every parameter, 0-d tensors; in the parameter's shape where it is learned.
        data_size: number N of training examples.
        temperature: T; 1 is Bayes' rule, below 1 the posterior is colder, with smaller variances.
        epoch_steps: steps in one pass over the data, for methods that act once per epoch.
        total_steps: steps in the whole training.
        batch_norm: ``"constant"``, statistics are constants inside a step, among the buffers; or ``"batch"``, in
            ``mean_loss_and_gradient``, and there alone, they are those of the step's clean inputs, with gradient.
        l1: weight of |w| in the mean loss for every parameter, 0-d tensors; empty where the prior has no such term.
        clip: largest norm that the gradient of the mean loss may have; None for any.
        groups: of weights that share a variance, where the prior is learned: ``precision`` is then another between
            steps, as buffers are; None for a prior that is given.
    """

    graph: Graph
    buffers: dict[str, Tensor]
    likelihood: Likelihood
    precision: dict[str, Tensor]
    data_size: int
    temperature: float = 1.0
    epoch_steps: int = 1
    total_steps: int = 1
    batch_norm: str = "constant"
    l1: dict[str, Tensor] = field(default_factory=dict)
    clip: float | None = None
    groups: Groups | None = None

    @cached_property
    def prior(self) -> dict[str, Tensor]:
        """The prior's precision per example, by parameter: what a step on the mean loss adds for each weight."""
        return {name: precision / self.data_size for name, precision in self.precision.items()}

    @cached_property
    def _training_graph(self) -> Graph:
        return training_graph(self.graph) if self.batch_norm == "batch" else self.graph

    def weights(self, params: Params) -> dict[str, Tensor]:
        """Return all tensors of the network by name."""
        return {**self.buffers, **params}

    def log_likelihood(self, params: Params, batch: Batch, noise: Noise) -> Tensor:
        """Return log p(y | x, w) for each example, (B,)."""
        return self.likelihood.log_likelihood(self.graph, self.weights(params), batch, noise)

    def log_prior(self, params: Params) -> Tensor:
        """Return log p(w) up to its constant."""
        terms = [-0.5 * (p * params[name].square()).sum() for name, p in self.precision.items()]
        terms += [-self.data_size * weight * params[name].abs().sum() for name, weight in self.l1.items()]
        return torch.stack(terms).sum()

    def penalty(self, params: Params, batch: Batch, noise: Noise) -> Tensor:
        """Return what the likelihood's curriculum adds to the mean loss, 0-d."""
        return self.likelihood.penalty(self._training_graph, self.weights(params), batch, noise)

    def mean_loss_and_gradient(self, params: Params, batch: Batch, noise: Noise) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean negative log-likelihood of the batch and the gradient to descend.

        The Gaussian prior is in neither. The gradient is that of the loss with all regularizers, clipped. Where batch
        norm takes statistics of the batch, each example's likelihood depends on the others.
        """
        scale = -1.0 / len(batch.inputs)
        values, gradient = self.value_and_gradient(params, batch, noise, scale, self.likelihood.regularized)
        return -values.mean(), self._clipped(gradient, params)

    def value_and_gradient(
        self, params: Params, batch: Batch, noise: Noise, scale: float, penalized: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return log p(y | x, w) for each example, (B,), and the gradient of ``scale`` times their sum.

        Where it is ``penalized``, the gradient has that of ``penalty`` added.
        """
        compute = self.likelihood.value_and_penalized_grad if penalized else self.likelihood.value_and_grad
        return compute(self._training_graph, params, self.buffers, batch, noise, scale)

    @cached_property
    def paired(self) -> str | None:
        """The last layer's weight, where it has kinks at w_y = w_j that ``mean_loss_and_slopes`` tells of."""
        return self.likelihood.pair_kinks(self._training_graph)

    def zero_slopes(self, params: Params) -> dict[str, Tensor]:
        """Return zeros in the shapes of the gradient with respect to |w|; empty if the likelihood has no kinks."""
        at_zero = not self.likelihood.kinks(self._training_graph).isdisjoint(params)
        if not at_zero and self.paired is None:
            return {}
        slopes = {name: torch.zeros_like(p) for name, p in params.items()}
        if self.paired is not None:
            weight = params[self.paired]
            slopes[PAIRS] = weight.new_zeros(len(weight), *weight.shape)
        return slopes

    def named(self, params: Params) -> Params:
        """Return entries of the parameters by name, whatever form an algorithm has them in; views, no copies."""
        return params

    def mean_loss_and_slopes(
        self, params: Params, batch: Batch, noise: Noise
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Return what ``mean_loss_and_gradient`` does, and the gradient of the loss with respect to |w|.

        The latter is that of the likelihood alone, 0 for parameters without kinks; see ``Likelihood``.
        """
        values, gradient, magnitudes = self.value_and_slopes(params, batch, noise, -1.0 / len(batch.inputs))
        return -values.mean(), self._regularized(gradient, params, batch, noise), magnitudes

    def value_and_slopes(
        self, params: Params, batch: Batch, noise: Noise, scale: float
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Return what ``value_and_gradient`` does, and the same gradient with respect to |w|."""
        values, gradient, magnitudes = self.likelihood.value_and_slopes(
            self._training_graph, params, self.buffers, batch, noise, scale
        )
        return values, gradient, _with_zeros(magnitudes, params)

    def _regularized(
        self, gradient: dict[str, Tensor], params: Params, batch: Batch, noise: Noise
    ) -> dict[str, Tensor]:
        """Return the gradient of the mean loss with what regularizers add to it, clipped."""
        if self.likelihood.regularized:
            slopes = torch.func.grad(lambda weights: self.penalty(weights, batch, noise))(dict(params))
            gradient = {name: g + slopes[name] for name, g in gradient.items()}
        return self._clipped(gradient, params)

    def _clipped(self, gradient: dict[str, Tensor], params: Params) -> dict[str, Tensor]:
        """Return the gradient with what L1 adds to it, clipped."""
        if self.l1:
            gradient = {name: torch.addcmul(g, self.l1[name], params[name].sign()) for name, g in gradient.items()}
        if self.clip is not None:
            norm = torch.stack([g.square().sum() for g in gradient.values()]).sum().sqrt()
            # One factor for all weights, so that the direction stays. A tensor: nothing is read on the host.
            factor = (self.clip / norm).clamp(max=1.0)
            gradient = {name: factor * g for name, g in gradient.items()}
        return gradient

    def potential_and_gradient(
        self, params: Params, batch: Batch, noise: Noise, chunk: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return U(w) = -(sum_i log p(y_i | x_i, w) + log p(w)) / T over ``batch``, in float64, and its gradient.

        Args:
            params: one network's.
            batch: all the data.
            noise: one for all the data.
            chunk: examples at a time, so that memory stays bounded.
        """
        # Differences of the value decide on acceptance; in float32 its rounding would hide them, the prior's too.
        doubles = {name: weight.double() for name, weight in params.items()}
        value = -self.log_prior(doubles) / self.temperature
        gradient = {name: (p * doubles[name] / self.temperature).to(params[name]) for name, p in self.precision.items()}
        for name, weight in self.l1.items():
            gradient[name] += params[name].sign() * (weight * self.data_size / self.temperature)
        for start in range(0, len(batch.inputs), chunk):
            part = Batch(*(tensor[start : start + chunk] for tensor in batch))
            starts = None if noise.starts is None else noise.starts[start : start + chunk]
            values, slopes = self.value_and_gradient(params, part, noise._replace(starts=starts), -1 / self.temperature)
            value = value - values.double().sum() / self.temperature
            gradient = {name: g + slopes[name] for name, g in gradient.items()}
        return value, gradient

    def with_buffers(self, buffers: dict[str, Tensor]) -> Target:
        """Return the same target with other buffers."""
        return replace(self, buffers=buffers)

    def with_precision(self, precision: dict[str, Tensor]) -> Target:
        """Return the same target with other variances of the prior."""
        return replace(self, precision=precision)

    def smoothed(self, tau: float) -> Target:
        """Return the same target with |w| smoothed in its bounds; see ``bounds.rounding.smoothed``."""
        return replace(self, likelihood=self.likelihood.smoothed(tau))

    def gradients(self, params: Params, batch: Batch, noise: Noise) -> Gradients:
        """Return log-likelihoods, their summed gradient and squared per-example gradients.

        The summed gradient is that of ``mean_loss_and_gradient`` times -B: with what regularizers add, and clipped.
        """
        found = self.likelihood_gradients(params, batch, noise)
        if not (self.likelihood.regularized or self.l1 or self.clip is not None):
            return found
        size = len(batch.inputs)
        mean = {name: g / -size for name, g in found.gradient.items()}
        mean = self._regularized(mean, params, batch, noise)
        return found._replace(gradient={name: g * -size for name, g in mean.items()})

    def likelihood_gradients(self, params: Params, batch: Batch, noise: Noise) -> Gradients:
        """Return the same of the likelihood alone; where that has kinks, ``magnitudes`` are those of all parameters."""
        found = self.likelihood.value_grad_and_squares(self.graph, params, self.buffers, batch, noise)
        return found._replace(magnitudes=_with_zeros(found.magnitudes, params) if found.magnitudes else {})

    def network(self) -> Network:
        """Return graph and buffers in the form posteriors take."""
        return Network(self.graph, {}, self.buffers)


def _with_zeros(magnitudes: dict[str, Tensor], params: Params) -> dict[str, Tensor]:
    """Return an entry for every parameter, and that for pairs of classes behind them."""
    every = {name: magnitudes[name] if name in magnitudes else torch.zeros_like(p) for name, p in params.items()}
    return {**every, PAIRS: magnitudes[PAIRS]} if PAIRS in magnitudes else every
