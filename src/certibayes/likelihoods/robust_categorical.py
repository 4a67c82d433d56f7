"""Classification: the paper's robust likelihood.

    p(y | x, w) = E_{eps ~ p_eps}[ min over |x' - x| <= eps of softmax_y(f^w(x')) ]        (Eqn 4)

With IBP as the adversary the minimum is replaced by a lower bound, and so is the likelihood (Proposition 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.bounds import NOTHING, Box, TrainingPass, margins_of_features, worst_logits
from certibayes.errors import InvalidInput
from certibayes.likelihoods._curvature import applies_to, closed_form_gradients
from certibayes.likelihoods.adversaries import IBP, Adversary, Model, Threat
from certibayes.likelihoods.base import NO_MORE, PAIRS, Asked, Batch, Gradients, Noise, Outputs
from certibayes.likelihoods.categorical import drawn_labels, label_log_probability
from certibayes.likelihoods.curriculum import DEFAULT_RAMP, Curriculum
from certibayes.likelihoods.radius import RadiusDistribution
from certibayes.likelihoods.ramp import Ramp
from certibayes.likelihoods.robust import RobustLikelihood, radius_distribution
from certibayes.networks import Graph, Network, Params
from certibayes.networks.batch_norm import normalizes_by_batch
from certibayes.networks.operations import Linear
from certibayes.support.checks import require_labels
from certibayes.support.fused import fused


@dataclass(frozen=True, init=False, repr=False)
class RobustCategorical(RobustLikelihood):
    """The robust likelihood.

    Attributes:
        p_eps: distribution of the radius, such as ``TwoPoint(eta=0.11, lam=0.25)``; a number stands for ``eps``.
        adversary: a bound, ``IBP()``, ``IBP(margins=True)`` or ``CROWNIBP()``; an attack, ``PGD()``; or what lies
            between, ``SABR()``, ``CCIBP()``, ``MTLIBP()`` or ``ExpIBP()``. Only with a bound is the likelihood a lower
            bound on that of the worst input, which the posterior's metadata say under ``"lower_bound"``.
        domain: values an input can take, two numbers or, where features differ, tensors (1, *shape); balls are
            intersected with it. None for no limit.
        ramp: how training comes to this likelihood; None for the likelihood as it is from the start. By default, where
            ``eps`` is given, a ``Curriculum()``: radii grow while lam is 0, then lam is raised, and by half of training
            the likelihood is the one that was asked for, so that what is collected later belongs to it. Where ``p_eps``
            is given, radii grow linearly over all of training and lam is constant, as in the paper.
        eps: the radius that is to be certified, instead of ``p_eps``: ``TwoPoint.for_radius(eps)``, which trains with
            1.1 times that. None where ``p_eps`` was not made for a radius.
        scale: what radii are multiples of, one number for each feature, such as their standard deviations; where it is
            0 a feature does not change. By default radii are in the units of the inputs, the same for all.
    """

    ramp_to_eps: ClassVar[Curriculum | Ramp] = Curriculum()

    def __init__(
        self,
        p_eps: RadiusDistribution | float | None = None,
        adversary: Adversary = IBP(),  # noqa: B008 - frozen
        domain: Any = (0.0, 1.0),
        ramp: Curriculum | Ramp | str | None = DEFAULT_RAMP,
        *,
        eps: float | None = None,
        scale: Any = None,
    ) -> None:
        distribution = radius_distribution(p_eps, eps)
        if distribution is None:
            raise InvalidInput(
                "a robust likelihood needs a radius: RobustCategorical(eps=0.1) to certify radius 0.1, or any "
                "distribution of radii, RobustCategorical(p_eps=TwoPoint(eta=0.11, lam=0.25))."
            )
        super().__init__(distribution, adversary, domain, self.chosen_ramp(ramp, p_eps if eps is None else eps), scale)

    @property
    def bounded(self) -> bool:
        """See the base class: by any adversary but an attack alone, at any radius but 0."""
        return self.adversary.uses_bounds and self.p_eps.clean < 1.0

    def validate(self, graph: Graph, batch: Batch) -> None:
        """See the base class."""
        require_labels(batch.targets, graph.classes)
        super().validate(graph, batch)

    def worst_outputs(self, model: Model, threat: Threat, targets: Tensor) -> Tensor:
        """Return logits (B, C), or the labels' log-probabilities (B,)."""
        return self.adversary.worst_outputs(model, threat, targets)

    def worst_in_box(self, box: Box, targets: Tensor) -> Tensor:
        """Return logits (B, C)."""
        return worst_logits(box, targets)

    def log_p(self, clean: Tensor | None, worst: Sequence[Tensor], targets: Tensor, log_weights: Tensor) -> Tensor:
        """Return log(clean mass * p_clean + sum over k of weight_k * p_worst_k), (B,).

        Worst outputs are logits (B, C), or the labels' log-probabilities (B,), which are taken as they are.
        """
        if worst and worst[0].dim() == 1:
            known = [*worst] if clean is None else [label_log_probability(clean, targets), *worst]
            return torch.logsumexp(torch.stack(known) + log_weights[:, None], 0)
        logits = [*worst] if clean is None else [clean, *worst]
        if len(logits) == 1:
            return label_log_probability(logits[0], targets) + log_weights[0]
        # All softmaxes at once: few large operations take less time than many small ones.
        terms = label_log_probability(torch.cat(logits), targets.repeat(len(logits)))
        return torch.logsumexp(terms.view(len(logits), -1) + log_weights[:, None], 0)

    def withstands(self, outputs: Outputs, targets: Tensor) -> Tensor | None:
        """See the base class: by the adversary's own bounds or attack, where p_eps has one radius beside 0."""
        if len(outputs.worst) != 1 or outputs.worst[0].dim() == 1:
            return None
        worst = outputs.worst[0]
        is_label = targets[:, None] == torch.arange(worst.shape[-1], device=targets.device)
        rivals = worst.masked_fill(is_label, -torch.inf).amax(-1)
        return worst.gather(-1, targets[:, None]).squeeze(-1) > rivals

    def pair_kinks(self, graph: Graph) -> str | None:
        """See the base class: where margins fold the last layer in."""
        rounding = self.adversary.margin_rounding
        if not (self._has_kinks(graph, rounding) and self._folds_last_layer(graph)):
            return None
        weight = graph.nodes[-1].roles["weight"]
        return weight if weight in graph.parameters else None

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
        """See the base class; where margins fold the last layer in, the passes that are written out end before it."""
        last, rounding = graph.nodes[-1], self.adversary.margin_rounding
        if rounding is None or not (self._folds_last_layer(graph) and len(noise.radii) == 1):
            return super().written_out(graph, params, buffers, batch, noise, scale, asked)
        tensors, targets = {**buffers, **params}, batch.targets
        weighs = self.p_eps.clean > 0.0
        # Statistics of the batch need a clean pass, also where it has no weight in the likelihood.
        inputs = batch.inputs if weighs or normalizes_by_batch(graph) else None
        box = self._box(graph, tensors, batch, noise)
        passes = TrainingPass(graph.body, params, buffers, inputs, box, rounding)

        def head(own: Params, centers: Tensor, radius: Tensor, widening: Tensor) -> Tensor:
            clean, center = centers[: len(centers) - len(radius)], centers[len(centers) - len(radius) :]
            weights = last.weights({**tensors, **own})
            worst = widening - margins_of_features(last, weights, Box(center, radius), targets, rounding)
            logits = last.operation.evaluate(weights, clean) if weighs else None
            return self.log_p(logits, [worst], targets, noise.log_weights)

        own = {name: params[name] for name in last.roles.values() if name in params}
        # The radius of every margin enters as a variable of its own, so that there is a derivative with respect to it.
        widening = passes.output.radius.new_zeros(len(targets), graph.classes)
        values, pull, *_ = torch.func.vjp(head, own, passes.output.center, passes.output.radius, widening)
        slopes, center, radius, wider = pull(torch.full_like(values, scale))
        along = self._penalty_slopes(graph.body, passes, noise) if asked.penalty else NOTHING
        gradient = passes.gradient(Box(center, radius), along)
        gradient = {name: g + slopes[name] if name in slopes else g for name, g in gradient.items()}
        if not asked.pairs:
            return values, gradient, passes.magnitudes
        return values, gradient, {**passes.magnitudes, PAIRS: _pair_slopes(wider, passes.output.radius, targets)}

    def _folds_last_layer(self, graph: Graph) -> bool:
        """Tell whether the passes are those of boxes up to a linear last layer, and of the inputs themselves."""
        folded = isinstance(graph.nodes[-1].operation, Linear) and bool(graph.body.nodes)
        own = self.keeps(RobustLikelihood, "log_likelihood", "passes")
        return folded and own and self.keeps(RobustCategorical, "worst_outputs")

    def log_p_and_derivative(
        self, outputs: Box, targets: Tensor, log_weights: Tensor, scale: float
    ) -> tuple[Tensor, Box]:
        """See the base class.

        With its shares π_k = weight_k p_k / p, log p has the derivative π_k (1_y - softmax(z_k)).
        """
        size = len(outputs.radius)
        if len(outputs.center) != 2 * size or not self.keeps(RobustCategorical, "log_p", "worst_in_box"):
            return super().log_p_and_derivative(outputs, targets, log_weights, scale)
        is_label = (targets[:, None] == torch.arange(outputs.center.shape[-1], device=targets.device)).to(
            outputs.radius
        )
        sign = torch.rsub(is_label, 1, alpha=2)
        worst = torch.addcmul(outputs.center[size:], outputs.radius, sign)
        logits = torch.stack([outputs.center[:size], worst])
        log_softmax = functional.log_softmax(logits, -1)
        terms = log_softmax.gather(-1, targets[None, :, None].expand(2, -1, 1)).squeeze(-1) + log_weights[:, None]
        values = torch.logaddexp(terms[0], terms[1])
        (slopes,) = _slopes(is_label, log_softmax, terms[..., None], values[:, None], scale)
        return values, Box(slopes.flatten(0, 1), slopes[1] * sign)

    def value_grad_and_squares(
        self, graph: Graph, params: Params, buffers: Params, batch: Batch, noise: Noise
    ) -> Gradients:
        """See the base class; in closed form at attacked inputs as well."""
        if not (applies_to(graph) and self._has_attacks_alone(graph)):
            return super().value_grad_and_squares(graph, params, buffers, batch, noise)
        model = Model(graph, {**buffers, **params})
        threats = [self._threat(batch, noise, radius) for radius in noise.radii]
        attacked = [self.adversary.attacked(model, threat, batch.targets) for threat in threats]
        points = [batch.inputs, *attacked] if self.p_eps.clean > 0.0 else attacked

        def log_p(logits: Tensor) -> Tensor:
            parts = logits.split(len(batch.targets))
            clean, worst = (parts[0], parts[1:]) if self.p_eps.clean > 0.0 else (None, parts)
            return self.log_p(clean, worst, batch.targets, noise.log_weights)

        def head(outputs: Box) -> tuple[Tensor, Box]:
            values, pull, *_ = torch.func.vjp(log_p, outputs.center)
            return values, Box(pull(torch.ones_like(values))[0], outputs.radius)

        return closed_form_gradients(head, Network(graph, dict(params), dict(buffers)), torch.cat(points))

    def _has_attacks_alone(self, graph: Graph) -> bool:
        """Tell whether the passes are those of the inputs and of attacked inputs, and no others."""
        own = self.keeps(RobustLikelihood, "log_likelihood", "passes")
        own = own and self.keeps(RobustCategorical, "worst_outputs")
        # Statistics of a batch are those of the clean inputs alone.
        return own and self.adversary.attacks_alone and not normalizes_by_batch(graph)

    def predicted_targets(self, graph: Graph, params: Params, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """See the base class."""
        return drawn_labels(graph.evaluate(params, inputs), generator)


@fused
def _slopes(is_label: Any, log_softmax: Any, term: Any, value: Any, scale: float) -> tuple[Any, ...]:
    """Return ``scale`` times the derivatives π_k (1_y - softmax(z_k)) of log p; see ``log_p_and_derivative``."""
    return ((is_label - torch.exp(log_softmax)) * (torch.exp(term - value) * scale),)


def _pair_slopes(wider: Tensor, radius: Tensor, labels: Tensor) -> Tensor:
    """Return derivatives with respect to |w_k - w_j|, (C, C, n): examples of class k with rival j, and the reverse.

    Args:
        wider: derivatives with respect to the radii of the margins, Σ_i |w_yi - w_ji| r_i, (B, C).
        radius: r, (B, n).
        labels: y, (B,).
    """
    classes = wider.shape[-1]
    is_label = labels[:, None] == torch.arange(classes, device=labels.device)
    wider = wider.masked_fill(is_label, 0.0)
    by_pair = torch.where(is_label[..., None], wider[:, None], torch.zeros_like(wider[:, None]))
    slopes = (by_pair.flatten(1).mT @ radius).unflatten(0, (classes, classes))
    return slopes + slopes.transpose(0, 1)
