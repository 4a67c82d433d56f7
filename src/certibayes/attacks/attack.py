"""``attack``: the worst inputs that were found, re-judged by the predictor itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from certibayes.attacks.base import Attack
from certibayes.attacks.ensemble import Ensemble
from certibayes.attacks.methods import AnyAttack, as_attack, members
from certibayes.attacks.resampled import Resamplable, Resampled
from certibayes.attacks.result import Attacked
from certibayes.attacks.search import LogProbabilities, Search
from certibayes.errors import InvalidInput
from certibayes.regions import Domain, InputRegion
from certibayes.support.checks import inputs_of, labels_of, require_classes, require_count
from certibayes.support.seeds import derived_seed


def attack(  # noqa: PLR0913 - public
    predictor: nn.Module | Resamplable,
    x: Tensor,
    y: Tensor | None = None,
    *,
    eps: float | Tensor,
    method: AnyAttack | Sequence[AnyAttack] = "pgd",
    norm: str = "linf",
    domain: Domain = None,
    draws: int = 8,
    judge: nn.Module | None = None,
    seed: int = 0,
    batch_size: int = 500,
    progress: Callable[[int, int], None] | None = None,
) -> Attacked:
    """Look for inputs within ``eps`` of ``x`` that are not classified as ``y``.

    Every input that is tried lies in the ball and in the domain, and counts only as the predictor itself classifies
    it. What stands is an upper bound on what can be certified, and no proof.

    Given a posterior instead of a predictor, gradients are those of weights drawn afresh at every step (``draws`` of
    them, averaged as predictions are), as they are for a model that draws new weights at every call. Such a model
    classifies the same input now so and now so; for the result to mean something, inputs are judged by one fixed
    predictor, ``judge``.

    Args:
        predictor: maps inputs (B, ...) to log-probabilities (B, C), such as ``posterior.predictor()``; or a posterior.
        x: inputs (B, ...), inside the domain; a numpy array will do.
        y: labels (B,); the predicted classes by default.
        eps: radius: a number; one per point, (B,); or, for l-infinity, one per input value, (1, *shape) or (B, *shape).
        method: ``"fgsm"``, ``"pgd"``, ``"apgd-ce"``, ``"apgd-dlr"``, ``"square"``; ``"apgd"`` for both Auto-PGDs;
            ``"ensemble"`` for all but FGSM; an object with settings of its own, such as
            ``certibayes.attacks.PGD(steps=100)``; or a list of names and objects. Several run in order, each on the
            points that those before it have not broken.
        norm: of the ball: ``"linf"``, ``"l2"`` or ``"l1"``.
        domain: smallest and largest value of an input, or None; two numbers, or tensors of shape (1, *shape) or
            (B, *shape) where features differ.
        draws: weights drawn at every step, where a posterior is attacked.
        judge: the fixed predictor that decides, where a posterior is attacked; ``posterior.predictor(seed=seed)`` by
            default.
        seed: of starts, of Square, and of fresh weights.
        batch_size: inputs attacked at once.
        progress: called with (looks at the model so far, the most there can be).
    """
    attacks = Ensemble(members(as_attack(method)))
    for value, name in ((draws, "draws"), (batch_size, "batch_size")):
        require_count(value, name)
    if getattr(predictor, "task", "classification") != "classification":
        raise InvalidInput("this predictor does regression; there are no classes to attack.")
    x = inputs_of(x, "the inputs")
    region = InputRegion.around(x, eps, norm, domain)
    decides, guide = _judge_and_guide(predictor, judge, draws, seed, x.device)
    parts = x.split(batch_size)
    with torch.no_grad():
        clean = torch.cat([decides(part) for part in parts])
    require_classes(clean.shape[-1])
    labels = clean.argmax(-1) if y is None else labels_of(y, clean.shape[-1], len(x)).to(x.device)
    if bool(clean.isnan().any()):
        raise InvalidInput(
            "the predictor answers NaN for some inputs; there is nothing to attack. Look at its weights."
        )
    bar = _Bar(progress, attacks, len(parts))
    found, predicted, broken_by = [], [], []
    for number, index in enumerate(torch.arange(len(x), device=x.device).split(batch_size)):
        search = Search(decides, region.take(index), labels[index], guide, bar.tick, clean[index])

        def stream(name: str, number: int = number) -> torch.Generator:
            """Each batch and attack has a stream of its own, so that doing more only ever adds to doing less."""
            return torch.Generator(x.device).manual_seed(derived_seed(seed, "attack", name, number))

        broken_by.append(attacks.run(search, stream, bar.finished))
        found.append(search.best)
        predicted.append(search.predicted)
    inputs, classes = torch.cat(found), torch.cat(predicted)
    return Attacked(
        inputs, labels, classes, classes != labels, region.distance(inputs), torch.cat(broken_by), attacks.names, norm
    )


def _judge_and_guide(
    predictor: nn.Module | Resamplable, judge: nn.Module | None, draws: int, seed: int, device: torch.device
) -> tuple[LogProbabilities, LogProbabilities | None]:
    """Return who decides, and whose gradients are followed where that is someone else."""
    if not isinstance(predictor, nn.Module):
        if not isinstance(predictor, Resamplable):
            raise InvalidInput(
                f"attack takes a module or a posterior, got {type(predictor).__name__}. "
                "Wrap a function in an nn.Module."
            )
        fixed = predictor.predictor(seed=seed, device=device) if judge is None else judge
        return fixed, Resampled(predictor, draws, seed)
    if judge is not None:
        raise InvalidInput("a predictor judges itself; judge is for attacks on a posterior. Leave it out.")
    return predictor, None


class _Bar:
    """Counts looks at the model and tells how far the attack is.

    An attack ends early where all points are broken; the count then jumps to where it would have ended.
    """

    def __init__(self, progress: Callable[[int, int], None] | None, attacks: Ensemble, batches: int):
        self.progress, self.total = progress, batches * attacks.looks
        self.done = self.ended = 0

    def tick(self) -> None:
        """One more look."""
        self.done += 1
        if self.progress is not None:
            self.progress(min(self.done, self.total), self.total)

    def finished(self, attack: Attack) -> None:
        """One more attack on one more batch is over."""
        self.ended += attack.looks
        self.done = self.ended
        if self.progress is not None:
            self.progress(self.done, self.total)
