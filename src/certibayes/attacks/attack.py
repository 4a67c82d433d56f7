"""``attack``: the worst inputs that were found, as the predictor itself classifies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import nn

from certibayes.attacks._batch import batch_size_for
from certibayes.attacks._resampled import Resamplable, Resampled
from certibayes.attacks.base import Attack
from certibayes.attacks.ensemble import Ensemble
from certibayes.attacks.methods import AnyAttack, as_attack, members
from certibayes.attacks.result import Attacked
from certibayes.attacks.search import LogProbabilities, Search
from certibayes.data.points import points_for
from certibayes.errors import InvalidInput
from certibayes.networks import Graph
from certibayes.networks.dropout import dropout_refused
from certibayes.regions import Domain, InputRegion, radii_by_name, require_radius_within, resolve_domain
from certibayes.support.checks import inputs_of, labels_of, require_classes, require_count
from certibayes.support.progress import Report, reporting
from certibayes.support.seeds import derived_seed


def attack(  # noqa: PLR0913 - public
    predictor: nn.Module | Resamplable,
    x: Any,
    y: Any = None,
    *,
    eps: Any,
    method: AnyAttack | Sequence[AnyAttack] = "pgd",
    norm: str = "linf",
    domain: Domain | Literal["predictor"] = "predictor",
    draws: int = 8,
    decided_by: nn.Module | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool | Callable[[int, int], None] = False,
) -> Attacked:
    """Look for inputs within ``eps`` of ``x`` that are not classified as ``y``.

    Every input that is tried lies in the ball and in the domain, and counts only as the predictor itself classifies
    it. The robust accuracy is an upper bound on what can be certified, and no proof.

    Given a posterior instead of a predictor, the attack follows the gradients of weights that are drawn anew at every
    step (``draws`` of them, averaged as predictions are): the attack on a model that draws new weights at every call.
    Such a model may classify the same input differently each time, so one fixed predictor, ``decided_by``, decides
    which points are broken.

    Args:
        predictor: maps inputs (B, ...) to log-probabilities (B, C), such as ``posterior.predictor()``; or a posterior.
        x: inputs (B, ...), inside the domain: a tensor, an array, nested lists or a table of pandas; or what yields
            inputs with their labels, such as a ``DataLoader``; as ``certify`` takes them.
        y: labels (B,), likewise; by default those that come with the inputs, else the predicted classes.
        eps: radius: a number; one per point, (B,); or, for l-infinity, one per input value, (1, *shape) or (B, *shape),
            or by the names of columns.
        method: ``"fgsm"``, ``"pgd"``, ``"apgd-ce"``, ``"apgd-dlr"``, ``"square"``; ``"apgd"`` for both Auto-PGDs;
            ``"ensemble"`` for all but FGSM; an object with settings of its own, such as
            ``certibayes.attacks.PGD(steps=100)``; or a list of names and objects. Several run in order, each on the
            points that those before it have not broken.
        norm: of the ball: ``"linf"``, ``"l2"`` or ``"l1"``.
        domain: smallest and largest value of an input: two numbers, or tensors of shape (1, *shape) or (B, *shape)
            where features differ; None for no limits. By default the predictor's own.
        draws: weights drawn at every step, where a posterior is attacked.
        decided_by: the fixed predictor that decides which points are broken, where a posterior is attacked;
            ``posterior.predictor(seed=seed)`` by default.
        seed: of starts, of Square, and of drawn weights.
        batch_size: inputs attacked at once; by default 500, or for a predictor as many as the device has room for, on a
            CPU at most 500. Each batch has random numbers of its own, so batches of another size may find other inputs.
        progress: True for a bar, False for none, or a function of (evaluations of the model so far, the most there can
            be).
    """
    attacks = Ensemble(members(as_attack(method)))
    require_count(draws, "draws")
    if batch_size is not None:
        require_count(batch_size, "batch_size")
    if getattr(predictor, "task", "classification") != "classification":
        raise InvalidInput(
            "this predictor does regression; there are no classes to attack. attack_regression moves its predictions."
        )
    points = points_for(predictor, x, y)
    if isinstance(eps, Mapping):
        eps = radii_by_name(points.features, eps)
    x, y = inputs_of(points.x, "the inputs"), points.y
    known = resolve_domain(domain, predictor)
    region = InputRegion.around(x, eps, norm, known)
    require_radius_within(known, eps, norm)
    model, gradient_model = _models(predictor, decided_by, draws, seed, x.device)
    at_once = batch_size_for(model, x.device) if batch_size is None else batch_size
    parts = x.split(at_once)
    # Predictors know their graph, which holds no dropout.
    known_graph = isinstance(getattr(model, "graph", None), Graph)
    with torch.no_grad(), nullcontext() if known_graph else dropout_refused():
        clean = torch.cat([model(part) for part in parts])
    require_classes(clean.shape[-1])
    labels = clean.argmax(-1) if y is None else labels_of(y, clean.shape[-1], len(x)).to(x.device)
    if bool(clean.isnan().any()):
        raise InvalidInput(
            "the predictor answers NaN for some inputs; there is nothing to attack. Look at its weights."
        )
    found, predicted, broken_by = [], [], []
    with reporting(progress, "attacking") as report:
        counter = _Counter(report, attacks, len(parts))
        for number, index in enumerate(torch.arange(len(x), device=x.device).split(at_once)):
            search = Search(model, region.take(index), labels[index], gradient_model, counter.evaluated, clean[index])

            def stream(name: str, number: int = number) -> torch.Generator:
                """Each batch and attack has a stream of its own, so that doing more only ever adds to doing less."""
                return torch.Generator(x.device).manual_seed(derived_seed(seed, "attack", name, number))

            broken_by.append(attacks.run(search, stream, counter.finished))
            found.append(search.best)
            predicted.append(search.predicted)
    inputs, classes = torch.cat(found), torch.cat(predicted)
    return Attacked(
        inputs, labels, classes, classes != labels, region.distance(inputs), torch.cat(broken_by), attacks.names, norm
    )


def _models(
    predictor: nn.Module | Resamplable, decided_by: nn.Module | None, draws: int, seed: int, device: torch.device
) -> tuple[LogProbabilities, LogProbabilities | None]:
    """Return the model that decides, and the one whose gradients are followed where that is another."""
    if not isinstance(predictor, nn.Module):
        if not isinstance(predictor, Resamplable):
            raise InvalidInput(
                f"attack takes a module or a posterior, got {type(predictor).__name__}. "
                "Wrap a function in an nn.Module."
            )
        if getattr(predictor, "statistics_vary", False):
            raise InvalidInput(
                "the network has batch norm, whose statistics depend on the weights that are drawn and are kept for "
                "the samples of a predictor alone. Attack that: attack(posterior.predictor(), ...)."
            )
        fixed = predictor.predictor(seed=seed, device=device) if decided_by is None else decided_by
        return fixed, Resampled(predictor, draws, seed)
    if decided_by is not None:
        raise InvalidInput("a predictor decides for itself; decided_by is for attacks on a posterior. Leave it out.")
    return predictor, None


class _Counter:
    """Counts evaluations of the model and reports how far the attack is.

    An attack ends early where all points are broken; the count then jumps to where it would have ended.
    """

    def __init__(self, report: Report, attacks: Ensemble, batches: int):
        self.report, self.total = report, batches * attacks.evaluations
        self.done = self.ended = 0

    def evaluated(self) -> None:
        """One more evaluation."""
        self.done += 1
        self.report(min(self.done, self.total), self.total)

    def finished(self, attack: Attack) -> None:
        """One more attack on one more batch is over."""
        self.ended += attack.evaluations
        self.done = self.ended
        self.report(self.done, self.total)
