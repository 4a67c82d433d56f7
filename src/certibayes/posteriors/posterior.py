"""Posteriors: what inference returns. A posterior samples parameters, makes predictors, and is saved and loaded."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from certibayes._version import __version__
from certibayes.errors import CertibayesError, CorruptFile, InvalidInput, RunExists
from certibayes.networks import Graph, Network, trace
from certibayes.networks.batch_norm import statistics_depend_on
from certibayes.networks.dropout import require_dropout_off
from certibayes.posteriors._metadata import ORIGIN
from certibayes.posteriors._statistics import sample_statistics, training_inputs
from certibayes.posteriors._words import inference_in_words, prior_in_words
from certibayes.prediction import Predictor, RegressionPredictor, domain_of_all
from certibayes.prediction.words import domain_in_words, in_lines, network_in_words
from certibayes.regions import Domain, domain_to_json
from certibayes.support.checks import whole_number
from certibayes.support.devices import find_device
from certibayes.support.files import read_tensors, write_tensors
from certibayes.support.names import unknown_name
from certibayes.support.seeds import derived_seed
from certibayes.support.stacks import count, first, joined

FILE_NAME = "posterior.safetensors"

SAMPLES = 35
"""Weight samples of a predictor, unless another number is asked for."""

BUFFER = "buffer"
"""In a file, ``buffer:NAME`` are the tensors of the network that are not inferred."""

STATISTICS = "statistics"
"""In a file, ``statistics:SEED:NAME`` are the batch norm statistics of the samples drawn from that seed."""

TASKS = ("classification", "regression")

PRIOR = "prior"
"""In a file, ``prior:NAME`` are the learned variances of a parameter's prior."""


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
        statistics: batch norm statistics of the first samples of a predictor, by seed and name, each (S, channels);
            see ``keep_statistics``.
        prior_variances: of a prior that was learned, by parameter, with length 1 in dimensions along which all are
            equal; empty where the prior was given.
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
            raise InvalidInput(
                "the network has no parameters, so there is nothing to be uncertain about. If it holds its weights as "
                "buffers or plain tensors, make them nn.Parameter."
            )
        self.network = network
        self.graph: Graph = network.graph
        self.buffers: dict[str, Tensor] = dict(network.buffers)
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.statistics: dict[int, dict[str, Tensor]] = {}
        self.prior_variances: dict[str, Tensor] = {}
        if domain is not None:
            self.metadata["domain"] = domain_to_json(domain_of_all(domain))

    def __repr__(self) -> str:
        """Say what is held, of which network, and how it came about."""
        lines = {"network": network_in_words(self.graph), "weights": self._weights_in_words()}
        if ORIGIN in self.metadata:
            lines[ORIGIN] = str(self.metadata[ORIGIN])
        if "algorithm" in self.metadata:
            lines["inference"] = inference_in_words(self.metadata)
        if self.prior_variances:
            lines["prior"] = self.prior_in_words
        lines["domain"] = domain_in_words(self.domain)
        return in_lines(f"{type(self).__name__}: {self.holds}", lines)

    @property
    def domain(self) -> Domain:
        """Smallest and largest value of an input; None where no limit is known."""
        return domain_of_all(self.metadata.get("domain"))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of the table that it was trained on, in order; none where inputs have no names."""
        return tuple(self.metadata.get("features", ()))

    @property
    def holds(self) -> str:
        """What is held, in a few words."""
        return "a distribution over weights"

    @property
    def prior_in_words(self) -> str:
        """What was learned of the prior, in a line; empty where it was given."""
        return prior_in_words(self.prior_variances, self.metadata) if self.prior_variances else ""

    def _weights_in_words(self) -> str:
        """Return the number of weights; the samples' own buffers and frozen weights are not counted."""
        one = self.sample(1, torch.Generator())
        number = sum(one[name].numel() for name in self.graph.parameters)
        frozen, fitted = len(self.metadata.get("frozen") or ()), len(self.graph.fitted)
        return (
            f"{number:,} in {len(self.graph.parameters)} tensors"
            + (f", {fitted} more not random" if fitted else "")
            + (f", {frozen} more frozen" if frozen else "")
        )

    @property
    def held(self) -> int | None:
        """Number of different samples there are, or None where any number can be drawn."""
        return None

    @property
    def task(self) -> str:
        """``"classification"`` or ``"regression"``; say so of networks that were trained elsewhere."""
        return str(self.metadata.get("task", "classification"))

    @task.setter
    def task(self, value: str) -> None:
        if value not in TASKS:
            raise InvalidInput(unknown_name("task", value, TASKS))
        self.metadata["task"] = value

    @property
    def statistics_vary(self) -> bool:
        """Whether batch norm statistics depend on the weights that are drawn, so that every sample needs its own."""
        return statistics_depend_on(self.graph, self._random)

    @property
    def _random(self) -> Sequence[str]:
        """Names of the parameters that differ from sample to sample, while buffers do not come along."""
        return self.graph.parameters

    def sample(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw parameters, each of shape (samples, ...), buffers included.

        The buffers are those of the posterior. Where ``statistics_vary``, batch norm statistics are not those of the
        weights that were drawn; ``predictor`` has the ones that are.
        """
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that must be stored, by name."""
        raise NotImplementedError

    @classmethod
    def from_tensors(cls, network: Network, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Self:
        """Rebuild from ``tensors()``."""
        raise NotImplementedError

    def predictor(
        self, samples: int | None = SAMPLES, seed: int = 0, device: str | torch.device | None = None, data: Any = None
    ) -> Predictor:
        """Fix ``samples`` weight samples, drawn from ``seed``, as a module that predicts.

        Args:
            samples: how many.
            seed: of the samples.
            device: where the predictor is to be; by default where the posterior is.
            data: training inputs, for a network with batch norm whose weights are random: statistics depend on the
                weights. Not needed for samples whose statistics are kept: after ``fit`` the first 35 of seed 0. Those
                are taken as they are, whatever the data. Inputs (N, ...), a pair (inputs, targets), or what
                ``certibayes.data.load`` returned.

        Raises:
            InvalidInput: batch norm statistics are needed and not kept, and there are no data.
        """
        samples = whole_number(SAMPLES if samples is None else samples, "samples", smallest=1)
        seed = whole_number(seed, "seed")
        drawn = self._drawn(samples, seed)
        if self.statistics_vary:
            drawn = {**drawn, **self._statistics(drawn, seed, data)}
        kind = RegressionPredictor if self.task == "regression" else Predictor
        predictor = kind(self.graph, drawn, self.domain)
        predictor.features = self.features
        return predictor if device is None else predictor.to(find_device(device))

    def keep_statistics(self, data: Any, samples: int = SAMPLES, seed: int = 0) -> None:
        """Find the batch norm statistics of a predictor's samples, and keep them: ``save`` stores them too.

        Nothing is to be kept where statistics do not depend on what is drawn; see ``statistics_vary``.

        Args:
            data: training inputs, as in ``predictor``.
            samples: how many; predictors of fewer samples are then served as well.
            seed: of the samples.
        """
        samples = whole_number(samples, "samples", smallest=1)
        seed = whole_number(seed, "seed")
        if self.statistics_vary:
            inputs = training_inputs(data, self.graph)
            self.statistics[seed] = sample_statistics(self.graph, self._drawn(samples, seed), inputs)

    def _drawn(self, samples: int, seed: int) -> dict[str, Tensor]:
        """Draw the samples of a predictor."""
        generator = torch.Generator().manual_seed(derived_seed(seed, "predictor"))
        if not self.statistics_vary:
            return self.sample(samples, generator)
        # One after another, so that a seed's first samples are the same however many are drawn, and their statistics.
        return joined([self.sample(1, generator) for _ in range(samples)])

    def _statistics(self, drawn: dict[str, Tensor], seed: int, data: Any) -> dict[str, Tensor]:
        """Return the batch norm statistics of samples drawn from a seed: kept ones, or else those of the data."""
        kept, samples = self.statistics.get(seed, {}), count(drawn)
        if kept and count(kept) >= samples:
            return first(kept, samples)
        if data is None:
            known = ", ".join(f"{count(own)} of seed {number}" for number, own in self.statistics.items()) or "none"
            raise InvalidInput(
                f"the network has batch norm, whose statistics depend on the weights that are drawn, and those of "
                f"{samples} samples of seed {seed} are not kept (kept: {known}). Pass the training inputs: "
                f"predictor(samples={samples}, seed={seed}, data=x_train); or keep them once, before save: "
                f"posterior.keep_statistics(x_train, samples={samples}, seed={seed})."
            )
        return sample_statistics(self.graph, drawn, training_inputs(data, self.graph))

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
        write_tensors(file, "posterior", self.stored(), record)
        return file

    def stored(self) -> dict[str, Tensor]:
        """Return every tensor of a file: the distribution's own, buffers, kept statistics and learned variances."""
        buffers = {f"{BUFFER}:{name}": tensor for name, tensor in self.buffers.items()}
        statistics = {
            f"{STATISTICS}:{seed}:{name}": tensor
            for seed, kept in self.statistics.items()
            for name, tensor in kept.items()
        }
        prior = {f"{PRIOR}:{name}": tensor for name, tensor in self.prior_variances.items()}
        return {**self.tensors(), **buffers, **statistics, **prior}

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
        kind = known_kind(record["posterior"])
        posterior = restored(kind, Graph.from_json(record["graph"]), tensors, dict(record.get("metadata", {})))
    except CertibayesError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CorruptFile(f"the record in {file} is incomplete ({error!r}).") from error
    posterior.metadata.setdefault("versions", record.get("versions", {}))
    return posterior


def known_kind(name: str) -> type[Posterior]:
    """Return the class of posteriors that a file names."""
    if name not in Posterior.kinds:
        raise CorruptFile(f"the file holds a posterior of kind {name!r}, which this version does not know.")
    return Posterior.kinds[name]


def restored(kind: type[Posterior], graph: Graph, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Posterior:
    """Make a posterior of what ``stored`` returned.

    Args:
        kind: its class.
        graph: the network.
        tensors: by name; they are taken out.
        metadata: see ``Posterior``.
    """
    buffers = {name: tensors.pop(f"{BUFFER}:{name}") for name in graph.buffers}
    statistics = _kept_statistics(tensors)
    prior = {key: tensors.pop(key) for key in list(tensors) if key.startswith(f"{PRIOR}:")}
    posterior = kind.from_tensors(Network(graph, {}, buffers), tensors, metadata)
    posterior.statistics = statistics
    posterior.prior_variances = {key.removeprefix(f"{PRIOR}:"): tensor for key, tensor in prior.items()}
    return posterior


def _kept_statistics(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Take the statistics of samples out of a file's tensors, by seed and name."""
    kept: dict[int, dict[str, Tensor]] = {}
    for key in [key for key in tensors if key.startswith(f"{STATISTICS}:")]:
        _, seed, name = key.split(":", 2)
        kept.setdefault(int(seed), {})[name] = tensors.pop(key)
    return kept


def as_network(net: nn.Module | Network, input_shape: Sequence[int] | None = None) -> Network:
    """Trace a module whose dropout is switched off, unless it is traced already."""
    if isinstance(net, Network):
        return net
    network = trace(net, example_of(input_shape))
    require_dropout_off(net)
    return network


def example_of(input_shape: Sequence[int] | None) -> Tensor | None:
    """Return an input (1, ...) of the shape that was given, where one was."""
    return None if input_shape is None else torch.full((1, *input_shape), 0.5)
