"""p_eps: how far the adversary may move the input, as a distribution on [0, inf).

The robust likelihood is an expectation over p_eps. Each distribution gives that expectation as a mass at radius 0,
which needs no bounds, and a weighted sum over radii: fixed ones (two points, quadrature) or Monte Carlo draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from certibayes.errors import InvalidInput
from certibayes.likelihoods._settings import short_repr

MULTIPLIER = 1.1
"""Gowal et al. (2018) and the paper's supplement train with 1.1 times the radius they want to certify."""


class Radii(NamedTuple):
    """Radii (K,) and the logarithms of their weights (K,); weights and clean mass sum to 1."""

    radii: Tensor
    log_weights: Tensor


class RadiusDistribution:
    """A distribution p_eps.

    Attributes:
        clean: probability that the radius is exactly 0.
        eps: the radius that is to be certified, where ``for_radius`` made the distribution for one.
    """

    clean: float = 0.0
    eps: float | None = None

    def nodes(self, generator: torch.Generator | None) -> Radii:
        """Return the radii beside 0, drawn afresh where the distribution is sampled."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Return what goes into a posterior's metadata."""
        return {"name": type(self).__name__}

    def __repr__(self) -> str:
        """Return the settings that are not at their defaults."""
        return short_repr(self)

    def _made_for(self, eps: float) -> Self:
        """Remember the radius that is to be certified; it plays no part in what is computed."""
        object.__setattr__(self, "eps", eps)
        return self


def _require_radius(eta: float) -> None:
    if not (math.isfinite(eta) and eta >= 0.0):
        raise InvalidInput(f"eta must be a finite radius >= 0, got {eta}.")


@dataclass(frozen=True, repr=False)
class TwoPoint(RadiusDistribution):
    """Radius 0 with probability lam, eta otherwise: Eqn (5) of the paper.

    lam = 1 or eta = 0 is the standard likelihood.
    """

    eta: float
    lam: float = 0.25

    def __post_init__(self) -> None:
        _require_radius(self.eta)
        if not 0.0 <= self.lam <= 1.0:
            raise InvalidInput(f"lam is a probability, got {self.lam}.")

    @classmethod
    def for_radius(cls, eps: float, lam: float = 0.25, multiplier: float = MULTIPLIER) -> Self:
        """Train for certificates at ``eps``: eta is 1.1 times that, as in the supplement."""
        return cls(multiplier * eps, lam)._made_for(eps)

    @property
    def clean(self) -> float:  # type: ignore[override]
        """Probability of radius 0."""
        return 1.0 if self.eta == 0.0 else self.lam

    def nodes(self, generator: torch.Generator | None) -> Radii:
        """Return eta, or nothing where all mass is at 0."""
        if self.clean == 1.0:
            return Radii(torch.empty(0), torch.empty(0))
        return Radii(
            torch.tensor([self.eta], dtype=torch.float64), torch.tensor([math.log1p(-self.lam)], dtype=torch.float64)
        )

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        return {"name": "TwoPoint", **asdict(self)}


@dataclass(frozen=True, repr=False)
class _Continuous(RadiusDistribution):
    """A distribution without mass at 0, summed over Monte Carlo draws or quadrature nodes.

    Attributes:
        draws: Monte Carlo draws per batch (the paper takes 10). The logarithm of their mean is biased.
        quadrature: number of fixed Gauss-Legendre nodes in probability, instead of draws; 8 are exact enough, and a
            fixed function of the weights is what HMC needs.
    """

    draws: int = field(default=10, kw_only=True)
    quadrature: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.draws < 1 or (self.quadrature is not None and self.quadrature < 1):
            raise InvalidInput("draws and quadrature count radii, so they are at least 1.")

    def quantile(self, probabilities: Tensor) -> Tensor:
        """Map probabilities (K,) in [0, 1) to radii (K,)."""
        raise NotImplementedError

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Draw radii (draws,) by inverse CDF; the uniform numbers never reach 1, where a quantile may be infinite."""
        return self.quantile(torch.rand(self.draws, generator=generator, dtype=torch.float64))

    def nodes(self, generator: torch.Generator | None) -> Radii:
        """Return quadrature nodes, or draws."""
        if self.quadrature is not None:
            points, weights = np.polynomial.legendre.leggauss(self.quadrature)
            radii, count = self.quantile(torch.from_numpy((points + 1) / 2)), self.quadrature
            log_weights = torch.from_numpy(np.log(weights / 2))
        else:
            radii, count = self.sample(generator), self.draws
            log_weights = torch.full((count,), -math.log(count), dtype=torch.float64)
        if radii.shape != (count,) or not bool((torch.isfinite(radii) & (radii >= 0)).all()):
            raise InvalidInput(f"p_eps must give {count} finite radii >= 0, got {radii.tolist()}.")
        return Radii(radii, log_weights)


@dataclass(frozen=True, repr=False)
class Quantiles(_Continuous):
    """A distribution given by its inverse CDF or by a sampler.

    Attributes:
        inverse_cdf: maps probabilities (K,) in [0, 1) to radii (K,).
        sampler: (number, generator) -> radii; instead of ``inverse_cdf``.
    """

    inverse_cdf: Callable[[Tensor], Tensor] | None = None
    sampler: Callable[[int, torch.Generator | None], Tensor] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.inverse_cdf is None) == (self.sampler is None):
            raise InvalidInput("give either inverse_cdf or sampler.")
        if self.sampler is not None and self.quadrature is not None:
            raise InvalidInput("quadrature needs inverse_cdf: a sampler has no fixed nodes.")

    def quantile(self, probabilities: Tensor) -> Tensor:
        """See the base class."""
        assert self.inverse_cdf is not None
        return self.inverse_cdf(probabilities)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """See the base class."""
        return super().sample(generator) if self.sampler is None else self.sampler(self.draws, generator)

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        function = self.inverse_cdf or self.sampler
        return {
            "name": "Quantiles",
            "function": getattr(function, "__qualname__", str(function)),
            "draws": self.draws,
            "quadrature": self.quadrature,
        }


@dataclass(frozen=True, repr=False)
class _Scaled(_Continuous):
    """A one-parameter family: ``eta`` times a standard distribution. At eta = 0 all mass is at 0."""

    eta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_radius(self.eta)

    @classmethod
    def for_radius(cls, eps: float, multiplier: float = MULTIPLIER, **settings: Any) -> Self:
        """Scale by 1.1 times the radius that is to be certified."""
        return cls(multiplier * eps, **settings)._made_for(eps)

    @property
    def clean(self) -> float:  # type: ignore[override]
        """Probability of radius 0."""
        return 1.0 if self.eta == 0.0 else 0.0

    def nodes(self, generator: torch.Generator | None) -> Radii:
        """See the base class."""
        return super().nodes(generator) if self.eta > 0 else Radii(torch.empty(0), torch.empty(0))

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        return {"name": type(self).__name__, **asdict(self)}


class Rayleigh(_Scaled):
    """p(eps) = eps / eta² exp(-eps² / (2 eta²)), of the supplement."""

    def quantile(self, probabilities: Tensor) -> Tensor:
        """See the base class."""
        return self.eta * torch.sqrt(-2.0 * torch.log1p(-probabilities))


class Exponential(_Scaled):
    """p(eps) = exp(-eps / eta) / eta, of the supplement."""

    def quantile(self, probabilities: Tensor) -> Tensor:
        """See the base class."""
        return -self.eta * torch.log1p(-probabilities)
