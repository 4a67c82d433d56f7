"""``attack_regression``: how far a prediction was moved by inputs of the ball that were found.

For every output k, projected gradient descent (Madry et al., 2018) climbs f_k and -f_k over the ball:

    z ← Π( z ± step(∇ f_k(z)) ),   from the point itself and from random starts,

and the best of all iterates is kept. The range that is found lies inside the one that ``certify_regression`` proves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from certibayes.attacks._batch import batch_size_for
from certibayes.attacks.pgd import PGD
from certibayes.data.points import points_for
from certibayes.errors import InvalidInput
from certibayes.regions import Domain, InputRegion, radii_by_name, require_radius_within, resolve_domain
from certibayes.support.checks import inputs_of, require_count
from certibayes.support.progress import Report, reporting
from certibayes.support.seeds import derived_seed


@dataclass(frozen=True, eq=False)
class AttackedRegression:
    """The outcome of an attack on a regression: a lower bound on how far predictions can move, never a proof.

    Attributes:
        predicted: the prediction at each point, (B, outputs).
        lower: the smallest output that was found, (B, outputs).
        upper: the largest.
        lower_inputs: the inputs that give them, inside ball and domain, (B, outputs, *shape).
        upper_inputs: likewise.
        reference: targets, or the prediction where none were given, (B, outputs).
        norm: ``"linf"``, ``"l2"`` or ``"l1"``.
    """

    predicted: Tensor
    lower: Tensor
    upper: Tensor
    lower_inputs: Tensor
    upper_inputs: Tensor
    reference: Tensor
    norm: str

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.predicted)

    def __repr__(self) -> str:
        shift = torch.maximum(self.upper - self.predicted, self.predicted - self.lower)
        mean = float(shift.mean()) if len(self) else 0.0
        return f"AttackedRegression({len(self)} points, {self.norm}; predictions moved by {mean:.4g} on average)"

    @property
    def deviation(self) -> Tensor:
        """The largest deviation from the reference that was found, (B, outputs)."""
        return torch.maximum((self.upper - self.reference).abs(), (self.lower - self.reference).abs())

    def robust_fraction(self, tolerance: float) -> float:
        """Fraction of points whose outputs were nowhere found further than ``tolerance`` from the reference."""
        return float((self.deviation <= tolerance).all(-1).double().mean()) if len(self) else 0.0


def attack_regression(  # noqa: PLR0913 - public
    predictor: nn.Module,
    x: Any,
    y: Any = None,
    *,
    eps: Any,
    method: PGD = PGD(steps=40, restarts=2),  # noqa: B008 - frozen
    norm: str = "linf",
    domain: Domain | Literal["predictor"] = "predictor",
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool | Report = False,
) -> AttackedRegression:
    """Look for inputs within ``eps`` of ``x`` that move the predictive mean as far as possible, up and down.

    Args:
        predictor: of a posterior that was fitted to targets of floats; or any module, inputs (B, ...) -> (B, outputs).
        x: inputs (B, ...), inside the domain; as ``attack`` takes them.
        y: targets (B, outputs), if deviations are to be measured from them; by default from the prediction at x.
        eps: radius; as ``attack`` takes it.
        method: steps, restarts and step size of the climb.
        norm: of the ball: ``"linf"``, ``"l2"`` or ``"l1"``.
        domain: values that inputs can take; by default the predictor's own.
        seed: of random starts.
        batch_size: inputs attacked at once.
        progress: True for a bar, False for none, or a function of (points done, all points).

    Raises:
        InvalidInput: the predictor does no regression, or points, targets or settings cannot be used.
    """
    if not isinstance(predictor, nn.Module) or getattr(predictor, "task", "regression") != "regression":
        raise InvalidInput(
            f"attack_regression takes a regression predictor, not {type(predictor).__name__}; classes are attacked by "
            "attack."
        )
    if not isinstance(method, PGD):
        raise InvalidInput(f"a regression is attacked by PGD, such as attacks.PGD(steps=100); got {method!r}.")
    if batch_size is not None:
        require_count(batch_size, "batch_size")
    points = points_for(predictor, x, y)
    if isinstance(eps, Mapping):
        eps = radii_by_name(points.features, eps)
    x = inputs_of(points.x, "the inputs")
    like = next((t for t in (*predictor.parameters(), *predictor.buffers()) if t.is_floating_point()), x)
    x = x.to(like.device, like.dtype)
    known = resolve_domain(domain, predictor)
    region = InputRegion.around(x, eps, norm, known)
    require_radius_within(known, eps, norm)
    with torch.no_grad():
        predicted = predictor(x)
    reference = predicted if points.y is None else inputs_of(points.y, "the targets").to(predicted)
    if reference.dim() == 1 and predicted.shape[1] == 1:
        reference = reference[:, None]
    if reference.shape != predicted.shape:
        raise InvalidInput(f"targets must be {tuple(predicted.shape)}, got {tuple(reference.shape)}.")
    outputs = predicted.shape[1]
    at_once = batch_size or batch_size_for(predictor, x.device)
    ends: dict[float, list[tuple[Tensor, Tensor]]] = {-1.0: [], 1.0: []}
    with reporting(progress, "attacking") as report:
        for number, start in enumerate(range(0, len(x), at_once)):
            part = region.take(slice(start, start + at_once))
            for sign, found in ends.items():
                climbed = [_climb(predictor, part, sign, k, method, seed, number) for k in range(outputs)]
                values, inputs = zip(*climbed, strict=True)
                found.append((torch.stack(values, 1), torch.stack(inputs, 1)))
            report(start + len(part), len(x))
    empty = predicted, x[:, None].expand(-1, outputs, *x.shape[1:])
    (lower, lower_inputs), (upper, upper_inputs) = (
        tuple(torch.cat(column) for column in zip(*found, strict=True)) if found else empty for found in ends.values()
    )
    return AttackedRegression(predicted, lower, upper, lower_inputs, upper_inputs, reference, norm)


def _climb(
    predictor: nn.Module, region: InputRegion, sign: float, k: int, method: PGD, seed: int, number: int
) -> tuple[Tensor, Tensor]:
    """Return the most extreme value of one output that was found, (B,), and its inputs, (B, *shape)."""
    device = region.center.device
    generator = torch.Generator(device).manual_seed(derived_seed(seed, "attack", "regression", f"{sign}/{k}/{number}"))
    best = torch.full((len(region),), -torch.inf, dtype=region.center.dtype, device=device)
    best_inputs = region.center.clone()
    for restart in range(method.restarts):
        z = region.center if restart == 0 else region.sample(generator)
        for step in range(method.steps + 1):
            z = z.detach().requires_grad_()
            value = sign * predictor(z)[:, k]
            better = value.detach() > best
            best = torch.where(better, value.detach(), best)
            best_inputs = torch.where(better.view(-1, *[1] * (z.dim() - 1)), z.detach(), best_inputs)
            if step < method.steps:
                (gradient,) = torch.autograd.grad(value.sum(), z)
                z = region.project(z.detach() + region.steepest_step(z.detach(), gradient, method.relative_step))
    return sign * best, best_inputs
