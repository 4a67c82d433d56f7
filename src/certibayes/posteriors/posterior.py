"""Posteriors: what inference returns. A posterior samples parameters, makes predictors, and is saved and loaded."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from certibayes._version import __version__
from certibayes.errors import CorruptFile, InvalidInput, RunExists
from certibayes.networks import Graph, Network, Params, trace
from certibayes.networks.device import find_device
from certibayes.networks.samples import count, pick
from certibayes.networks.samples import stack as stack_samples
from certibayes.networks.seeds import derived_seed
from certibayes.posteriors.storage import read_tensors, write_tensors
from certibayes.prediction import Predictor, RegressionPredictor

FILE_NAME = "posterior.safetensors"


class Posterior:
    """A distribution over the parameters of a network.

    Args:
        net: a module, or what ``certibayes.networks.trace`` returned.
        input_shape: shape of one example, where a module does not tell it.
        metadata: how the posterior came about (algorithm, likelihood, prior, temperature, seed, ...).

    Attributes:
        graph: the network.
        buffers: tensors that are not inferred but belong to the network.
        metadata: see above; ``fit`` fills it in.
    """

    kinds: ClassVar[dict[str, type[Posterior]]] = {}
    independent = True
    """Whether samples are independent draws, as statistical certificates require."""

    def __init_subclass__(cls) -> None:
        """Remember the class by name, for ``load``."""
        Posterior.kinds[cls.__name__] = cls

    def __init__(
        self,
        net: nn.Module | Network,
        input_shape: Sequence[int] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ):
        network = as_network(net, input_shape)
        self.network = network
        self.graph: Graph = network.graph
        self.buffers: dict[str, Tensor] = dict(network.buffers)
        self.metadata: dict[str, Any] = dict(metadata or {})

    @property
    def task(self) -> str:
        """``"classification"`` or ``"regression"``."""
        return str(self.metadata.get("task", "classification"))

    def sample(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw parameters, each of shape (samples, ...), buffers included."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that must be stored, by name."""
        raise NotImplementedError

    @classmethod
    def from_tensors(cls, network: Network, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Self:
        """Rebuild from ``tensors()``."""
        raise NotImplementedError

    def predictor(self, samples: int | None = 35, seed: int = 0, device: str | torch.device | None = None) -> Predictor:
        """Fix ``samples`` weight samples, drawn from ``seed``, as a module that predicts."""
        samples = 35 if samples is None else samples
        if samples < 1:
            raise InvalidInput(f"a predictor needs at least one sample, got {samples}.")
        drawn = self.sample(samples, torch.Generator().manual_seed(derived_seed(seed, "predictor")))
        kind = RegressionPredictor if self.task == "regression" else Predictor
        predictor = kind(self.graph, drawn)
        return predictor if device is None else predictor.to(find_device(device))

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the posterior into the directory ``path`` and return the file.

        Raises:
            RunExists: the directory holds a posterior already and ``overwrite`` is false.
        """
        file = Path(path) / FILE_NAME
        if file.exists() and not overwrite:
            raise RunExists(f"{path} already holds a posterior. Choose another directory or pass overwrite=True.")
        record = {
            "posterior": type(self).__name__,
            "graph": self.graph.to_json(),
            "metadata": self.metadata,
            "versions": versions(),
        }
        buffers = {f"buffer:{name}": tensor for name, tensor in self.buffers.items()}
        write_tensors(file, "posterior", {**self.tensors(), **buffers}, record)
        return file

    def _with_buffers(self, samples: dict[str, Tensor]) -> dict[str, Tensor]:
        """Let every sample carry the buffers."""
        size = count(samples)
        expanded = {name: b.expand(size, *b.shape) for name, b in self.buffers.items() if name not in samples}
        return {**samples, **expanded}


def versions() -> dict[str, str]:
    """Return the versions that produced a file."""
    return {"certibayes": __version__, "torch": torch.__version__, "python": platform.python_version()}


def load(path: str | Path) -> Posterior:
    """Read a posterior that ``save`` wrote.

    Args:
        path: the directory, or the file in it.
    """
    path = Path(path)
    file = path if path.is_file() else path / FILE_NAME
    tensors, record = read_tensors(file, "posterior")
    try:
        kind, metadata = record["posterior"], dict(record.get("metadata", {}))
        if kind not in Posterior.kinds:
            raise CorruptFile(f"{file} holds a posterior of kind {kind!r}, which this version does not know.")
        graph = Graph.from_json(record["graph"])
        buffers = {name: tensors.pop(f"buffer:{name}") for name in graph.buffers}
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"the record in {file} is incomplete ({error!r}).") from error
    posterior = Posterior.kinds[kind].from_tensors(Network(graph, {}, buffers), tensors, metadata)
    posterior.metadata.setdefault("versions", record.get("versions", {}))
    return posterior


def as_network(net: nn.Module | Network, input_shape: Sequence[int] | None = None) -> Network:
    """Trace a module, unless it is traced already."""
    if isinstance(net, Network):
        return net
    return trace(net, None if input_shape is None else torch.full((1, *input_shape), 0.5))


def require_parameters(network: Network, params: Params, what: str, stacked: bool = False) -> None:
    """Raise unless ``params`` holds a tensor of the right shape for every parameter, and nothing else.

    With ``stacked``, all have one more leading dimension of the same size. A network read from a file
    carries no parameters of its own to compare with; its file has a checksum instead.
    """
    graph = network.graph
    missing = [name for name in graph.parameters if name not in params]
    extra = [name for name in params if name not in graph.parameters and name not in graph.buffers]
    if missing or extra:
        raise InvalidInput(
            f"{what} must hold the network's parameters by name. Missing: {missing or 'none'}; unknown: "
            f"{extra or 'none'}. Use dict(net.named_parameters())."
        )
    sizes = {params[name].shape[0] if params[name].dim() else -1 for name in params}
    if stacked and (len(sizes) != 1 or -1 in sizes or 0 in sizes):
        raise InvalidInput(f"{what} must have one leading dimension, the number of samples; found sizes {sizes}.")
    for name, own in network.params.items():
        shape = params[name].shape[1:] if stacked else params[name].shape
        if shape != own.shape:
            raise InvalidInput(f"{what}: {name!r} has shape {tuple(shape)}, but the network's is {tuple(own.shape)}.")


class Point(Posterior):
    """A single network: all mass on one set of parameters.

    Args:
        net: the network; its own parameters are taken unless ``params`` is given.
        params: by name.
        input_shape: see ``Posterior``.
        metadata: see ``Posterior``.
    """

    independent = False

    def __init__(
        self,
        net: nn.Module | Network,
        params: Params | None = None,
        input_shape: Sequence[int] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ):
        network = as_network(net, input_shape)
        super().__init__(network, metadata=metadata)
        chosen = network.params if params is None else params
        require_parameters(network, chosen, "params")
        self.params = {name: chosen[name].detach().clone() for name in self.graph.parameters}

    def sample(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Repeat the one network."""
        return self._with_buffers({name: p.expand(samples, *p.shape) for name, p in self.params.items()})

    def predictor(self, samples: int | None = 1, seed: int = 0, device: str | torch.device | None = None) -> Predictor:
        """Return the network as a predictor; more samples of one point would be the same network again."""
        return super().predictor(1, seed, device)

    def tensors(self) -> dict[str, Tensor]:
        """See the base class."""
        return {f"params:{name}": tensor for name, tensor in self.params.items()}

    @classmethod
    def from_tensors(cls, network: Network, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Self:
        """See the base class."""
        return cls(network, _named("params", network.graph, tensors), metadata=metadata)


class DiagonalGaussian(Posterior):
    """Independent normal distributions: N(mean, std²) for every parameter.

    Args:
        net: the network.
        mean: by name.
        std: by name; not negative.
        input_shape: see ``Posterior``.
        metadata: see ``Posterior``.
    """

    def __init__(
        self,
        net: nn.Module | Network,
        mean: Params,
        std: Params,
        input_shape: Sequence[int] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ):
        super().__init__(net, input_shape, metadata)
        require_parameters(self.network, mean, "mean")
        require_parameters(self.network, std, "std")
        for name in self.graph.parameters:
            if mean[name].shape != std[name].shape:
                raise InvalidInput(f"mean and std of {name!r} differ in shape.")
            if not bool((std[name] >= 0).all()):
                raise InvalidInput(f"the standard deviations of {name!r} are negative or NaN.")
        self.mean = {name: mean[name].detach().clone() for name in self.graph.parameters}
        self.std = {name: std[name].detach().clone() for name in self.graph.parameters}

    def sample(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw mean + std * N(0, 1), on the CPU so that a seed means the same everywhere."""
        drawn = {}
        for name, mean in self.mean.items():
            noise = torch.randn((samples, *mean.shape), generator=generator, dtype=mean.dtype)
            drawn[name] = noise.to(mean.device).mul_(self.std[name]).add_(mean)
        return self._with_buffers(drawn)

    def tensors(self) -> dict[str, Tensor]:
        """See the base class."""
        means = {f"mean:{name}": tensor for name, tensor in self.mean.items()}
        return {**means, **{f"std:{name}": tensor for name, tensor in self.std.items()}}

    @classmethod
    def from_tensors(cls, network: Network, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Self:
        """See the base class."""
        mean, std = _named("mean", network.graph, tensors), _named("std", network.graph, tensors)
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
    """

    def __init__(
        self,
        net: nn.Module | Network,
        mean: Params,
        std: Params,
        factors: Params,
        input_shape: Sequence[int] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ):
        super().__init__(net, mean, std, input_shape, metadata)
        require_parameters(self.network, factors, "factors", stacked=True)
        self.factors = {name: factors[name].detach().clone() for name in self.graph.parameters}

    def sample(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the diagonal part, and one ξ for each factor and sample, shared by all parameters."""
        drawn = super().sample(samples, generator)
        rank = count(self.factors)
        shared = torch.randn((samples, rank), generator=generator, dtype=torch.float64)
        for name, factor in self.factors.items():
            drawn[name] = drawn[name] + torch.tensordot(shared.to(factor), factor, dims=1)
        return drawn

    def tensors(self) -> dict[str, Tensor]:
        """See the base class."""
        return {**super().tensors(), **{f"factors:{name}": tensor for name, tensor in self.factors.items()}}

    @classmethod
    def from_tensors(cls, network: Network, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Self:
        """See the base class."""
        mean, std = _named("mean", network.graph, tensors), _named("std", network.graph, tensors)
        return cls(network, mean, std, _named("factors", network.graph, tensors), metadata=metadata)


class Samples(Posterior):
    """A finite set of weight samples, such as a Markov chain or an ensemble.

    Args:
        net: the network.
        stacked: by name, each (S, ...); buffers may be among them.
        input_shape: see ``Posterior``.
        metadata: see ``Posterior``.
    """

    independent = False

    def __init__(
        self,
        net: nn.Module | Network,
        stacked: Params,
        input_shape: Sequence[int] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ):
        super().__init__(net, input_shape, metadata)
        require_parameters(self.network, stacked, "stacked", stacked=True)
        self.stacked = {name: tensor.detach().clone() for name, tensor in stacked.items()}

    @classmethod
    def from_modules(cls, modules: Sequence[nn.Module], input_shape: Sequence[int] | None = None) -> Self:
        """Collect networks of one architecture that were trained elsewhere; their buffers come along."""
        if not modules:
            raise InvalidInput("from_modules needs at least one module.")
        networks = [as_network(module, input_shape) for module in modules]
        if any(network.graph != networks[0].graph for network in networks):
            raise InvalidInput("the modules do not all have the same architecture.")
        stacked = stack_samples([{**network.params, **network.buffers} for network in networks])
        return cls(networks[0], stacked)

    def __len__(self) -> int:
        """Return the number of samples held."""
        return count(self.stacked)

    def sample(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Pick ``samples`` different ones; all of them, in order, if that many are held."""
        if samples > len(self):
            raise InvalidInput(
                f"{samples} samples were asked for, but this posterior holds {len(self)}; ask for that many or fewer."
            )
        if samples == len(self):
            return self._with_buffers(dict(self.stacked))
        chosen = torch.randperm(len(self), generator=generator)[:samples].sort().values
        return self._with_buffers({name: tensor[chosen] for name, tensor in self.stacked.items()})

    def predictor(
        self, samples: int | None = None, seed: int = 0, device: str | torch.device | None = None
    ) -> Predictor:
        """Fix ``samples`` of the samples held, all of them by default, as a module that predicts."""
        return super().predictor(len(self) if samples is None else samples, seed, device)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return one sample's parameters."""
        return pick(self.stacked, index)

    def tensors(self) -> dict[str, Tensor]:
        """See the base class."""
        return {f"stacked:{name}": tensor for name, tensor in self.stacked.items()}

    @classmethod
    def from_tensors(cls, network: Network, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Self:
        """See the base class."""
        prefix = "stacked:"
        stacked = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        return cls(network, stacked, metadata=metadata)


def _named(prefix: str, graph: Graph, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    try:
        return {name: tensors[f"{prefix}:{name}"] for name in graph.parameters}
    except KeyError as error:
        raise CorruptFile(f"the posterior file lacks the tensor {error}.") from error
