"""Square (Andriushchenko et al., 2020): random search, without gradients, so that masked gradients cannot stop it.

From a start on the border of the ball, each query changes the perturbation δ inside one random window W and keeps the
change where the margin loss grew:

    l-infinity:  δ_W = ± r, one sign per channel;
    l2, l1:      δ is cleared in W and in a second window, and what this leaves of the radius goes into W,
                 along ± 1 / ‖1‖ + δ_W / ‖δ_W‖.

The fraction of the input that a window covers is halved as queries are used up. A window is a square of an image
(B, C, H, W); of inputs without rows and columns it is a random set of values, each with a sign of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from certibayes.attacks.base import Attack
from certibayes.attacks.search import Search
from certibayes.errors import InvalidInput
from certibayes.regions import InputRegion
from certibayes.support.checks import require_count

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Of 10,000 queries, those after which windows cover half as much."""


@dataclass(frozen=True)
class Square(Attack):
    """Square: random search, which asks the model for values and never for a gradient.

    Attributes:
        queries: inputs tried for each point.
        fraction: of the input that the first windows cover, from 0 to 1.
    """

    queries: int = 500
    fraction: float = 0.8

    def __post_init__(self) -> None:
        require_count(self.queries, "queries")
        if not 0.0 < self.fraction <= 1.0:
            raise InvalidInput(f"fraction must be above 0 and at most 1, got {self.fraction}.")

    @property
    def name(self) -> str:
        """See ``Attack``."""
        return "square"

    @property
    def evaluations(self) -> int:
        """See ``Attack``."""
        return self.queries

    @torch.no_grad()
    def run(self, search: Search, generator: torch.Generator) -> None:
        """Search around every point; those that are broken are left alone."""
        index = search.unbroken()
        if index.numel() == 0:
            return
        place = search.region.take(index)
        x = _stripes(search.region, generator)[index]
        value = search.evaluate(index, x)
        for query in range(1, self.queries):
            fraction = self.fraction / 2 ** sum(10_000 * query > halving * self.queries for halving in HALVINGS)
            # Drawn for the whole batch: what is tried on a point does not depend on which others are broken.
            window, other = (_window(search.region.center, fraction, generator)[index] for _ in range(2))
            signs = _signs(search.region.center, generator)[index]
            unbroken = value <= 0
            if not bool(unbroken.all()):
                index, x, value, place = index[unbroken], x[unbroken], value[unbroken], place.take(unbroken)
                window, other, signs = window[unbroken], other[unbroken], signs[unbroken]
                if index.numel() == 0:
                    return
            tried = place.project(_changed(place, x, window, other, signs))
            found = search.evaluate(index, tried)
            better = found > value
            value = torch.where(better, found, value)
            x = torch.where(better.view(-1, *[1] * (x.dim() - 1)), tried, x)


def _changed(place: InputRegion, x: Tensor, window: Tensor, other: Tensor, signs: Tensor) -> Tensor:
    """Return inputs that differ from ``x`` in a window; not yet projected."""
    if place.norm == "linf":
        return torch.where(window, place.center + signs * place.radius.to(x.dtype), x)
    away = x.double() - place.center.double()
    rest = torch.where(window | other, 0.0, away)
    used = _norm(rest, place.norm)
    left = place.radius - used if place.norm == "l1" else (place.radius.square() - used.square()).clamp(min=0.0).sqrt()
    inside = torch.where(window, away, 0.0)
    filled = _scaled(window * signs.double(), place.norm) + _scaled(inside, place.norm)
    return (place.center.double() + rest + left.clamp(min=0.0) * _scaled(filled, place.norm)).to(x.dtype)


def _stripes(region: InputRegion, generator: torch.Generator) -> Tensor:
    """Return the starts: vertical stripes of random sign, scaled to the border of the ball and projected."""
    x = region.center
    shape = (len(x), x.shape[1], 1, x.shape[3]) if x.dim() == 4 else x.shape
    stripes = _coins(shape, x, generator).expand(x.shape)
    if region.norm != "linf":
        stripes = _scaled(stripes.double(), region.norm)
    return region.project((x + region.radius * stripes).to(x.dtype))


def _window(x: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Return a mask, (B, 1, H, W) for images and (B, ...) otherwise, that covers ``fraction`` of each input."""
    if x.dim() != 4:
        flat = torch.rand((len(x), x[0].numel()), generator=generator, device=x.device)
        covered = max(1, round(fraction * flat.shape[-1]))
        return (flat <= flat.kthvalue(covered, -1, keepdim=True).values).view_as(x)
    height, width = x.shape[2:]
    side = max(1, min(height, width, round((fraction * height * width) ** 0.5)))
    corner = torch.rand((len(x), 2), generator=generator, device=x.device)
    masks = []
    for axis, length in enumerate((height, width)):
        first = (corner[:, axis : axis + 1] * (length - side + 1)).floor().clamp(max=length - side)
        position = torch.arange(length, device=x.device)
        masks.append((position >= first) & (position < first + side))
    return masks[0][:, None, :, None] & masks[1][:, None, None, :]


def _signs(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return signs for a window: one per channel of an image, one per value of other inputs."""
    return _coins((*x.shape[:2], 1, 1) if x.dim() == 4 else x.shape, x, generator)


def _coins(shape: tuple[int, ...], x: Tensor, generator: torch.Generator) -> Tensor:
    heads = torch.rand(shape, generator=generator, device=x.device) < 0.5
    return torch.where(heads, 1.0, -1.0).to(x.dtype)


def _norm(values: Tensor, norm: str) -> Tensor:
    """Return the l2 or l1 norm of each input, (B, 1, ...)."""
    norms = values.flatten(1).norm(p=1 if norm == "l1" else 2, dim=-1)
    return norms.view(-1, *[1] * (values.dim() - 1))


def _scaled(values: Tensor, norm: str) -> Tensor:
    """Scale each input to a norm of 1; 0 stays 0."""
    norms = _norm(values, norm)
    return values / torch.where(norms > 0, norms, 1.0)
