"""Divergences of Gaussians over weights, in float64: from a prior of independent weights, and from one another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from certibayes.posteriors import DiagonalGaussian, LastLayerGaussian, LowRankGaussian

Gaussian = DiagonalGaussian | LastLayerGaussian


def kl_divergence(posterior: Gaussian, names: Sequence[str], variances: dict[str, Tensor]) -> float:
    """Return KL(q || N(0, v)) = 1/2 ( Σ_i (Σ_ii + m_i²) / v_i - P + Σ_i log v_i - log det Σ ).

    Args:
        posterior: q = N(m, Σ).
        names: of the parameters that vary.
        variances: v by name, which broadcast to the parameter's shape.
    """
    mean = _mean(posterior, names)
    prior = torch.cat([variances[name].double().expand(posterior.mean[name].shape).flatten() for name in names])
    if isinstance(posterior, LastLayerGaussian):
        factor = posterior.factor.double()
        diagonal, log_det = factor.square().sum(1), 2 * torch.linalg.slogdet(factor).logabsdet
    else:
        own, factors = _low_rank(posterior, names)
        diagonal, log_det = own + factors.square().sum(0), _log_det(own, factors)
    return float(0.5 * (((diagonal + mean.square()) / prior - 1 + prior.log()).sum() - log_det))


def bhattacharyya_distance(one: Gaussian, other: Gaussian, names: Sequence[str]) -> float:
    """Return -log ∫ sqrt(q_1 q_2) = 1/8 dᵀ Σ⁻¹ d + 1/2 log ( det Σ / sqrt(det Σ_1 det Σ_2) ), Σ = (Σ_1 + Σ_2) / 2.

    Args:
        one: q_1 = N(m_1, Σ_1), with all variances positive.
        other: q_2 = N(m_2, Σ_2), likewise; d = m_1 - m_2.
        names: of the parameters that vary, in the order in which both have them.
    """
    difference = _mean(one, names) - _mean(other, names)
    if isinstance(one, LastLayerGaussian) or isinstance(other, LastLayerGaussian):
        first, second = _dense(one, names), _dense(other, names)
        middle = torch.linalg.cholesky((first + second) / 2)
        distance = torch.linalg.solve_triangular(middle, difference[:, None], upper=False).square().sum()
        log_dets = [
            2 * middle.diagonal().log().sum(),
            *(torch.linalg.slogdet(each).logabsdet for each in (first, second)),
        ]
    else:
        (first, left), (second, right) = _low_rank(one, names), _low_rank(other, names)
        own, factors = (first + second) / 2, torch.cat([left, right]) / 2**0.5
        # Woodbury: (D + Fᵀ F)⁻¹ = D⁻¹ - D⁻¹ Fᵀ (1 + F D⁻¹ Fᵀ)⁻¹ F D⁻¹.
        through = (factors / own) @ difference
        distance = (difference.square() / own).sum() - through @ torch.linalg.solve(_inner(own, factors), through)
        log_dets = [_log_det(own, factors), _log_det(first, left), _log_det(second, right)]
    return float(distance / 8 + (log_dets[0] - (log_dets[1] + log_dets[2]) / 2) / 2)


def information_about_component(parts: Sequence[Gaussian], weights: Tensor, names: Sequence[str]) -> float:
    """Bound from below how much a sample of a mixture tells about its component, H(q) - Σ_k π_k H(q_k).

    The bound is -Σ_k π_k log Σ_j π_j exp(-B(q_k, q_j)) with the Bhattacharyya distance B (Kolchinsky and Tracey,
    2017): 0 if all are equal, H(π) if all are far apart.

    Args:
        parts: q_k, K of them, with all variances positive.
        weights: π, (K,), float64.
        names: of the parameters that vary, in the order in which all have them.
    """
    distances = torch.zeros(len(parts), len(parts), dtype=torch.float64)
    for i, j in itertools.combinations(range(len(parts)), 2):
        distances[i, j] = distances[j, i] = bhattacharyya_distance(parts[i], parts[j], names)
    return -float(weights @ torch.logsumexp(weights.log() - distances, 1))


def _mean(posterior: Gaussian, names: Sequence[str]) -> Tensor:
    return torch.cat([posterior.mean[name].double().flatten() for name in names])


def _low_rank(posterior: DiagonalGaussian, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return D, (P,), and F, (rank, P), of the covariance D + Fᵀ F; rank 0 where there is no more than a diagonal."""
    own = torch.cat([posterior.std[name].double().flatten() for name in names]).square()
    if not isinstance(posterior, LowRankGaussian):
        return own, own.new_zeros(0, len(own))
    return own, torch.cat([posterior.factors[name].double().flatten(1) for name in names], 1)


def _inner(own: Tensor, factors: Tensor) -> Tensor:
    return torch.eye(len(factors), dtype=own.dtype, device=own.device) + (factors / own) @ factors.T


def _log_det(own: Tensor, factors: Tensor) -> Tensor:
    """Return log det(D + Fᵀ F) = log det(D) + log det(1 + F D⁻¹ Fᵀ)."""
    if not len(factors) or not bool((own > 0).all()):
        # Without a width of its own some weight is a point, to any density infinitely far.
        return own.log().sum()
    return own.log().sum() + torch.linalg.slogdet(_inner(own, factors)).logabsdet


def _dense(posterior: Gaussian, names: Sequence[str]) -> Tensor:
    """Return the covariance, (P, P)."""
    if isinstance(posterior, LastLayerGaussian):
        factor = posterior.factor.double()
        return factor @ factor.T
    own, factors = _low_rank(posterior, names)
    return torch.diag(own) + factors.T @ factors
