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
from certibayes.networks import Graph, Network, trace
from certibayes.posteriors._words import inference_in_words
from certibayes.prediction import Predictor, RegressionPredictor, domain_of_all
from certibayes.prediction.words import domain_in_words, in_lines, network_in_words
from certibayes.regions import Domain, domain_to_json
from certibayes.support.checks import whole_number
from certibayes.support.devices import find_device
from certibayes.support.files import read_tensors, write_tensors
from certibayes.support.seeds import derived_seed
from certibayes.support.stacks import count

FILE_NAME = "posterior.safetensors"


class Posterior:
    """A distribution over the parameters of a network.

    Args:
        net: a module, or what ``certibayes.networks.trace`` returned.
        input_shape: shape of one example, where a module does not say it.
        metadata: how the posterior came about (algorithm, likelihood, prior, temperature, seed, ...).
        domain: smallest and largest value of an input, such as (0.0, 1.0); predictors hand it on to certificates and
            attacks. None where no limit is known. It is part of the metadata.

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
        domain: Domain = None,
    ):
        network = as_network(net, input_shape)
        if not network.graph.parameters:
            raise InvalidInput("the network has no parameters, so there is nothing to be uncertain about.")
        self.network = network
        self.graph: Graph = network.graph
        self.buffers: dict[str, Tensor] = dict(network.buffers)
        self.metadata: dict[str, Any] = dict(metadata or {})
        if domain is not None:
            self.metadata["domain"] = domain_to_json(domain_of_all(domain))

    def __repr__(self) -> str:
        """Say what is held, of which network, and how it came about."""
        lines = {"network": network_in_words(self.graph), "weights": self._weights_in_words()}
        if "algorithm" in self.metadata:
            lines["inference"] = inference_in_words(self.metadata)
        lines["domain"] = domain_in_words(self.domain)
        return in_lines(f"{type(self).__name__}: {self.holds}", lines)

    @property
    def domain(self) -> Domain:
        """Smallest and largest value of an input; None where no limit is known."""
        return domain_of_all(self.metadata.get("domain"))

    @property
    def holds(self) -> str:
        """What is held, in a few words."""
        return "a distribution over weights"

    def _weights_in_words(self) -> str:
        """Return the number of weights; the samples' own buffers and frozen weights are not counted."""
        one = self.sample(1, torch.Generator())
        number = sum(one[name].numel() for name in self.graph.parameters)
        frozen = len(self.metadata.get("frozen") or ())
        return f"{number:,} in {len(self.graph.parameters)} tensors" + (f", {frozen} more frozen" if frozen else "")

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
        samples = whole_number(35 if samples is None else samples, "samples", smallest=1)
        seed = whole_number(seed, "seed")
        drawn = self.sample(samples, torch.Generator().manual_seed(derived_seed(seed, "predictor")))
        kind = RegressionPredictor if self.task == "regression" else Predictor
        predictor = kind(self.graph, drawn, self.domain)
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
