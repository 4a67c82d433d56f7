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
from certibayes.prediction import Predictor, RegressionPredictor
from certibayes.support.devices import find_device
from certibayes.support.files import read_tensors, write_tensors
from certibayes.support.seeds import derived_seed
from certibayes.support.stacks import count

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
        if not network.graph.parameters:
            raise InvalidInput("the network has no parameters, so there is nothing to be uncertain about.")
        self.network = network
        self.graph: Graph = network.graph
        self.buffers: dict[str, Tensor] = dict(network.buffers)
        self.metadata: dict[str, Any] = dict(metadata or {})

    def __repr__(self) -> str:
        """Say what is inferred, what was frozen, and by what algorithm."""
        parts = [f"{len(self.graph.parameters)} parameters"]
        parts += [f"{len(self.metadata['frozen'])} frozen"] if self.metadata.get("frozen") else []
        parts += [f"by {self.metadata['algorithm']['name']}"] if "algorithm" in self.metadata else []
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def held(self) -> int | None:
        """Number of different samples there are, or None where any number can be drawn."""
        return None

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


def named_tensors(prefix: str, graph: Graph, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pick the tensors stored as ``prefix:name``, one for each parameter."""
    try:
        return {name: tensors[f"{prefix}:{name}"] for name in graph.parameters}
    except KeyError as error:
        raise CorruptFile(f"the posterior file lacks the tensor {error}.") from error
