"""A mixture of Gaussians: a posterior with several modes.

    q(w) = Σ_k π_k q_k(w),        q_k a Gaussian around a mode of its own (Wilson and Izmailov, 2020: multi-SWAG).

Every q_k comes from a run of its own, with a seed of its own. Networks of one mode have to agree for a certificate,
since boxes grow with every wide weight; networks of different modes need not, since each has its own boxes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from certibayes.errors import CorruptFile, InvalidInput
from certibayes.networks import Network
from certibayes.posteriors._alike import require_alike
from certibayes.posteriors._metadata import JOINED, of_all
from certibayes.posteriors.gaussian import DiagonalGaussian
from certibayes.posteriors.last_layer import LastLayerGaussian
from certibayes.posteriors.posterior import Posterior, known_kind, restored
from certibayes.posteriors.samples import Samples
from certibayes.support.seeds import derived_seed
from certibayes.support.stacks import count, joined, pick, stack

Gaussian = DiagonalGaussian | LastLayerGaussian
"""What a mixture is made of; a ``LowRankGaussian`` is a ``DiagonalGaussian`` with more to it."""

COMPONENT = "component"
"""In a file, ``component:K:NAME`` are the tensors of the Kth Gaussian."""


class GaussianMixture(Posterior):
    """A mixture of Gaussians over the weights of one network; ``GaussianMixture.of`` makes one.

        runs = [{"net": cb.networks.mlp(784, [512], 10, seed=seed), "seed": seed} for seed in range(5)]
        cb.GaussianMixture.of(*cb.fit_many(None, train, runs, algorithm="noisy-adam"))

    ``sample`` draws the component at random each time, so that samples are independent. ``predictor`` is stratified:
    sample i comes from the component that is furthest behind its weight, the first of them where several are. So 35
    samples of five equal components are 7 of each, in turn; where π_k S are whole numbers, component k has just as
    many; and a seed's first samples are the same however many are drawn.

    Args:
        components: Gaussians of one architecture, task, domain and precision: ``DiagonalGaussian``,
            ``LowRankGaussian`` or ``LastLayerGaussian``.
        weights: π, positive, one for each; they are divided by their sum. All equal by default.
        metadata: see ``Posterior``; by default what the components have in common and, under ``"joined"``, the rest.

    Attributes:
        components: the Gaussians, each with its own buffers, metadata and learned prior.
        weights: π, (K,), float64.
    """

    def __init__(
        self,
        components: Sequence[Gaussian],
        weights: Sequence[float] | Tensor | None = None,
        metadata: Mapping[str, Any] | None = None,
    ):
        call = "GaussianMixture.of(first, second)"
        require_alike(components, call, "GaussianMixture.of(*posteriors)")
        _require_gaussians(components)
        first = components[0]
        if metadata is None:
            metadata = of_all([{"posterior": type(each).__name__, **each.metadata} for each in components])
        super().__init__(first.network, metadata=metadata, domain=first.domain)
        self.buffers = dict(first.buffers)
        self.components = tuple(components)
        self.weights = _weights(weights, len(components))
        self.statistics = self._components_statistics()

    @classmethod
    def of(cls, *posteriors: Gaussian, weights: Sequence[float] | Tensor | None = None) -> Self:
        """Mix Gaussians of one architecture, whichever methods they come from.

        Batch norm statistics that all of them keep, as after ``fit``, are those of the mixture's samples too.

        Args:
            posteriors: the components.
            weights: see the class.

        Raises:
            InvalidInput: one is no Gaussian, they differ in architecture, task, domain or precision, or the weights are
                not positive numbers, one for each.
        """
        return cls(posteriors, weights)

    def __len__(self) -> int:
        """Return the number of components."""
        return len(self.components)

    @property
    def holds(self) -> str:
        """See the base class."""
        equal = bool((self.weights == self.weights[0]).all())
        shares = "" if equal else f" with weights {', '.join(f'{weight:.3g}' for weight in self.weights.tolist())}"
        parts = list(dict.fromkeys(each.holds for each in self.components))
        return f"a mixture of {len(self)} Gaussians{shares}, each {' or '.join(parts)}"

    @property
    def _random(self) -> tuple[str, ...]:
        """See the base class."""
        varying = {name for each in self.components for name in each._random}
        return tuple(name for name in self.graph.parameters if name in varying)

    def turns(self, samples: int) -> list[int]:
        """Return the component of each of a predictor's samples.

        Sample i + 1 goes to a component with the largest π_k (i + 1) - n_k, n_k samples having gone to it before. What
        is left to give is 1 in all, so the largest is positive and n_k < π_k S + 1 in the end.
        """
        weights, given, turns = self.weights.tolist(), [0] * len(self), []
        for number in range(1, samples + 1):
            chosen = max(range(len(self)), key=lambda k: weights[k] * number - given[k])
            given[chosen] += 1
            turns.append(chosen)
        return turns

    def sample(self, samples: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw a component for each sample, and then from it; each comes with the buffers of its component."""
        chosen = torch.multinomial(self.weights.cpu(), samples, replacement=True, generator=generator)
        return self._one_by_one(chosen.tolist(), generator)

    def _drawn(self, samples: int, seed: int) -> dict[str, Tensor]:
        """See the base class; stratified."""
        return self._one_by_one(self.turns(samples), torch.Generator().manual_seed(derived_seed(seed, "predictor")))

    def _one_by_one(self, chosen: Sequence[int], generator: torch.Generator) -> dict[str, Tensor]:
        drawn = [self.components[k].sample(1, generator) for k in chosen]
        device = next(iter(self.components[0].mean.values())).device
        return joined([{name: tensor.to(device) for name, tensor in one.items()} for one in drawn])

    def _components_statistics(self) -> dict[int, dict[str, Tensor]]:
        """Return the batch norm statistics that are known from the components, by seed and name.

        Where all components take the same random numbers for a sample, sample i of a mixture's predictor is sample i of
        its component's own, and so are its statistics.
        """
        if not self.statistics_vary or len({_random_numbers(each) for each in self.components}) > 1:
            return {}
        known = set.intersection(*(set(each.statistics) for each in self.components))
        found = {}
        for seed in sorted(known):
            kept = [each.statistics[seed] for each in self.components]
            turns = self.turns(min(map(count, kept)))
            found[seed] = stack([pick(kept[k], number) for number, k in enumerate(turns)])
        return found

    def center(self) -> Samples:
        """Return the networks of the components' means, an ensemble: the mean of several modes is none of them.

        Raises:
            InvalidInput: the weights differ, and samples all count the same.
        """
        if not bool((self.weights == self.weights[0]).all()):
            raise InvalidInput(
                "the components have different weights, and the networks of an ensemble all count the same. Take "
                "some of them: Samples.join(*(each.center() for each in mixture.components))."
            )
        return Samples.join(*(each.center() for each in self.components))

    def compact(self, data: Any = None) -> Self:
        """Return the mixture of the components' ``compact``.

        Args:
            data: training inputs, as in ``predictor``; needed where batch norm statistics of samples are kept.

        Raises:
            InvalidInput: a component has no compact form, or statistics are kept and there are no data.
        """
        if not all(isinstance(each, DiagonalGaussian) for each in self.components):
            raise InvalidInput("a LastLayerGaussian has no compact form, so that the mixture has none either.")
        small = type(self)(
            [each.compact(data) for each in self.components if isinstance(each, DiagonalGaussian)], self.weights
        )
        for seed, kept in self.statistics.items():
            if seed not in small.statistics or count(small.statistics[seed]) < count(kept):
                small.keep_statistics(data, count(kept), seed)
        return small

    def tensors(self) -> dict[str, Tensor]:
        """See the base class."""
        own = {
            f"{COMPONENT}:{number}:{name}": tensor
            for number, each in enumerate(self.components)
            for name, tensor in each.stored().items()
        }
        return {"weights": self.weights, **own}

    @classmethod
    def from_tensors(cls, network: Network, tensors: dict[str, Tensor], metadata: Mapping[str, Any]) -> Self:
        """See the base class."""
        if "weights" not in tensors or len(metadata.get(JOINED, ())) != len(tensors["weights"]):
            raise CorruptFile("the posterior file lacks the weights of the mixture, or what is known of its parts.")
        common = {name: value for name, value in metadata.items() if name not in (JOINED, "versions")}
        components = []
        for number, record in enumerate(metadata[JOINED]):
            prefix = f"{COMPONENT}:{number}:"
            own = {key.removeprefix(prefix): tensors.pop(key) for key in list(tensors) if key.startswith(prefix)}
            known = {name: value for name, value in {**common, **record}.items() if name != "posterior"}
            components.append(restored(known_kind(record["posterior"]), network.graph, own, known))
        return cls(components, tensors["weights"], metadata)  # type: ignore[arg-type]


def _random_numbers(component: Gaussian) -> tuple[Any, ...]:
    """Return what says how many random numbers a sample takes, and of which kind."""
    shapes = ((name, tuple(tensor.shape)) for name, tensor in component.tensors().items())
    return type(component).__name__, *shapes


def _require_gaussians(components: Sequence[Any]) -> None:
    for number, each in enumerate(components):
        if isinstance(each, GaussianMixture):
            raise InvalidInput(
                f"posterior {number} is a mixture already; mix its parts with the others: "
                "GaussianMixture.of(*mixture.components, another)."
            )
        if not isinstance(each, DiagonalGaussian | LastLayerGaussian):
            raise InvalidInput(
                f"posterior {number} is a {type(each).__name__}, and a mixture is made of Gaussians: of VOGN, "
                "NoisyAdam, BBB, IVON, SWAG or Laplace. Samples.join puts together samples of posteriors of any kind."
            )
    kinds = {next(iter(each.mean.values())).dtype for each in components}
    if len(kinds) > 1:
        raise InvalidInput(f"the posteriors differ in precision: {', '.join(map(str, kinds))}. Train them in one.")


def _weights(given: Any, number: int) -> Tensor:
    """Return weights that sum to 1, (K,)."""
    if given is None:
        return torch.full((number,), 1.0 / number, dtype=torch.float64)
    try:
        weights = torch.as_tensor(given).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"weights are numbers, one for each posterior; got {given!r}.") from error
    if weights.shape != (number,) or not bool((torch.isfinite(weights) & (weights > 0)).all()):
        raise InvalidInput(
            f"weights are positive numbers, one for each of {number} posteriors; got {weights.tolist()}."
        )
    total = float(weights.sum())
    # Not again what sums to 1 but for rounding, so that a file gives back what was stored.
    return weights.clone() if math.isclose(total, 1.0, abs_tol=1e-12) else weights / total
