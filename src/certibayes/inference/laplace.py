"""Laplace: a Gaussian around the most probable weights (MacKay, 1992; Daxberger et al., 2021).

After MAP training has found w*, with prior precision δ and temperature T,

    q(w) = N( w*, T Λ⁻¹ ),        Λ = F + δ,        F = Σ_i E[ ∇log p(y | x_i, w*) ∇log p(y | x_i, w*)ᵀ ],

where y is drawn from the network's own prediction: F is the Fisher information, which for the standard likelihoods is
the generalized Gauss-Newton matrix. ``fisher="empirical"`` takes the labels of the data instead. Λ is kept as its
diagonal, or in full for the last layer alone, with all other weights fixed.

Where the likelihood has kinks, their curvature is added to Λ's diagonal, under q itself; see ``inference._kink``. It is
that of the loss with the labels of the data, which is where the weights came to rest. Kinks at w_y = w_j, of a last
layer that is folded into margins, also enter beside the diagonal, where Λ is in full; see ``inference._pair_kinks``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.inference._kink import PRECISE, kink_curvatures
from certibayes.inference._meanfield import standard_deviations
from certibayes.inference._pair_kinks import PRECISE_ROUNDS, laplacians
from certibayes.inference.algorithm import Sweep
from certibayes.inference.map import MAP, MAPState
from certibayes.inference.target import Target
from certibayes.likelihoods import PAIRS, Batch, Noise
from certibayes.networks import Graph, Params
from certibayes.posteriors import DiagonalGaussian, LastLayerGaussian, Posterior

LARGEST = 30_000
"""Parameters of a last layer whose covariance is kept in full: in float64, 7 gigabytes of it."""

SWEEPS = 2
"""Rounds in which each weight of a last layer finds the curvature of its kink, given the others'."""


@dataclass(frozen=True)
class Laplace(MAP):
    """Laplace approximation on top of MAP. With ``epochs=0`` it is made around the network as it is.

    Attributes:
        lr: learning rate of the MAP training.
        optimizer: ``"adam"`` or ``"sgd"``.
        betas: decay of the moments; SGD takes the first as momentum.
        structure: ``"last-layer"`` for a full covariance of the last layer's weights, with all others fixed; or
            ``"diagonal"``, over all weights.
        fisher: ``"model"`` draws labels from the network's own prediction, ``"empirical"`` takes those of the data.
        draws: labels drawn for each example (model).
        kinks: whether the curvature of |w| counts, where the likelihood has bounds.
    """

    temperature_in: ClassVar[str] = "finalize"
    post_hoc: ClassVar[bool] = True
    learns_prior_in: ClassVar[str] = "finalize"

    structure: str = "last-layer"
    fisher: str = "model"
    draws: int = 1
    kinks: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.structure not in ("diagonal", "last-layer"):
            raise InvalidInput(f'structure must be "diagonal" or "last-layer", got {self.structure!r}.')
        if self.fisher not in ("model", "empirical"):
            raise InvalidInput(f'fisher must be "model" or "empirical", got {self.fisher!r}.')
        if self.draws < 1:
            raise InvalidInput(f"draws must be at least 1, got {self.draws}.")

    def init(self, target: Target, params: Params, generator: torch.Generator) -> MAPState:
        """Start from the network's parameters, if there will be room for the covariance."""
        size = sum(params[name].numel() for name in last_layer(target.graph))
        if self.structure == "last-layer" and size > LARGEST:
            raise InvalidInput(
                f"the last layer has {size} parameters, and its covariance the square of that; at most {LARGEST} are "
                'taken. Use structure="diagonal".'
            )
        return super().init(target, params, generator)

    def finalize(self, target: Target, state: MAPState, sweep: Sweep, generator: torch.Generator) -> Posterior:
        """Go over the data once for the curvature, and return the Gaussian."""
        # By constants, as all of the curvature is, where training had statistics of the batch.
        target = replace(target, batch_norm="constant")
        labeled = (
            (self._relabeled(target, state, batch, generator), noise) for batch, noise in sweep for _ in self._passes
        )
        slopes = self._slopes(target, state, sweep)
        if self.structure == "diagonal":
            return self._diagonal(target, state, labeled, slopes)
        return self._last_layer(target, state, labeled, slopes)

    @property
    def _passes(self) -> range:
        return range(self.draws if self.fisher == "model" else 1)

    def _relabeled(self, target: Target, state: MAPState, batch: Batch, generator: torch.Generator) -> Batch:
        if self.fisher == "empirical":
            return batch
        weights = {**target.buffers, **state.params}
        drawn = target.likelihood.predicted_targets(target.graph, weights, batch.inputs, generator)
        return Batch(batch.inputs, drawn)

    def _slopes(self, target: Target, state: MAPState, sweep: Sweep) -> dict[str, Tensor]:
        """Return the derivative of the mean loss over all data with respect to |w|; empty if there are no kinks."""
        slopes = target.zero_slopes(state.params) if self.kinks else {}
        if not slopes:
            return {}
        with torch.no_grad():
            for batch, noise in sweep:
                found = target.value_and_slopes(state.params, batch, noise, -1.0 / target.data_size)[2]
                slopes = {name: slope + found[name] for name, slope in slopes.items()}
        return slopes

    def _diagonal(self, target: Target, state: MAPState, labeled: Sweep, slopes: dict[str, Tensor]) -> Posterior:
        fisher = {name: torch.zeros_like(p) for name, p in state.params.items()}
        share = 1.0 / (len(self._passes) * target.data_size)
        for batch, noise in labeled:
            squares = target.gradients(state.params, batch, noise).squares
            fisher = {name: torch.add(f, squares[name], alpha=share) for name, f in fisher.items()}

        def deviations(precision: Params) -> dict[str, Tensor]:
            under = target.with_precision(dict(precision))
            kinks = kink_curvatures(under, state.params, fisher, slopes, PRECISE) if slopes else {}
            return standard_deviations(under, fisher, kinks)

        precision = target.precision
        if target.groups is not None:
            precision = target.groups.maximized(precision, state.params, deviations)
        posterior = DiagonalGaussian(target.network(), state.params, deviations(precision))
        return _with_prior(posterior, target, precision)

    def _last_layer(self, target: Target, state: MAPState, labeled: Sweep, slopes: dict[str, Tensor]) -> Posterior:
        names = last_layer(target.graph)
        like = torch.cat([state.params[name].flatten() for name in names])
        # In float64: the matrix is about to be inverted.
        fisher = like.new_zeros((len(like), len(like)), dtype=torch.float64)
        for batch, noise in labeled:
            rows = _per_example(target, state.params, names, batch, noise).double()
            fisher.addmm_(rows.T, rows, alpha=1.0 / len(self._passes))

        def factor(precision: Params) -> Tensor:
            own = torch.cat([precision[name].expand(state.params[name].shape).flatten() for name in names]).double()
            found = _inverse_root(fisher + torch.diag(own))
            if PAIRS in slopes:
                found = _with_pair_kinks(fisher + torch.diag(own), found, state.params, slopes[PAIRS], target)
            elif slopes:
                slope = torch.cat([slopes[name].flatten() for name in names]).double()
                found = _with_kinks(fisher + torch.diag(own), found, like.double(), slope, target)
            return found * target.temperature**0.5

        def deviations(precision: Params) -> dict[str, Tensor]:
            parts = factor(precision).norm(dim=1).to(like).split([state.params[name].numel() for name in names])
            return {name: part.view_as(state.params[name]) for name, part in zip(names, parts, strict=True)}

        precision = target.precision
        if target.groups is not None:
            precision = target.groups.maximized(precision, state.params, deviations)
        posterior = LastLayerGaussian(target.network(), state.params, factor(precision).to(like), names)
        return _with_prior(posterior, target, precision)


def _with_prior(posterior: Posterior, target: Target, precision: Params) -> Posterior:
    """Let the posterior know the prior's variances, where they were learned."""
    if target.groups is not None:
        posterior.prior_variances = target.groups.variances(precision)
    return posterior


def _inverse_root(precision: Tensor) -> Tensor:
    """Return A with A Aᵀ = Λ⁻¹: with Λ = L Lᵀ it is L⁻ᵀ."""
    lower = torch.linalg.cholesky(precision)
    identity = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(lower.T, identity, upper=True)


def _with_kinks(precision: Tensor, root: Tensor, mean: Tensor, slope: Tensor, target: Target) -> Tensor:
    """Return A with A Aᵀ = (Λ + diag(N k))⁻¹, k the curvature of each weight's kink under the Gaussian itself.

    With the kinks of all other weights given, the variance of one weight is v / (1 + N k v), where v is its variance
    without its own kink, which can be read off the covariance. So k solves the equation of ``inference._kink`` with
    1 / v in the place of N h + δ, and all of them are found in a few rounds.

    Args:
        precision: Λ without kinks, (P, P).
        root: A without kinks.
        mean: (P,).
        slope: derivative of the mean loss with respect to |w|, (P,).
        target: for N and T.
    """
    kinks = torch.zeros_like(mean)
    for _ in range(SWEEPS):
        alone = 1 / root.square().sum(1) - target.data_size * kinks
        nothing = {"": torch.zeros_like(mean)}
        found = kink_curvatures(
            target.with_precision(nothing), {"": mean}, {"": alone / target.data_size}, {"": slope}, PRECISE
        )
        kinks = found[""]
        root = _inverse_root(precision + torch.diag(target.data_size * kinks))
    return root


def _with_pair_kinks(precision: Tensor, root: Tensor, params: Params, slopes: Tensor, target: Target) -> Tensor:
    """Return A with A Aᵀ = (Λ + N Σ k (e_y - e_j)(e_y - e_j)ᵀ)⁻¹, k the curvature of the kink of each pair of classes.

    With the kinks of all other inputs of the layer given, the covariance of one input's weights, without their own
    kinks, can be read off that of all. So the kinks of each input are found by themselves, in a few rounds.

    Args:
        precision: Λ without kinks, (P, P).
        root: A without kinks.
        params: by name.
        slopes: derivatives of the mean loss with respect to |w_y - w_j|, (C, C, n).
        target: for N and T.
    """
    weight, names = target.paired, last_layer(target.graph)
    assert weight is not None
    start = sum(params[name].numel() for name in names[: names.index(weight)])
    mean, slopes = params[weight].double(), slopes.double()
    place = slice(start, start + mean.numel())
    pairs = torch.zeros_like(slopes)
    for _ in range(SWEEPS):
        rows = root[place].unflatten(0, mean.shape).transpose(0, 1)
        alone = _inverse(rows @ rows.mT) - target.data_size * laplacians(pairs)
        pairs = _settled_pairs(alone, mean, slopes, pairs, target)
        total = precision.clone()
        every = total[place, place].unflatten(0, mean.shape).unflatten(-1, mean.shape)
        every.diagonal(dim1=1, dim2=3).add_(target.data_size * laplacians(pairs).permute(1, 2, 0))
        root = _inverse_root(total)
    return root


def _settled_pairs(alone: Tensor, mean: Tensor, slopes: Tensor, pairs: Tensor, target: Target) -> Tensor:
    """Return the curvatures of the kinks of pairs of classes, (C, C, n), under the Gaussian that they make.

    As in ``_with_kinks``, each pair solves an equation of its own, given the others, by its variance without its own
    kink. All of them do at once, so they go half of the way.

    Args:
        alone: precision of every input's weights without these kinks, (n, C, C).
        mean: of the weights, (C, n).
        slopes: see ``_with_pair_kinks``.
        pairs: curvatures to start from, (C, C, n).
        target: for N and T.
    """
    difference, nothing = mean[:, None] - mean, {"": torch.zeros_like(slopes)}
    same = torch.eye(len(mean), dtype=torch.bool, device=mean.device)[..., None]
    for _ in range(PRECISE_ROUNDS):
        covariance = _inverse(alone + target.data_size * laplacians(pairs)).permute(1, 2, 0)
        variances = covariance.diagonal().T
        variance = (variances[:, None] + variances - 2 * covariance).masked_fill(same, 1.0)
        without = {"": 1 / (variance * target.data_size) - pairs}
        found = kink_curvatures(target.with_precision(nothing), {"": difference}, without, {"": slopes}, PRECISE)
        pairs = (pairs + found[""]) / 2
    return pairs


def _inverse(precision: Tensor) -> Tensor:
    """Return the inverse of a positive definite matrix, as symmetric as that."""
    return torch.cholesky_inverse(torch.linalg.cholesky(precision))


def last_layer(graph: Graph) -> tuple[str, ...]:
    """Return the names of the parameters of the last layer that has any."""
    for node in reversed(graph.nodes):
        names = tuple(name for name in node.roles.values() if name in graph.parameters)
        if names:
            return names
    raise InvalidInput("the network has no parameters.")


def _per_example(
    target: Target, params: dict[str, Tensor], names: tuple[str, ...], batch: Batch, noise: Noise
) -> Tensor:
    """Gradients of every example's log-likelihood with respect to some parameters, (B, P), in the order of names."""

    def one(chosen: dict[str, Tensor], x: Tensor, y: Tensor, start: Tensor | None) -> Tensor:
        single = noise._replace(starts=None if start is None else start[None])
        return target.log_likelihood({**params, **chosen}, Batch(x[None], y[None]), single).squeeze(0)

    chosen = {name: params[name] for name in names}
    starts_dim = None if noise.starts is None else 0
    gradients = torch.vmap(torch.func.grad(one), in_dims=(None, 0, 0, starts_dim))(
        chosen, batch.inputs, batch.targets, noise.starts
    )
    return torch.cat([gradients[name].reshape(len(batch.inputs), -1) for name in names], 1)
