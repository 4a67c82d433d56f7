"""What a likelihood is: noise, network passes, and a pure head that turns outputs into log p(y | x, w).

    log_likelihood(graph, params, batch, noise)  =  log_p( passes(graph, params, batch, noise), ... )

It is deterministic given its noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from certibayes.networks import Graph, Params
from certibayes.networks.batch_norm import clean_pass

PAIRS = "|w_y - w_j|"
"""Among gradients with respect to |w|: those with respect to |w_y - w_j| of a last layer; see ``pair_kinks``."""


class Batch(NamedTuple):
    """Inputs (B, ...) and targets: labels (B,) or regression targets (B, outputs)."""

    inputs: Tensor
    targets: Tensor


class Noise(NamedTuple):
    """What is random in a likelihood, drawn apart from it.

    Attributes:
        radii: (K,), scaled by the ramp or curriculum.
        log_weights: logarithms of the probabilities of the radii, (K,); where radius 0 has one too, it comes first,
            (1 + K,). Tensors, so that a captured step can be replayed with others.
        starts: where an attack starts, in [-1, 1] of the ball's radius, (B, ...); None without an attack.
    """

    radii: Tensor
    log_weights: Tensor
    starts: Tensor | None = None


class Outputs(NamedTuple):
    """What the network passes of a likelihood found.

    Attributes:
        clean: outputs at the inputs themselves, (B, outputs); None where radius 0 has no probability.
        worst: worst outputs for each of the K radii, as the likelihood's adversary has them.
    """

    clean: Tensor | None
    worst: Sequence[Any] = ()


class Gradients(NamedTuple):
    """What curvature methods need, summed over the batch.

    Attributes:
        values: log-likelihood of each example, (B,).
        gradient: sum of the per-example gradients, by parameter.
        squares: sum of the squares of the per-example gradients, by parameter.
        magnitudes: sum of the gradients with respect to |w|, as in ``Likelihood.value_and_slopes``.
    """

    values: Tensor
    gradient: dict[str, Tensor]
    squares: dict[str, Tensor]
    magnitudes: dict[str, Tensor]


class Asked(NamedTuple):
    """What is asked of the passes that are written out, beside values and gradient.

    Attributes:
        pairs: gradients with respect to |w_y - w_j|, which take a product of their own.
        penalty: that the gradient has that of ``penalty`` added.
    """

    pairs: bool = False
    penalty: bool = False


NO_MORE = Asked()


class Likelihood:
    """Base of all likelihoods. Subclasses are frozen dataclasses of settings.

    One that depends on the outputs at the inputs alone needs no more than ``log_p``; one that looks further also has
    ``draw`` and ``passes``. ``log_likelihood`` is all that inference knows of either.
    """

    @property
    def bounded(self) -> bool:
        """Whether bounds over a ball decide on classes, which get looser the more uncertain the weights are.

        Then the default temperature is the algorithm's ``robust_temperature``. Regression needs none of that: there
        bounds are tighter at temperature 1.
        """
        return False

    @property
    def program(self) -> Any:
        """What decides how the likelihood is computed. Two with equal ones differ by their noise alone.

        Models that do can be trained as one.
        """
        return self

    @property
    def regularized(self) -> bool:
        """Whether ``penalty`` is to be added to the loss."""
        return False

    def penalty(self, graph: Graph, params: Params, batch: Batch, noise: Noise) -> Tensor:
        """Return what is added to the mean loss on the way to this likelihood, 0-d; 0 at full radii.

        Args:
            graph: the network.
            params: parameters and buffers of one weight sample.
            batch: data.
            noise: from ``draw``.
        """
        return batch.inputs.new_zeros(())

    def settled(self, progress: float) -> Likelihood:
        """Return this likelihood without what is 0 from a fraction ``progress`` of training on, or itself."""
        return self

    def draw(self, progress: float, batch: Batch, generator: torch.Generator | None) -> Noise:
        """Draw the noise of one step.

        Args:
            progress: fraction of training done, for ramps.
            batch: the step's data, for shapes and device.
            generator: on the CPU.
        """
        nothing = batch.inputs.new_empty(0)
        return Noise(nothing, nothing)

    def log_likelihood(self, graph: Graph, params: Params, batch: Batch, noise: Noise) -> Tensor:
        """Return log p(y | x, w) for each example, (B,).

        Args:
            graph: the network.
            params: parameters and buffers of one weight sample.
            batch: data.
            noise: from ``draw``.
        """
        outputs = self.passes(graph, params, batch, noise)
        return self.log_p(outputs.clean, outputs.worst, batch.targets, noise.log_weights)

    def passes(self, graph: Graph, params: Params, batch: Batch, noise: Noise) -> Outputs:
        """Send the batch through the network; one clean pass unless a likelihood needs more.

        In training the network may hold batch norm by statistics of the clean batch. ``networks.batch_norm.clean_pass``
        finds them, beside the outputs, and all other passes take the parameters that it returns.

        Args:
            graph: the network.
            params: parameters and buffers of one weight sample.
            batch: data.
            noise: from ``draw``.
        """
        return Outputs(clean_pass(graph, params, batch.inputs).outputs)

    def log_p(self, clean: Tensor | None, worst: Sequence[Any], targets: Tensor, log_weights: Tensor) -> Tensor:
        """Return log p(y | x, w) for each example, (B,), from outputs alone: the head.

        Args:
            clean: see ``Outputs``.
            worst: see ``Outputs``.
            targets: labels (B,) or regression targets (B, outputs).
            log_weights: logarithms of their probabilities, that of the clean outputs first.
        """
        raise NotImplementedError

    def withstands(self, outputs: Outputs, targets: Tensor) -> Tensor | None:
        """Tell which examples (B,) keep their class in the worst case; None where there is none, or no class.

        Args:
            outputs: from ``passes``.
            targets: labels (B,) or regression targets (B, outputs).
        """
        return None

    def value_and_grad(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise, scale: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return log p(y | x, w) for each example, (B,), and the gradient of ``scale`` times their sum.

        Args:
            graph: the network.
            params: parameters of one weight sample.
            buffers: tensors that are constants.
            batch: data.
            noise: from ``draw``.
            scale: a factor, so that nobody needs to multiply a gradient.
        """

        def total(weights: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            values = self.log_likelihood(graph, {**buffers, **weights}, batch, noise)
            return values.sum() * scale, values

        gradient, values = torch.func.grad(total, has_aux=True)(dict(params))
        return values, gradient

    def value_and_penalized_grad(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise, scale: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what ``value_and_grad`` does, with the gradient of ``penalty`` added."""
        values, gradient = self.value_and_grad(graph, params, buffers, batch, noise, scale)
        slopes = torch.func.grad(lambda own: self.penalty(graph, {**buffers, **own}, batch, noise))(dict(params))
        return values, {name: g + slopes[name] for name, g in gradient.items()}

    def kinks(self, graph: Graph) -> frozenset[str]:
        """Return the parameters that also enter by |w|, of which gradients with respect to |w| are known.

        At w = 0 such a likelihood has a kink, which no squared gradient sees; see ``inference._kink``.
        """
        return frozenset()

    def pair_kinks(self, graph: Graph) -> str | None:
        """Return the weight (C, n) of the last layer where it enters by |w_y - w_j|, y and j classes; None elsewhere.

        There the likelihood has a kink at w_y = w_j; see ``inference._pair_kinks``.
        """
        return None

    def value_and_slopes(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise, scale: float
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Return what ``value_and_grad`` does, and the gradient with respect to |w| of the parameters in ``kinks``.

        Where there are ``pair_kinks``, the last entry of the latter, under ``PAIRS``, is the gradient with respect to
        |w_k - w_j| of every two classes, (C, C, n): symmetric, and 0 for a class and itself.
        """
        return *self.value_and_grad(graph, params, buffers, batch, noise, scale), {}

    def value_grad_and_squares(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise
    ) -> Gradients:
        """Return values, gradient and squared per-example gradients; by ``vmap(grad)``, which is right and slow."""
        return per_example_gradients(self, graph, params, buffers, batch, noise)

    def keeps(self, kind: type[Likelihood], *methods: str) -> bool:
        """Tell whether these methods are those of ``kind``: what is written out for them does not fit others."""
        return all(getattr(type(self), method) is getattr(kind, method) for method in methods)

    def predicted_targets(self, graph: Graph, params: Params, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Draw targets from the network's own clean prediction, as the Fisher information needs them.

        Args:
            graph: the network.
            params: parameters and buffers of one weight sample.
            inputs: (B, ...).
            generator: on the device of the inputs.
        """
        raise NotImplementedError(f'{type(self).__name__} has no predicted_targets; take fisher="empirical".')

    def smoothed(self, tau: float) -> Likelihood:
        """Return a likelihood that depends smoothly on the weights, where bounds with |w| do not."""
        return self

    def validate(self, graph: Graph, batch: Batch) -> None:
        """Raise if data and network do not fit this likelihood; called once, at the border."""

    def describe(self) -> dict[str, Any]:
        """Return what goes into a posterior's metadata."""
        return {"name": type(self).__name__}


def per_example_gradients(
    likelihood: Likelihood, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise
) -> Gradients:
    """Compute ``Gradients`` by materializing every example's gradient: the reference for all shortcuts."""

    def one(weights: dict[str, Tensor], x: Tensor, y: Tensor, start: Tensor | None) -> Tensor:
        single = noise._replace(starts=None if start is None else start[None])
        return likelihood.log_likelihood(graph, {**buffers, **weights}, Batch(x[None], y[None]), single).squeeze(0)

    starts_dim = None if noise.starts is None else 0
    gradients, values = torch.vmap(torch.func.grad_and_value(one), in_dims=(None, 0, 0, starts_dim))(
        dict(params), batch.inputs, batch.targets, noise.starts
    )
    return Gradients(
        values.detach(),
        {name: g.sum(0) for name, g in gradients.items()},
        {name: g.square().sum(0) for name, g in gradients.items()},
        {},
    )
