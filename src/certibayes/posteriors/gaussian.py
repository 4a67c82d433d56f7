"""Gaussian posteriors: independent weights, and with a low-rank part.

What surrounds the mean, standard deviations and factors, may be in float16 (``compact``): a posterior of rank 20 then
takes little more than half the room. Samples are computed in the precision of the mean in any case, to which float16
converts exactly, so that what is stored, sampled and certified is one and the same Gaussian.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from certibayes.errors import InvalidInput
from certibayes.networks import Network, Params
from certibayes.posteriors._metadata import of_center
from certibayes.posteriors._parameters import named_tensors, parameters_of, stacked_parameters_of
from certibayes.posteriors._vectors import parameters_from_vectors
from certibayes.posteriors.point import Point
from certibayes.posteriors.posterior import Posterior, as_network
from certibayes.regions import Domain
from certibayes.support.stacks import count, pick
from certibayes.support.tensors import as_tensor

COMPACT = torch.float16
"""Precision of a compact posterior's deviations. Up to 2^-11 of a deviation is lost, or 2^-25 where it is below 2^-14:
far less than 35 samples, or the 20 iterates that it was estimated from, can tell."""


class DiagonalGaussian(Posterior):
    """Independent normal distributions: N(mean, std²) for every parameter.

    Args:
        net: the network.
        mean: by name.
        std: by name; not negative. In another precision than the mean it is kept, and converted when it is used.
        input_shape: see ``Posterior``.
        metadata: see ``Posterior``.
        domain: see ``Posterior``.
    """

    def __init__(
        self,
        net: nn.Module | Network,
        mean: Params,
        std: Params,
        input_shape: Sequence[int] | None = None,
        metadata: Mapping[str, Any] | None = None,
        domain: Domain = None,
    ):
        super().__init__(net, input_shape, metadata, domain)
        mean, std = parameters_of(self.network, mean, "mean"), parameters_of(self.network, std, "std")
        for name in self.graph.parameters:
            if mean[name].shape != std[name].shape:
                raise InvalidInput(f"mean and std of {name!r} differ in shape.")
            if not bool((std[name] >= 0).all()):
                raise InvalidInput(f"the standard deviations of {name!r} are negative or NaN.")
        self.mean = {name: mean[name].detach().clone() for name in self.graph.parameters}
        self.std = {name: std[name].detach().clone() for name in self.graph.parameters}

    @staticmethod
    def from_vectors(
        net: nn.Module | Network,
        mean: Any,
        std: Any,
        names: Sequence[str] | None = None,
        input_shape: Sequence[int] | None = None,
        domain: Domain = None,
    ) -> DiagonalGaussian:
        """Take a Gaussian that comes as vectors, such as that of laplace-torch with a diagonal Hessian.

            cb.DiagonalGaussian.from_vectors(net, la.mean, la.posterior_variance.sqrt())

        Args:
            net: the network, in eval mode where it has dropout. Parameters that the vectors do not hold are its own,
                and do not vary.
            mean: (P,), in the order of ``torch.nn.utils.parameters_to_vector(net.parameters())``.
            std: (P,), likewise; not negative.
            names: see ``Samples.from_vectors``.
            input_shape: see ``Posterior``.
            domain: see ``Posterior``.

        Raises:
            InvalidInput: the vectors have another length, or a name is unknown.
        """
        network = as_network(net, input_shape)
        given = {
            what: pick(parameters_from_vectors(network, as_tensor(vector, what)[None], names, what), 0)
            for what, vector in (("mean", mean), ("std", std))
        }
        fixed = {name: torch.zeros_like(p) for name, p in network.params.items()}
        mean, std = {**network.params, **given["mean"]}, {**fixed, **given["std"]}
        return DiagonalGaussian(network, mean, std, domain=domain)

    @property
    def holds(self) -> str:
        """See the base class."""
        return "an independent normal distribution for each weight" + self._precision_in_words

    @property
    def _precision_in_words(self) -> str:
        return ", deviations in float16" if next(iter(self.std.values())).dtype == COMPACT else ""

    def sample(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw mean + std * N(0, 1), on the CPU so that a seed means the same everywhere."""
        drawn = {}
        for name, mean in self.mean.items():
            noise = torch.randn((samples, *mean.shape), generator=generator, dtype=mean.dtype)
            drawn[name] = noise.to(mean.device).mul_(self.std[name].to(mean.dtype)).add_(mean)
        return self._with_buffers(drawn)

    def center(self) -> Point:
        """Return the network of the mean weights; after ``fit``, with batch norm statistics of its own."""
        network = self.network.with_all() if self.graph.fitted else self.network
        return Point(network, {**network.params, **self.mean}, metadata=of_center(self.metadata))

    def compact(self, data: Any = None) -> Self:
        """Return the Gaussian of the same mean whose deviations are rounded to float16, to be stored in less room.

        It is another posterior, if by little: other samples from the same seed, other digests. Certify what ``compact``
        returned; saved and loaded it has the same predictors to the bit. Its metadata say ``"deviations": "float16"``.

        Args:
            data: training inputs, as in ``predictor``. Needed where this posterior keeps batch norm statistics of
                samples: those of the rounded Gaussian's samples are found from them, for the same seeds.

        Raises:
            InvalidInput: statistics are kept and there are no data, or a deviation is beyond float16.
        """
        if self.statistics and data is None:
            raise InvalidInput(
                "the posterior keeps batch norm statistics of its samples, and the compact posterior's samples are "
                "others. Pass the training inputs to find theirs: compact(data=x_train)."
            )
        tensors = {
            key: tensor if key.startswith("mean:") else _rounded(tensor, key) for key, tensor in self.tensors().items()
        }
        metadata = {**self.metadata, "deviations": str(COMPACT).removeprefix("torch.")}
        small = self.from_tensors(Network(self.graph, {}, self.buffers), tensors, metadata)
        small.prior_variances = dict(self.prior_variances)
        for seed, kept in self.statistics.items():
            small.keep_statistics(data, count(kept), seed)
        return small

    def tensors(self) -> dict[str, Tensor]:
        """See the base class."""
        means = {f"mean:{name}": tensor for name, tensor in self.mean.items()}
        return {**means, **{f"std:{name}": tensor for name, tensor in self.std.items()}}

    @classmethod
    def from_tensors(cls, network: Network, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Self:
        """See the base class."""
        mean, std = named_tensors("mean", network.graph, tensors), named_tensors("std", network.graph, tensors)
        return cls(network, mean, std, metadata=metadata)


class LowRankGaussian(DiagonalGaussian):
    """A Gaussian with a diagonal and a low-rank part: w = mean + std * ε + sum_k factors_k ξ_k, with ε, ξ ~ N(0, 1).

    Args:
        net: the network.
        mean: by name.
        std: of the diagonal part, by name.
        factors: by name, each (K, ...): columns of a factor of the low-rank covariance.
        input_shape: see ``Posterior``.
        metadata: see ``Posterior``.
        domain: see ``Posterior``.
    """

    def __init__(
        self,
        net: nn.Module | Network,
        mean: Params,
        std: Params,
        factors: Params,
        input_shape: Sequence[int] | None = None,
        metadata: Mapping[str, Any] | None = None,
        domain: Domain = None,
    ):
        super().__init__(net, mean, std, input_shape, metadata, domain)
        factors = stacked_parameters_of(self.network, factors, "factors")
        self.factors = {name: factors[name].detach().clone() for name in self.graph.parameters}

    @property
    def holds(self) -> str:
        """See the base class."""
        return f"a normal distribution of rank {count(self.factors)} plus a diagonal" + self._precision_in_words

    def sample(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the diagonal part, and one ξ for each factor and sample, shared by all parameters."""
        drawn = super().sample(samples, generator)
        rank = count(self.factors)
        shared = torch.randn((samples, rank), generator=generator, dtype=torch.float64)
        for name, factor in self.factors.items():
            mean = self.mean[name]
            weights = shared.to(mean).view(samples, rank, *[1] * mean.dim())
            # One factor after another, each product and sum rounded by itself: a product of matrices would round
            # differently on every device, and the same seed give other samples.
            for k in range(rank):
                drawn[name] += weights[:, k] * factor[k].to(mean.dtype)
        return drawn

    def tensors(self) -> dict[str, Tensor]:
        """See the base class."""
        return {**super().tensors(), **{f"factors:{name}": tensor for name, tensor in self.factors.items()}}

    @classmethod
    def from_tensors(cls, network: Network, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Self:
        """See the base class."""
        mean, std = named_tensors("mean", network.graph, tensors), named_tensors("std", network.graph, tensors)
        return cls(network, mean, std, named_tensors("factors", network.graph, tensors), metadata=metadata)


def _rounded(deviations: Tensor, name: str) -> Tensor:
    """Round what surrounds a mean; a value that is too large would become infinite, and is refused."""
    rounded = deviations.to(COMPACT)
    if not bool(torch.isfinite(rounded).all()):
        raise InvalidInput(
            f"{name!r} holds deviations beyond {torch.finfo(COMPACT).max:g}, the largest number of float16. A "
            "posterior that wide predicts nothing; it has probably diverged."
        )
    return rounded
