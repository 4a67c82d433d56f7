"""What an adversary is: the worst outputs of one network over a set of inputs, bounded or found."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from torch import Tensor

from certibayes.bounds import Box, Rounding
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

    def scaled(self, factor: float) -> Threat:
        """Return the same threat with ``factor`` times the radius."""
        region = self.region
        return self._replace(region=InputRegion(region.center, factor * region.radius, domain=region.domain))


@dataclass(frozen=True, repr=False)
class Adversary:
    """Base of all adversaries. Subclasses are frozen dataclasses of settings.

    ``needs_starts`` tells whether an attack is made, which starts at random; ``attacks_alone`` whether the worst logits
    are the network's own at the inputs that it finds, ``attacked``; ``for_regression`` whether there are ``extremes``.
    """

    needs_starts = False
    attacks_alone = False
    for_regression = True

    @property
    def is_bound(self) -> bool:
        """Whether no input of the region can be worse than the answer, so that the likelihood is a lower bound."""
        return False

    @property
    def uses_bounds(self) -> bool:
        """Whether the answer depends on bounds, which get looser the more uncertain the weights are."""
        return self.is_bound

    @property
    def box_rounding(self) -> Rounding | None:
        """Arithmetic of the one box through which weights enter the worst outputs; None if they enter otherwise.

        The closed form of the curvature propagates that box itself.
        """
        return None

    @property
    def margin_rounding(self) -> Rounding | None:
        """The same where the last layer is folded into class margins, so that the box goes up to its inputs."""
        return None

    def worst_logits(self, model: Model, threat: Threat, labels: Tensor) -> Tensor:
        """Return logits (B, C) whose softmax at the label bounds, or estimates, the worst case.

        Args:
            model: the network.
            threat: the inputs it is up against.
            labels: (B,).
        """
        raise NotImplementedError

    def worst_outputs(self, model: Model, threat: Threat, labels: Tensor) -> Tensor:
        """Return what the likelihood takes: logits (B, C) as ``worst_logits`` has them.

        An adversary whose worst case is no softmax of logits returns the label's log-probabilities (B,) instead.

        Args:
            model: the network.
            threat: the inputs it is up against.
            labels: (B,).
        """
        return self.worst_logits(model, threat, labels)

    def box(self, model: Model, threat: Threat, labels: Tensor) -> Box:
        """Return the box of inputs that ``box_rounding`` speaks of; the weights are constants in it.

        Args:
            model: the network.
            threat: the inputs it is up against.
            labels: (B,).
        """
        return threat.region.ideal_box()

    def attacked(self, model: Model, threat: Threat, labels: Tensor) -> Tensor:
        """Return the inputs (B, ...) of which ``attacks_alone`` speaks; no gradient flows through the search for them.

        Args:
            model: the network.
            threat: the inputs to choose from, and where to start.
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
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        parts = {name: v.describe() if isinstance(v, Adversary) else v for name, v in values.items()}
        return {"name": type(self).__name__, **parts}

    def __repr__(self) -> str:
        """Return the settings that are not at their defaults."""
        return short_repr(self)
