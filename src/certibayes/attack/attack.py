"""``attack``: the worst inputs that were found, re-judged by the predictor itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from certibayes.attack.pgd import PGDSettings, pgd
from certibayes.bounds import Domain
from certibayes.bounds.checks import require_count, require_domain, require_floats, require_labels, require_radius
from certibayes.errors import InvalidInput
from certibayes.networks.seeds import derived_seed


@dataclass(frozen=True)
class Attacked:
    """The outcome of an attack: an upper bound on robustness, never a proof of it.

    Attributes:
        inputs: the worst inputs found, inside ball and domain, (B, ...).
        labels: what each input should be classified as, (B,).
        predicted: what the attacked inputs are classified as, (B,).
        success: where the two differ, (B,); misclassified clean inputs count.
    """

    inputs: Tensor
    labels: Tensor
    predicted: Tensor
    success: Tensor

    @property
    def standing(self) -> float:
        """Fraction of all points still classified as their label."""
        return float((~self.success).double().mean()) if len(self.success) else 0.0


def attack(
    predictor: nn.Module,
    x: Tensor,
    y: Tensor | None = None,
    *,
    eps: float,
    method: str = "pgd",
    domain: Domain = None,
    steps: int = 40,
    restarts: int = 4,
    seed: int = 0,
    batch_size: int = 500,
) -> Attacked:
    """Look for inputs within ``eps`` (l-infinity) of ``x`` that are not classified as ``y``.

    Args:
        predictor: maps inputs (B, ...) to log-probabilities (B, C), such as ``posterior.predictor()``.
        x: inputs (B, ...), inside the domain.
        y: labels (B,); the predicted classes by default.
        eps: radius.
        method: ``"pgd"``.
        domain: smallest and largest value of an input, or None.
        steps: iterations a restart.
        restarts: starts; the first is the point itself, the others are random.
        seed: of the starts.
        batch_size: inputs attacked at once.
    """
    if method != "pgd":
        raise InvalidInput(f'method must be "pgd", got {method!r}.')
    if getattr(predictor, "task", "classification") != "classification":
        raise InvalidInput("this predictor does regression; there are no classes to attack.")
    require_radius(eps)
    require_count(batch_size, "batch_size")
    require_floats(x, "the inputs")
    require_domain(x, domain)
    with torch.no_grad():
        clean = torch.cat([predictor(part) for part in x.split(batch_size)])
    labels = clean.argmax(-1) if y is None else y.to(x.device)
    require_labels(labels, clean.shape[-1], len(x))
    settings = PGDSettings(steps, restarts)
    found, predicted = [], []
    for index, (part, part_labels) in enumerate(zip(x.split(batch_size), labels.split(batch_size), strict=True)):
        # A stream of its own for each batch, so that more restarts only ever add to fewer.
        generator = torch.Generator(x.device).manual_seed(derived_seed(seed, "attack", index))
        worst = pgd(predictor, part, part_labels, eps, domain, generator, settings)
        found.append(worst)
        with torch.no_grad():
            predicted.append(predictor(worst).argmax(-1))
    classes = torch.cat(predicted)
    return Attacked(torch.cat(found), labels, classes, classes != labels)
