"""A Gaussian over the last layer alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from certibayes.errors import CorruptFile, InvalidInput
from certibayes.networks import Network, Params
from certibayes.posteriors._metadata import of_center
from certibayes.posteriors._parameters import named_tensors, parameters_of
from certibayes.posteriors.point import Point
from certibayes.posteriors.posterior import Posterior
from certibayes.regions import Domain
from certibayes.support.exact_product import exact_product
from certibayes.support.tensors import as_tensor

ROWS = 1024
"""Rows of the factor that are multiplied at a time, so that memory stays bounded."""


class LastLayerGaussian(Posterior):
    """Some parameters, as one vector, follow N(mean, A Aᵀ); all others are fixed.

    Args:
        net: the network.
        mean: of all parameters, by name.
        factor: A, (P, P), for the P entries of the named parameters one after the other.
        names: which parameters are not fixed.
        input_shape: see ``Posterior``.
        metadata: see ``Posterior``.
        domain: see ``Posterior``.
    """

    def __init__(
        self,
        net: nn.Module | Network,
        mean: Params,
        factor: Tensor,
        names: Sequence[str],
        input_shape: Sequence[int] | None = None,
        metadata: Mapping[str, Any] | None = None,
        domain: Domain = None,
    ):
        super().__init__(net, input_shape, {**(metadata or {}), "names": list(names)}, domain)
        mean, factor = parameters_of(self.network, mean, "mean"), as_tensor(factor, "the factor")
        unknown = [name for name in names if name not in self.graph.parameters]
        if unknown:
            raise InvalidInput(f"the network has no parameters {', '.join(unknown)}.")
        if len(set(names)) < len(names):
            raise InvalidInput(f"a parameter is named twice: {', '.join(names)}.")
        size = sum(mean[name].numel() for name in names)
        factor = factor if factor.is_floating_point() else factor.to(next(iter(mean.values())))
        if tuple(factor.shape) != (size, size):
            raise InvalidInput(
                f"the factor must be ({size}, {size}) for {', '.join(names)}; got {tuple(factor.shape)}."
            )
        if not bool(torch.isfinite(factor).all()):
            raise InvalidInput("the factor of the covariance holds values that are not finite.")
        self.mean = {name: mean[name].detach().clone() for name in self.graph.parameters}
        self.factor = factor.detach().clone(memory_format=torch.contiguous_format)
        self.names = tuple(names)

    @property
    def holds(self) -> str:
        """See the base class."""
        return f"a Gaussian over {', '.join(self.names)}, all other weights fixed"

    @property
    def _random(self) -> tuple[str, ...]:
        """See the base class."""
        return self.names

    def sample(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw mean + A ξ, ξ ~ N(0, 1), on the CPU so that a seed means the same everywhere."""
        drawn = {name: mean.expand(samples, *mean.shape) for name, mean in self.mean.items()}
        normal = torch.randn((samples, len(self.factor)), generator=generator, dtype=self.factor.dtype)
        normal = normal.to(self.factor.device)
        # The same bits on every device, so that a seed means the same everywhere.
        moved = torch.cat([exact_product(normal, rows.T) for rows in self.factor.split(ROWS)], 1).to(self.factor)
        numbers = [self.mean[name].numel() for name in self.names]
        for name, part in zip(self.names, moved.split(numbers, 1), strict=True):
            drawn[name] = self.mean[name] + part.view(samples, *self.mean[name].shape)
        return self._with_buffers(drawn)

    def center(self) -> Point:
        """Return the network of the mean weights; after ``fit``, with batch norm statistics of its own."""
        network = self.network.with_all() if self.graph.fitted else self.network
        return Point(network, {**network.params, **self.mean}, metadata=of_center(self.metadata))

    def tensors(self) -> dict[str, Tensor]:
        """See the base class."""
        return {"factor": self.factor, **{f"mean:{name}": tensor for name, tensor in self.mean.items()}}

    @classmethod
    def from_tensors(cls, network: Network, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Self:
        """See the base class."""
        mean = named_tensors("mean", network.graph, tensors)
        if "factor" not in tensors or "names" not in metadata:
            raise CorruptFile("the posterior file lacks the covariance of the last layer.")
        return cls(network, mean, tensors["factor"], metadata["names"], metadata=metadata)
