"""A single network as a posterior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from certibayes.networks import Network, Params
from certibayes.posteriors._parameters import named_tensors, parameters_of
from certibayes.posteriors.posterior import Posterior, as_network
from certibayes.prediction import Predictor
from certibayes.regions import Domain


class Point(Posterior):
    """A single network: all mass on one set of parameters.

    Args:
        net: the network; its own parameters are taken unless ``params`` is given.
        params: by name.
        input_shape: see ``Posterior``.
        metadata: see ``Posterior``.
        domain: see ``Posterior``.

    Attributes:
        params: by name.
        network: the network with these parameters, from which ``fit`` can go on: ``fit(point.network, ...)``.
    """

    independent = False

    def __init__(
        self,
        net: nn.Module | Network,
        params: Params | None = None,
        input_shape: Sequence[int] | None = None,
        metadata: Mapping[str, Any] | None = None,
        domain: Domain = None,
    ):
        network = as_network(net, input_shape)
        super().__init__(network, metadata=metadata, domain=domain)
        chosen = parameters_of(network, network.params if params is None else params, "params")
        self.params = {name: chosen[name].detach().clone() for name in self.graph.parameters}
        self.network = network._replace(params={**network.params, **self.params})

    @property
    def held(self) -> int:
        """See the base class."""
        return 1

    @property
    def holds(self) -> str:
        """See the base class."""
        return "one network"

    def sample(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Repeat the one network."""
        return self._with_buffers({name: p.expand(samples, *p.shape) for name, p in self.params.items()})

    @property
    def _random(self) -> tuple[str, ...]:
        """See the base class: none."""
        return ()

    def predictor(
        self, samples: int | None = 1, seed: int = 0, device: str | torch.device | None = None, data: Any = None
    ) -> Predictor:
        """Return the network as a predictor; more samples of one point would be the same network again."""
        return super().predictor(1, seed, device, data)

    def tensors(self) -> dict[str, Tensor]:
        """See the base class."""
        return {f"params:{name}": tensor for name, tensor in self.params.items()}

    @classmethod
    def from_tensors(cls, network: Network, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Self:
        """See the base class."""
        return cls(network, named_tensors("params", network.graph, tensors), metadata=metadata)
