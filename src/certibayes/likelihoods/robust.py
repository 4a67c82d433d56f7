"""What the robust likelihoods share: their settings, their noise, and their network passes.

A robust likelihood is an expectation over p_eps. Radius 0 takes one clean pass, and every other radius one pass of the
adversary; the head of each likelihood says what becomes of their outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from certibayes.bounds import IDEAL, NOTHING, Box, Rounding, TrainingPass, point_and_box
from certibayes.errors import InvalidInput
from certibayes.likelihoods._curvature import applies_to, closed_form_gradients
from certibayes.likelihoods._regularizers import bound_penalty, penalty_slopes, require_relu_layers
from certibayes.likelihoods._settings import short_repr
from certibayes.likelihoods.adversaries import Adversary, Model, Threat
from certibayes.likelihoods.base import NO_MORE, Asked, Batch, Gradients, Likelihood, Noise, Outputs
from certibayes.likelihoods.curriculum import DEFAULT_RAMP, Curriculum, as_curriculum, require_ramp
from certibayes.likelihoods.radius import RadiusDistribution, TwoPoint
from certibayes.likelihoods.ramp import LinearRamp, Ramp
from certibayes.networks import Graph, Network, Params
from certibayes.networks.batch_norm import clean_pass, normalizes_by_batch
from certibayes.networks.operations import Conv2d, Linear
from certibayes.regions import Domain, InputRegion, as_domain, as_radius, domain_to_json, require_domain


@dataclass(frozen=True, init=False, repr=False)
class RobustLikelihood(Likelihood):
    """Base of the likelihoods of the worst input within a random radius.

    Attributes:
        p_eps: distribution of the radius.
        adversary: what stands for the worst input.
        domain: values an input can take; None for no limit.
        ramp: a ramp of the radii while training, or a curriculum for radii and lam; None for the likelihood as it is
            from the start.
        scale: what radii are multiples of, (1, *shape) or one number for each feature of a table, where features have
            different units; where it is 0 a feature does not change. None where radii are in the units of the inputs.
    """

    ramp_to_eps: ClassVar[Curriculum | Ramp] = LinearRamp(0.0, 0.5)
    """The ramp that is taken where ``eps`` is given and no other is asked for."""

    p_eps: RadiusDistribution
    adversary: Adversary
    domain: Domain
    ramp: Curriculum | Ramp | None
    scale: Tensor | None

    def __init__(
        self,
        p_eps: RadiusDistribution,
        adversary: Adversary,
        domain: Any,
        ramp: Curriculum | Ramp | None,
        scale: Any = None,
    ) -> None:
        _require_adversary(adversary)
        require_ramp(ramp)
        as_curriculum(ramp).require_fits(p_eps)
        values = {
            "p_eps": p_eps, "adversary": adversary, "domain": as_domain(domain), "ramp": ramp, "scale": _scale(scale),
        }  # fmt: skip
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def eps(self) -> float | None:
        """The radius that is to be certified, where the likelihood was made for one."""
        return self.p_eps.eps

    @property
    def program(self) -> Any:
        """See the base class: radii, their weights and their ramp are all in the noise."""
        way = self.curriculum
        penalty = (self.p_eps, way) if self.regularized else None
        scale = None if self.scale is None else str(self.scale.tolist())
        return (type(self), self.adversary, domain_to_json(self.domain), self.p_eps.clean > 0.0, penalty, scale)

    @property
    def curriculum(self) -> Curriculum:
        """How training comes to this likelihood, also where that is a ramp alone, or nothing."""
        return as_curriculum(self.ramp)

    @classmethod
    def chosen_ramp(cls, ramp: Any, given: RadiusDistribution | float | None) -> Any:
        """Return the ramp that a user means: by default one that depends on whether a radius was ``given`` or p_eps."""
        if ramp != DEFAULT_RAMP:
            return ramp
        return LinearRamp() if given is None or isinstance(given, RadiusDistribution) else cls.ramp_to_eps

    def validate(self, graph: Graph, batch: Batch) -> None:
        """See the base class."""
        require_domain(batch.inputs, self.domain)
        if self.scale is not None and self.scale.shape[1:] != batch.inputs.shape[1:]:
            raise InvalidInput(
                f"scale has a number for each of {tuple(self.scale.shape[1:])} features, and the inputs have "
                f"{tuple(batch.inputs.shape[1:])}."
            )
        if self.regularized:
            require_relu_layers(graph)

    def draw(self, progress: float, batch: Batch, generator: torch.Generator | None) -> Noise:
        """Draw radii and their weights at this point of the curriculum and, where an attack needs them, its starts."""
        curriculum = self.curriculum
        p_eps = curriculum.distribution(self.p_eps, progress)
        nodes = p_eps.nodes(generator)
        scale = curriculum.radius_factor(progress)
        log_weights = nodes.log_weights
        if self.p_eps.clean > 0.0:
            # The clean pass is made for the sake of the final lam. While lam is 0 its weight is log 0, as a number and
            # not as another course of the computation, so that a step can be replayed with other weights.
            log_clean = math.log(p_eps.clean) if p_eps.clean > 0.0 else -math.inf
            log_weights = torch.cat([log_weights.new_tensor([log_clean]), log_weights])
        starts = None
        if self.adversary.needs_starts:
            # Drawn on the CPU, so that a run gives the same numbers on every device.
            starts = torch.rand(batch.inputs.shape, generator=generator).mul_(2).sub_(1).to(batch.inputs)
        return Noise((nodes.radii * scale).to(batch.inputs), log_weights.to(batch.inputs), starts)

    def passes(self, graph: Graph, params: Params, batch: Batch, noise: Noise) -> Outputs:
        """Make a clean pass, if radius 0 has any probability, and one pass of the adversary for each other radius.

        Batch norm by statistics of the batch needs the clean pass in any case.
        """
        rounding, weighs = self.adversary.box_rounding, self.p_eps.clean > 0.0
        needs_clean = weighs or normalizes_by_batch(graph)
        if rounding is not None and needs_clean and len(noise.radii) == 1:
            box = self._box(graph, params, batch, noise)
            point, bounded = point_and_box(graph, params, batch.inputs, box, rounding)
            return Outputs(point if weighs else None, [self.worst_in_box(bounded, batch.targets)])
        clean: Tensor | None = None
        if needs_clean:
            clean, params = clean_pass(graph, params, batch.inputs)
        model, clean = Model(graph, params), clean if weighs else None
        threats = [self._threat(batch, noise, radius) for radius in noise.radii]
        return Outputs(clean, [self.worst_outputs(model, threat, batch.targets) for threat in threats])

    def worst_outputs(self, model: Model, threat: Threat, targets: Tensor) -> Any:
        """Return the worst outputs for one radius, in the form that ``log_p`` takes them."""
        raise NotImplementedError

    def worst_in_box(self, box: Box, targets: Tensor) -> Any:
        """Return the worst outputs of a box of outputs, in the form that ``log_p`` takes them."""
        raise NotImplementedError

    def value_and_grad(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise, scale: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See the base class; with passes whose derivatives are written out where boxes are propagated."""
        found = self.written_out(graph, params, buffers, batch, noise, scale)
        return super().value_and_grad(graph, params, buffers, batch, noise, scale) if found is None else found[:2]

    def value_and_penalized_grad(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise, scale: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See the base class; from the same passes where their boxes are the ones that the penalty is about."""
        found = None
        if not self.adversary.needs_starts and self.keeps(RobustLikelihood, "penalty"):
            found = self.written_out(graph, params, buffers, batch, noise, scale, Asked(penalty=True))
        if found is None:
            return super().value_and_penalized_grad(graph, params, buffers, batch, noise, scale)
        return found[:2]

    def value_and_slopes(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise, scale: float
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """See the base class."""
        asked = Asked(pairs=self.pair_kinks(graph) is not None)
        found = self.written_out(graph, params, buffers, batch, noise, scale, asked)
        return super().value_and_slopes(graph, params, buffers, batch, noise, scale) if found is None else found

    def written_out(
        self,
        graph: Graph,
        params: Params,
        buffers: Params,
        batch: Batch,
        noise: Noise,
        scale: float,
        asked: Asked = NO_MORE,
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]] | None:
        """Return what ``value_and_slopes`` does by passes whose derivatives are written out; None without such."""
        # Statistics of the batch need a clean pass, also where it has no weight in the likelihood.
        hidden = normalizes_by_batch(graph) and self.p_eps.clean == 0.0
        if hidden or not self._has_boxes_alone(noise):
            return None
        passes = TrainingPass(graph, params, buffers, *self._sent(graph, {**buffers, **params}, batch, noise))
        values, derivative = self.log_p_and_derivative(passes.output, batch.targets, noise.log_weights, scale)
        along = self._penalty_slopes(graph, passes, noise) if asked.penalty else NOTHING
        return values, passes.gradient(derivative, along), passes.magnitudes

    def kinks(self, graph: Graph) -> frozenset[str]:
        """See the base class: all weights through which the one box goes, unless |w| is smoothed.

        Where margins fold the last layer in, its kinks are where the weights of two classes are equal; they are not
        among these, but in ``pair_kinks``.
        """
        nodes, rounding = graph.nodes, self.adversary.box_rounding
        if rounding is None and isinstance(nodes[-1].operation, Linear):
            nodes, rounding = graph.body.nodes, self.adversary.margin_rounding
        if not (self._has_kinks(graph, rounding) and self.keeps(RobustLikelihood, "kinks")):
            return frozenset()
        layers = [node for node in nodes if isinstance(node.operation, (Conv2d, Linear))]
        return frozenset(node.roles["weight"] for node in layers) & frozenset(graph.parameters)

    def _has_kinks(self, graph: Graph, rounding: Rounding | None) -> bool:
        """Tell whether the one box goes through layers by |w| itself, and derivatives with respect to it are known."""
        one_box = isinstance(self.p_eps, TwoPoint) and self.p_eps.clean < 1.0
        hidden = normalizes_by_batch(graph) and self.p_eps.clean == 0.0
        own = self.keeps(RobustLikelihood, "log_likelihood", "passes")
        return rounding is not None and not rounding.smoothing and not hidden and one_box and own

    def _has_boxes_alone(self, noise: Noise) -> bool:
        """Tell whether the passes are those of boxes and of the inputs themselves, and no others."""
        boxed = len(noise.radii) == 0 or self.adversary.box_rounding is not None
        return boxed and self.keeps(RobustLikelihood, "log_likelihood", "passes")

    def _sent(
        self, graph: Graph, params: Params, batch: Batch, noise: Noise
    ) -> tuple[Tensor | None, Box | None, Rounding]:
        """Return the inputs of the clean pass, the boxes, None where a pass is not made, and the boxes' arithmetic."""
        inputs = batch.inputs if self.p_eps.clean > 0.0 else None
        box = self._box(graph, params, batch, noise) if len(noise.radii) else None
        return inputs, box, self.adversary.box_rounding or IDEAL

    def log_p_and_derivative(
        self, outputs: Box, targets: Tensor, log_weights: Tensor, scale: float
    ) -> tuple[Tensor, Box]:
        """Return ``log_p``, (B,), and the derivative of ``scale`` times its sum.

        Args:
            outputs: of the clean pass, if it is made, and of the box of each radius: centers hold the former first.
            targets: see ``log_p``.
            log_weights: see ``log_p``.
            scale: a factor.
        """

        def head(centers: Tensor, radius: Tensor) -> Tensor:
            clean, center = centers[: len(centers) - len(radius)], centers[len(centers) - len(radius) :]
            boxes = zip(center.split(len(targets)), radius.split(len(targets)), strict=True) if len(radius) else ()
            worst = [self.worst_in_box(Box(*box), targets) for box in boxes]
            return self.log_p(clean if len(clean) else None, worst, targets, log_weights)

        values, pull, *_ = torch.func.vjp(head, outputs.center, outputs.radius)
        center, radius = pull(torch.full_like(values, scale))
        return values, Box(center, radius)

    def value_grad_and_squares(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise
    ) -> Gradients:
        """See the base class; in closed form where layers have one and only boxes are propagated."""
        if not (applies_to(graph) and self._has_boxes_alone(noise)):
            found = super().value_grad_and_squares(graph, params, buffers, batch, noise)
            if self.kinks(graph).isdisjoint(params) and self.pair_kinks(graph) is None:
                return found
            magnitudes = self.value_and_slopes(graph, params, buffers, batch, noise, 1.0)[2]
            return found._replace(magnitudes=magnitudes)

        def head(outputs: Box) -> tuple[Tensor, Box]:
            return self.log_p_and_derivative(outputs, batch.targets, noise.log_weights, 1.0)

        network = Network(graph, dict(params), dict(buffers))
        return closed_form_gradients(head, network, *self._sent(graph, {**buffers, **params}, batch, noise))

    @property
    def regularized(self) -> bool:
        """See the base class: by what the curriculum asks for, as long as there is a radius that grows."""
        return self.curriculum.regularized and self.p_eps.clean < 1.0

    def penalty(self, graph: Graph, params: Params, batch: Batch, noise: Noise) -> Tensor:
        """See the base class: regularizers of the bounds, by what the radius lacks of its full value.

        Its factor 1 - radius / eta is exactly 0 once the radius has grown.
        """
        if normalizes_by_batch(graph):
            params = clean_pass(graph, params, batch.inputs).params
        box = self._threat(batch, noise, noise.radii[0]).region.ideal_box()
        adversary, way = self.adversary, self.curriculum
        rounding = adversary.box_rounding or adversary.margin_rounding or IDEAL
        return self._lacking(noise) * bound_penalty(graph, params, box, rounding, way.tightness, way.balance)

    def _lacking(self, noise: Noise) -> Tensor:
        assert isinstance(self.p_eps, TwoPoint)
        return (1.0 - noise.radii[0] / self.p_eps.eta).clamp(min=0.0)

    def _penalty_slopes(self, graph: Graph, passes: TrainingPass, noise: Noise) -> dict[str, Box]:
        """Return the derivatives of ``penalty`` with respect to the boxes of a pass."""
        way = self.curriculum
        return penalty_slopes(graph, passes.entering, way.tightness, way.balance, self._lacking(noise))

    def settled(self, progress: float) -> Self:
        """See the base class: once the radius has grown, regularizers only take time."""
        grown = self.curriculum.radius
        if not self.regularized or grown is None or progress < grown.end:
            return self
        return replace(self, ramp=replace(self.curriculum, tightness=0.0, balance=0.0))

    def _threat(self, batch: Batch, noise: Noise, radius: Tensor) -> Threat:
        if self.scale is not None:
            radius = radius * self.scale.to(batch.inputs)
        return Threat(InputRegion(batch.inputs, radius, domain=self.domain), noise.starts)

    def _box(self, graph: Graph, params: Params, batch: Batch, noise: Noise) -> Box:
        """Return the inputs of the interval passes, where the adversary makes no others: B boxes for each radius."""
        if self.adversary.needs_starts and normalizes_by_batch(graph):
            # What is attacked is the network with the statistics of the clean batch.
            params = clean_pass(graph, params, batch.inputs).params
        model, threats = Model(graph, params), [self._threat(batch, noise, radius) for radius in noise.radii]
        boxes = [self.adversary.box(model, threat, batch.targets) for threat in threats]
        if len(boxes) == 1:
            return boxes[0]
        return Box(torch.cat([box.center for box in boxes]), torch.cat([box.radius for box in boxes]))

    def smoothed(self, tau: float) -> Self:
        """See the base class."""
        return replace(self, adversary=self.adversary.smoothed(tau))

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        return {
            "name": type(self).__name__,
            "eps": self.eps,
            "p_eps": self.p_eps.describe(),
            "adversary": self.adversary.describe(),
            "lower_bound": self.adversary.is_bound,
            "domain": domain_to_json(self.domain),
            "ramp": None if self.ramp is None else self.ramp.describe(),
            **({} if self.scale is None else {"scale": self.scale.tolist()}),
        }

    def __repr__(self) -> str:
        """Return the settings that are not at their defaults, the radius as ``eps`` where that says all."""
        made_by_eps = self.eps is not None and self.p_eps == TwoPoint.for_radius(self.eps)
        default = self.chosen_ramp(DEFAULT_RAMP, self.eps if made_by_eps else self.p_eps)
        return short_repr(self, "p_eps" if made_by_eps else "eps", *(("ramp",) if self.ramp == default else ()))


def radius_distribution(p_eps: RadiusDistribution | float | None, eps: float | None) -> RadiusDistribution | None:
    """Return the distribution that a user means by ``p_eps`` and ``eps``; None if neither was given.

    Args:
        p_eps: a distribution; a number stands for ``eps``.
        eps: the radius that is to be certified, which means ``TwoPoint.for_radius(eps)``.
    """
    if p_eps is not None and eps is not None:
        raise InvalidInput(f"give eps or p_eps, not both: eps={eps} stands for p_eps=TwoPoint.for_radius({eps}).")
    if isinstance(p_eps, RadiusDistribution):
        return p_eps
    if isinstance(p_eps, Adversary):
        raise InvalidInput(
            f"{p_eps} is an adversary, and p_eps is how far it may go: RobustCategorical(eps=0.1, adversary={p_eps})."
        )
    if isinstance(p_eps, type) and issubclass(p_eps, RadiusDistribution):
        raise InvalidInput(f"p_eps is the class {p_eps.__name__}; pass an instance: {p_eps.__name__}.for_radius(0.1).")
    if p_eps is not None and not isinstance(p_eps, Real | Tensor):
        raise InvalidInput(f"p_eps must be a distribution of radii, such as TwoPoint(eta=0.11), or eps; got {p_eps!r}.")
    given = eps if p_eps is None else p_eps
    if given is None:
        return None
    radius = as_radius(given)
    if isinstance(radius, Tensor):
        raise InvalidInput("eps is one radius for all inputs; certify takes several, training does not.")
    return TwoPoint.for_radius(radius)


def _scale(scale: Any) -> Tensor | None:
    """Return what radii are multiples of, (1, *shape) in float64."""
    if scale is None:
        return None
    found = as_radius(scale)
    if not isinstance(found, Tensor):
        raise InvalidInput("scale has one number for each feature; where all have the same, eps says it.")
    found = found[None] if found.dim() == 1 else found
    if len(found) != 1:
        raise InvalidInput(f"scale is the same for all inputs, (1, *shape); got shape {tuple(found.shape)}.")
    return found


def _require_adversary(adversary: Any) -> None:
    if isinstance(adversary, type) and issubclass(adversary, Adversary):
        raise InvalidInput(f"adversary is the class {adversary.__name__}; pass an instance: {adversary.__name__}().")
    if not isinstance(adversary, Adversary):
        raise InvalidInput(
            "adversary must be IBP(), CROWNIBP() or PGD() of certibayes itself, or what lies between: SABR(), CCIBP(), "
            f"MTLIBP() or ExpIBP(); got {adversary!r}."
        )
