"""A finite set of weight samples as a posterior."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from certibayes.errors import InvalidInput
from certibayes.networks import Network, Params
from certibayes.networks.dropout import with_masks
from certibayes.posteriors._alike import require_alike
from certibayes.posteriors._metadata import JOINED, ORIGIN, of_all
from certibayes.posteriors._parameters import stacked_parameters_of
from certibayes.posteriors._state_dicts import LoadedModule, module_from
from certibayes.posteriors._vectors import parameters_from_vectors
from certibayes.posteriors.posterior import SAMPLES, Posterior, as_network, example_of
from certibayes.prediction import Predictor
from certibayes.regions import Domain
from certibayes.support.checks import whole_number
from certibayes.support.seeds import derived_seed
from certibayes.support.stacks import count, joined, pick
from certibayes.support.stacks import stack as stack_samples


class Samples(Posterior):
    """A finite set of weight samples, such as a Markov chain or an ensemble.

    Args:
        net: the network.
        stacked: by name, each (S, ...); buffers may be among them. Or a list of S dictionaries, the parameters of one
            network each.
        input_shape: see ``Posterior``.
        metadata: see ``Posterior``.
        domain: see ``Posterior``.
    """

    independent = False

    def __init__(
        self,
        net: nn.Module | Network,
        stacked: Params | Sequence[Params],
        input_shape: Sequence[int] | None = None,
        metadata: Mapping[str, Any] | None = None,
        domain: Domain = None,
    ):
        super().__init__(net, input_shape, metadata, domain)
        given = stacked_parameters_of(self.network, stacked, "stacked")
        self.stacked = {name: tensor.detach().clone() for name, tensor in given.items()}

    @classmethod
    def from_modules(
        cls,
        modules: Iterable[nn.Module],
        input_shape: Sequence[int] | None = None,
        domain: Domain = None,
        weights: Sequence[int] | None = None,
    ) -> Self:
        """Collect networks of one architecture that were trained elsewhere; their buffers come along.

        Args:
            modules: at least one, in eval mode where they have dropout.
            input_shape: see ``Posterior``.
            domain: see ``Posterior``.
            weights: how often each network counts, as whole numbers such as [2, 1, 1]; all the same by default. A
                network that counts twice is held twice, so that every prediction and proof is about exactly this mean.

        Raises:
            InvalidInput: they differ in architecture, dropout is switched on (see ``from_dropout``), or the weights are
                not whole numbers, one for each.
        """
        if isinstance(modules, nn.Module) and not isinstance(modules, nn.ModuleList):
            raise InvalidInput("from_modules takes a list of modules; for a single one there is Point(net).")
        modules = list(modules)
        if not modules:
            raise InvalidInput("from_modules needs at least one module.")
        networks = [as_network(module, input_shape) for module in modules]
        if any(network.graph != networks[0].graph for network in networks):
            raise InvalidInput("the modules do not all have the same architecture.")
        each = [{**network.params, **network.buffers} for network in networks]
        if weights is not None:
            counts = _counts(weights, len(networks))
            each = [sample for sample, number in zip(each, counts, strict=True) for _ in range(number)]
        return cls(networks[0], stack_samples(each), domain=domain)

    @classmethod
    def from_state_dicts(
        cls,
        net: nn.Module,
        sources: Sequence[str | Path | Mapping[str, Any]],
        input_shape: Sequence[int] | None = None,
        domain: Domain = None,
        weights: Sequence[int] | None = None,
    ) -> Self:
        """Collect the weights of several trainings of one network, such as an ensemble, from files or dictionaries.

            cb.Samples.from_state_dicts(Net().eval(), ["seed0.pt", "seed1.pt", "seed2.safetensors"])

        Files of torch are read by ``torch.load(weights_only=True)`` alone, so that nothing in them is run. Checkpoints
        that hold the weights among other things are looked into, and parts such as ``module.`` or ``_orig_mod.`` that
        wrappers put into names are removed; ``metadata["origin"]``, which is printed too, says so.

        Args:
            net: the architecture, whose own weights do not matter; in eval mode where it has dropout.
            sources: for each network a file (``.safetensors``, ``.pt`` or ``.pth``), or what ``state_dict()`` returned.
                Weights take the precision of ``net``.
            input_shape: see ``Posterior``.
            domain: see ``Posterior``.
            weights: see ``from_modules``.

        Raises:
            InvalidInput: names or shapes are not those of the network, or reading a file would run code.
            CorruptFile: a file cannot be read.
            FileNotFoundError: there is no such file.
        """
        if not isinstance(net, nn.Module):
            raise InvalidInput(f"from_state_dicts takes the architecture as an nn.Module, got {type(net).__name__}.")
        if isinstance(sources, (str, Path, Mapping)):
            raise InvalidInput("from_state_dicts takes a list of files or dictionaries; a single one goes into [...].")
        loaded = [module_from(net, source, number) for number, source in enumerate(sources)]
        if not loaded:
            raise InvalidInput("from_state_dicts needs at least one file or dictionary.")
        made = cls.from_modules([one.module for one in loaded], input_shape, domain, weights)
        made.metadata[ORIGIN] = _origin_of(loaded)
        return made

    @classmethod
    def from_vectors(
        cls,
        net: nn.Module | Network,
        vectors: Any,
        names: Sequence[str] | None = None,
        input_shape: Sequence[int] | None = None,
        domain: Domain = None,
    ) -> Self:
        """Take samples that come as vectors, such as those of laplace-torch.

            cb.Samples.from_vectors(net, la.sample(35))
            cb.Samples.from_vectors(net, la.sample(35), names=["fc.weight", "fc.bias"])   # of the last layer alone

        Args:
            net: the network, in eval mode where it has dropout. Parameters that the vectors do not hold, and batch norm
                statistics, are its own.
            vectors: (S, P), in the order of ``torch.nn.utils.parameters_to_vector(net.parameters())``.
            names: of the parameters that the vectors hold, in their order; by default all, or all that are not frozen
                where the vectors have as many numbers as those.
            input_shape: see ``Posterior``.
            domain: see ``Posterior``.

        Raises:
            InvalidInput: the vectors have another length, or a name is unknown; the message says what would fit.
        """
        network = as_network(net, input_shape)
        given = parameters_from_vectors(network, vectors, names, "vectors")
        own = {name: p.expand(count(given), *p.shape) for name, p in network.params.items()}
        return cls(network, {**own, **given}, domain=domain)

    @classmethod
    def from_dropout(
        cls,
        net: nn.Module,
        samples: int = SAMPLES,
        seed: int = 0,
        input_shape: Sequence[int] | None = None,
        domain: Domain = None,
    ) -> Self:
        """MC dropout as a posterior (Gal and Ghahramani, 2016): networks that differ in which values they drop.

        Each sample is the trained network with dropout masks of its own, drawn once: the factors m / (1 - p), with m
        from a Bernoulli distribution of mean 1 - p, one for each value that ``Dropout`` sees and one for each channel
        that ``Dropout1d`` and ``Dropout2d`` see. They are buffers of the sample, so that the same masks predict, are
        attacked and are certified; every input meets the same ones, and another input does not bring other masks.

        Args:
            net: a trained network with dropout, as layers or as functions, in either mode; all else runs as in eval
                mode.
            samples: how many sets of masks.
            seed: of the masks; the first ones are the same however many are drawn.
            input_shape: see ``Posterior``.
            domain: see ``Posterior``.

        Raises:
            InvalidInput: the network has no dropout.
            UnsupportedLayer: a layer has no entry; see ``certibayes.supports``.
        """
        samples = whole_number(samples, "samples", smallest=1)
        generator = torch.Generator().manual_seed(derived_seed(whole_number(seed, "seed"), "dropout"))
        network, masks = with_masks(net, example_of(input_shape))
        drawn = [
            {mask.name: mask.draw(generator).to(network.buffers[mask.name]) for mask in masks} for _ in range(samples)
        ]
        own = {**network.params, **network.buffers}
        stacked = {name: tensor.expand(samples, *tensor.shape) for name, tensor in own.items()} | stack_samples(drawn)
        origin = f"MC dropout, masks drawn from seed {seed} in {len(masks)} place{'' if len(masks) == 1 else 's'}"
        return cls(network, stacked, metadata={ORIGIN: origin}, domain=domain)

    @classmethod
    def join(cls, *posteriors: Posterior, each: int | None = None, seed: int = 0, data: Any = None) -> Samples:
        """Put samples of several posteriors of one architecture into one: MultiSWAG, or an ensemble of centers.

            cb.Samples.join(*swags, each=12)                          # 12 samples of each (Wilson and Izmailov, 2020)
            cb.Samples.join(*[swag.center() for swag in swags])       # their means, each with its own statistics

        The samples of a posterior are those of its own ``predictor(each, seed)``, in the order of the posteriors, each
        with the batch norm statistics of its own weights. All count the same in a prediction, so a posterior counts as
        often as it has samples.

        Args:
            posteriors: at least one.
            each: samples of each; by default all where there are finitely many, and 35 where any number can be drawn.
            seed: of the samples.
            data: training inputs, where batch norm statistics of these samples are not kept; see ``predictor``.

        Raises:
            InvalidInput: they differ in architecture, domain, task or precision; or statistics are needed and not kept.
        """
        require_alike(posteriors, "Samples.join(first, second)", "Samples.join(*posteriors)")
        predictors = [posterior.predictor(each, seed, data=data) for posterior in posteriors]
        device, kinds = predictors[0].device, {own.dtype for own in predictors}
        if len(kinds) > 1:
            raise InvalidInput(f"the posteriors differ in precision: {', '.join(map(str, kinds))}. Train them in one.")
        stacked = joined([{name: t.to(device) for name, t in own.samples.items()} for own in predictors])
        metadata = of_all([{"posterior": type(posterior).__name__, **posterior.metadata} for posterior in posteriors])
        return cls(posteriors[0].network, stacked, metadata=metadata)

    def __len__(self) -> int:
        """Return the number of samples held."""
        return count(self.stacked)

    @property
    def held(self) -> int:
        """See the base class."""
        return len(self)

    @property
    def holds(self) -> str:
        """See the base class."""
        chains = f" from {self.metadata['chains']} chains" if self.metadata.get("chains", 1) != 1 else ""
        several = f" of {len(self.metadata[JOINED])} posteriors" if JOINED in self.metadata else ""
        return f"{len(self)} sample{'' if len(self) == 1 else 's'}{chains}{several}"

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

    @property
    def _random(self) -> tuple[str, ...]:
        """See the base class: none, since samples come with their buffers."""
        return ()

    def predictor(
        self, samples: int | None = None, seed: int = 0, device: str | torch.device | None = None, data: Any = None
    ) -> Predictor:
        """Fix ``samples`` of the samples held, all of them by default, as a module that predicts."""
        return super().predictor(len(self) if samples is None else samples, seed, device, data)

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


def _counts(weights: Sequence[int], networks: int) -> list[int]:
    """Return how often each network counts."""
    if isinstance(weights, (str, Mapping)) or len(weights) != networks:
        raise InvalidInput(f"weights must be a list of {networks} whole numbers, one for each network.")
    try:
        return [whole_number(weight, "a weight", smallest=1) for weight in weights]
    except InvalidInput as error:
        raise InvalidInput(
            f"{error} Weights say how often a network counts, so that the mean is exact: for 0.5, 0.3 and 0.2 write "
            "[5, 3, 2]."
        ) from error


def _origin_of(loaded: Sequence[LoadedModule]) -> str:
    """Say where weights are from, and what was done to their names."""
    sources = {one.changes: [other.source for other in loaded if other.changes == one.changes] for one in loaded}
    return "; ".join(", ".join([*_some(names), *changes]) for changes, names in sources.items())


def _some(names: list[str]) -> list[str]:
    """Return names, of many the first and the last."""
    return names if len(names) <= 4 else [names[0], f"{len(names) - 2} more", names[-1]]
