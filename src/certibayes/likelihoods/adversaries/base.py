"""What an adversary is: the worst outputs of one network over a set of inputs, bounded or found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from torch import Tensor

from certibayes.bounds import Rounding
from certibayes.likelihoods._settings import short_repr
from certibayes.networks import Graph, Params
from certibayes.regions import InputRegion


class Model(NamedTuple):
    """A network with one weight sample: a function from inputs (B, ...) to outputs (B, outputs).

    Attributes:
        graph: the network.
        params: parameters and buffers of one weight sample.
    """

    graph: Graph
    params: Params

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs (B, outputs)."""
        return self.graph.evaluate(self.params, x)

    def detached(self) -> Model:
        """Return the same network with weights that are constants."""
        return Model(self.graph, {name: tensor.detach() for name, tensor in self.params.items()})


class Threat(NamedTuple):
    """What the adversary may do.

    Attributes:
        region: the inputs it can choose from, around B points; an l-infinity ball within the domain.
        starts: where an attack starts, in [-1, 1] of the ball's radius, (B, ...); None for the points themselves.
    """

    region: InputRegion
    starts: Tensor | None = None

    @property
    def start(self) -> Tensor:
        """The inputs (B, ...) from which an attack starts."""
        center = self.region.center
        return center if self.starts is None else center + self.region.radius * self.starts


@dataclass(frozen=True, repr=False)
class Adversary:
    """Base of all adversaries. Subclasses are frozen dataclasses of settings."""

    needs_starts = False

    @property
    def box_rounding(self) -> Rounding | None:
        """Arithmetic of the one box through which weights enter the worst outputs; None if they enter otherwise.

        The closed form of the curvature propagates that box itself.
        """
        return None

    def worst_logits(self, model: Model, threat: Threat, labels: Tensor) -> Tensor:
        """Return logits (B, C) whose softmax at the label bounds, or estimates, the worst case.

        Args:
            model: the network.
            threat: the inputs it is up against.
            labels: (B,).
        """
        raise NotImplementedError

    def extremes(self, model: Model, threat: Threat) -> tuple[Tensor, Tensor]:
        """Return smallest and largest outputs (B, outputs) over the region, output by output."""
        raise NotImplementedError

    def smoothed(self, tau: float) -> Adversary:
        """Return an adversary whose bounds depend smoothly on the weights, where there are any to smooth."""
        return self

    def describe(self) -> dict[str, Any]:
        """Return what goes into a posterior's metadata."""
        return {"name": type(self).__name__, **asdict(self)}

    def __repr__(self) -> str:
        """Return the settings that are not at their defaults."""
        return short_repr(self)
