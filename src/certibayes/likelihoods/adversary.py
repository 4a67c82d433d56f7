"""Adversaries: what the worst input within a radius does to the outputs of one network.

``IBP`` and ``CROWNIBP`` answer with a bound that no input can cross; ``PGD`` with the worst input it finds, which
proves nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.attacks import PGD as PGDAttack
from certibayes.attacks import cross_entropy_loss
from certibayes.bounds import (
    interval_bounds,
    interval_margins,
    linear_bounds,
    linear_margins,
    worst_logits,
)
from certibayes.bounds.rounding import Rounding, smoothed
from certibayes.errors import InvalidInput
from certibayes.likelihoods.base import Batch
from certibayes.likelihoods.curvature import BoxObserver
from certibayes.networks import Graph, Params
from certibayes.regions import Domain, InputRegion


class Adversary:
    """Base of all adversaries."""

    needs_starts = False

    @property
    def one_box(self) -> bool:
        """Whether weights enter through one propagated box alone, as the closed form of the curvature assumes."""
        return False

    def worst_logits(
        self,
        graph: Graph,
        params: Params,
        batch: Batch,
        radius: Tensor,
        domain: Domain,
        starts: Tensor | None,
        on_box: BoxObserver | None = None,
    ) -> Tensor:
        """Return logits (B, C) whose softmax at the label bounds, or estimates, the worst case.

        Args:
            graph: the network.
            params: one weight sample, buffers included.
            batch: inputs and labels.
            radius: l-infinity radius, a tensor that broadcasts against the inputs.
            domain: smallest and largest value of an input.
            starts: in [-1, 1], where an attack starts.
            on_box: looks on at the boxes of every layer, where the adversary propagates any.
        """
        raise NotImplementedError

    def extremes(
        self,
        graph: Graph,
        params: Params,
        x: Tensor,
        radius: Tensor,
        domain: Domain,
        starts: Tensor | None,
        on_box: BoxObserver | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return smallest and largest outputs (B, outputs) within the ball, output by output."""
        raise NotImplementedError

    def slope(self, weight: Tensor) -> Tensor:
        """Return the derivative of the magnitude that bounds use for ``weight``: of |w| unless they are smoothed."""
        return weight.sign()

    def smoothed(self, tau: float) -> Adversary:
        """Return an adversary whose bounds depend smoothly on the weights, where there are any to smooth."""
        return self

    def describe(self) -> dict[str, Any]:
        """Return what goes into a posterior's metadata."""
        return {"name": type(self).__name__}


@dataclass(frozen=True)
class IBP(Adversary):
    """Interval bound propagation: a certified lower bound on the robust likelihood (Proposition 1).

    Attributes:
        margins: fold the last layer into class margins, which is tighter than a box of logits.
        smoothing: τ > 0 puts sqrt(w² + τ²) in the place of |w|: still a bound, and smooth, as HMC needs it.
    """

    margins: bool = False
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        smoothed(self.smoothing)

    @cached_property
    def _arithmetic(self) -> Rounding:
        return smoothed(self.smoothing)

    @property
    def one_box(self) -> bool:
        """See the base class; margins use the last layer's weights in another way."""
        return not self.margins

    def worst_logits(
        self,
        graph: Graph,
        params: Params,
        batch: Batch,
        radius: Tensor,
        domain: Domain,
        starts: Tensor | None,
        on_box: BoxObserver | None = None,
    ) -> Tensor:
        """See the base class."""
        box = InputRegion(batch.inputs, radius, domain=domain).ideal_box()
        if self.margins:
            # Softmax does not mind a shift: label at 0, rivals at minus their smallest margin.
            return -interval_margins(graph, params, box, batch.targets, self._arithmetic)
        return worst_logits(interval_bounds(graph, params, box, self._arithmetic, on_box), batch.targets)

    def extremes(
        self,
        graph: Graph,
        params: Params,
        x: Tensor,
        radius: Tensor,
        domain: Domain,
        starts: Tensor | None,
        on_box: BoxObserver | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See the base class."""
        box = interval_bounds(
            graph, params, InputRegion(x, radius, domain=domain).ideal_box(), self._arithmetic, on_box
        )
        return box.lower, box.upper

    def slope(self, weight: Tensor) -> Tensor:
        """See the base class: w / sqrt(w² + τ²)."""
        return weight / self._arithmetic.magnitude(weight) if self.smoothing > 0.0 else weight.sign()

    def smoothed(self, tau: float) -> IBP:
        """See the base class."""
        return replace(self, smoothing=tau)

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        return {"name": "IBP", **asdict(self)}


@dataclass(frozen=True)
class CROWNIBP(Adversary):
    """Linear bounds over interval ones (Zhang et al., 2020): a certified lower bound as well, and never a lower one.

    The paper names linear bounds as an alternative to intervals. Class margins are bounded by linear functions of the
    input, with the last layer folded in; what the activations take in is bounded by intervals, so a step costs a few
    times that of ``IBP``, and more the more classes there are.

    Attributes:
        beta: 1 takes the better of linear and interval margins, 0 interval margins alone (``IBP(margins=True)``);
            in between the two are mixed.
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta <= 1.0:
            raise InvalidInput(f"beta mixes two bounds, so it is from 0 to 1, got {self.beta}.")

    def worst_logits(
        self,
        graph: Graph,
        params: Params,
        batch: Batch,
        radius: Tensor,
        domain: Domain,
        starts: Tensor | None,
        on_box: BoxObserver | None = None,
    ) -> Tensor:
        """See the base class: label at 0, rivals at minus their smallest margin."""
        box = InputRegion(batch.inputs, radius, domain=domain).ideal_box()
        if self.beta == 0.0:
            return -interval_margins(graph, params, box, batch.targets)
        linear = linear_margins(graph, params, box, batch.targets).to(batch.inputs.dtype)
        if self.beta == 1.0:
            return -linear
        return -torch.lerp(interval_margins(graph, params, box, batch.targets), linear, self.beta)

    def extremes(
        self,
        graph: Graph,
        params: Params,
        x: Tensor,
        radius: Tensor,
        domain: Domain,
        starts: Tensor | None,
        on_box: BoxObserver | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See the base class."""
        box = InputRegion(x, radius, domain=domain).ideal_box()
        intervals = interval_bounds(graph, params, box) if self.beta < 1.0 else None
        if self.beta == 0.0 and intervals is not None:
            return intervals.lower, intervals.upper
        lower, upper = (end.to(x.dtype) for end in linear_bounds(graph, params, box))
        if intervals is None:
            return lower, upper
        return torch.lerp(intervals.lower, lower, self.beta), torch.lerp(intervals.upper, upper, self.beta)

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        return {"name": "CROWNIBP", **asdict(self)}


@dataclass(frozen=True)
class PGD(Adversary):
    """Projected gradient descent: adversarial training, as the paper's central column. It proves nothing.

    It climbs as ``certibayes.attacks.PGD`` does in l-infinity, once and from a random start, on the cross-entropy of
    one network.

    Attributes:
        steps: iterations.
        step_size: relative to the radius.
    """

    steps: int = 10
    step_size: float = 0.25
    needs_starts = True

    def __post_init__(self) -> None:
        # Made once here, so that settings that make no sense are refused before training.
        _ = self._attack

    @cached_property
    def _attack(self) -> PGDAttack:
        return PGDAttack(self.steps, restarts=1, step_size=self.step_size)

    def _attacked(
        self,
        loss: Any,
        x: Tensor,
        radius: Tensor,
        domain: Domain,
        starts: Tensor | None,
    ) -> Tensor:
        start = x if starts is None else x + radius * starts
        # The worst input is a constant of the likelihood: no gradient flows through the search for it.
        return self._attack.ascend(loss, InputRegion(x, radius, domain=domain), start).detach()

    def worst_logits(
        self,
        graph: Graph,
        params: Params,
        batch: Batch,
        radius: Tensor,
        domain: Domain,
        starts: Tensor | None,
        on_box: BoxObserver | None = None,
    ) -> Tensor:
        """See the base class."""
        frozen = {name: tensor.detach() for name, tensor in params.items()}

        def loss(x: Tensor) -> Tensor:
            logits = graph.evaluate(frozen, x)
            return cross_entropy_loss(functional.log_softmax(logits, -1), batch.targets)

        worst = self._attacked(loss, batch.inputs, radius, domain, starts)
        return graph.evaluate(params, worst)

    def extremes(
        self,
        graph: Graph,
        params: Params,
        x: Tensor,
        radius: Tensor,
        domain: Domain,
        starts: Tensor | None,
        on_box: BoxObserver | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See the base class; one attack for each output and direction."""
        frozen = {name: tensor.detach() for name, tensor in params.items()}
        ends = []
        for sign in (-1.0, 1.0):
            outputs = []
            for k in range(graph.classes):

                def loss(x: Tensor, sign: float = sign, k: int = k) -> Tensor:
                    return sign * graph.evaluate(frozen, x)[:, k]

                worst = self._attacked(loss, x, radius, domain, starts)
                outputs.append(graph.evaluate(params, worst)[:, k])
            ends.append(torch.stack(outputs, -1))
        return ends[0], ends[1]

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        return {"name": "PGD", **asdict(self)}
