r"""Balls of the l2 and l1 norms, and the smallest value of a linear function over a ball that a box cuts.

A linear function A x over {c + u : ||u||_p <= ρ} is smallest at A c - ρ ||A||_q, with 1/p + 1/q = 1 (Hölder): q = 2
for the l2 ball and q = ∞ for the l1 ball. Inputs lie in a box as well, such as the pixels' domain, and a black pixel
cannot become blacker. Both are used at once: for any split A = A' + A'',

    A x  =  A' x + A'' x  >=  A c - Σ |A'_i| d_i - ρ ||A''||_q,

where d_i is the room that the box leaves x_i on the side on which A_i x_i falls. This is weak duality: any split is
sound, and the best one gives the minimum over the intersection. It is

    |A''_i| = min(|A_i|, λ d_i)  for l2,        |A''_i| = min(|A_i|, θ)  for l1,

with the level λ or θ at which the attacker's budget is spent: he moves x_i by min(d_i, |A_i| / λ) in l2, and in l1
fills the rooms of the largest |A_i| first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

ROUNDS = 6
"""Of the search for λ. It is exact when the set of coordinates at their walls no longer grows, mostly after fewer."""

HALVINGS = 14
"""Of the search for θ."""

UNDERFLOW = 1e-300
"""Added to sums of squares: their underflow error (fewer than 2²¹ terms)."""

NARROW = 1e-100
"""Smallest scale; a larger ball than the true one is sound, and its square can be divided by."""


@dataclass(frozen=True)
class Ball:
    """All points c + s u + v with ||u||_p <= ρ and |v| <= e, coordinate by coordinate; everything in float64.

    Attributes:
        center: c, (B, ...).
        radius: ρ, (B,).
        norm: ``"l2"`` or ``"l1"``.
        scale: s, (1, ...), at least ``NARROW``: how far layers have stretched each coordinate.
        slack: e, (B, ...) or (1, ...): how far rounding may have moved it.
    """

    center: Tensor
    radius: Tensor
    norm: str
    scale: Tensor
    slack: Tensor

    def take(self, index: Tensor | slice) -> Ball:
        """Return the balls of some points."""
        slack = self.slack if len(self.slack) == 1 and len(self.center) != 1 else self.slack[index]
        return replace(self, center=self.center[index], radius=self.radius[index], slack=slack)

    def cost(self, magnitudes: Tensor, room: Tensor) -> Tensor:
        """Bound how far a linear function can fall below its value at the center, (B, S); differentiable.

        Rounding is left to the caller: every term is positive, so it is relative.

        Args:
            magnitudes: |A|, (B, S, n).
            room: d, (B, S, n).
        """
        scale, held = self._flat_scale(), magnitudes.detach()
        stretched, space = held * scale, room / scale
        on_ball = torch.minimum(stretched, self._allowance(stretched, space))
        on_box = ((stretched - on_ball) * space).sum(-1)
        value = on_box + self.radius[:, None] * self.dual(on_ball)
        if not torch.is_grad_enabled():
            return value
        # It is the largest Σ |A_i| t_i that moves t in ball and box can make, so its slope is those moves.
        return value + ((magnitudes - held) * self.moves(held, room)).sum(-1)

    def dual(self, magnitudes: Tensor) -> Tensor:
        """||.||_q over the last dimension."""
        if self.norm == "l1":
            return magnitudes.amax(-1)
        # Not torch's norm: squares that underflow must not be lost.
        return (magnitudes.square().sum(-1) + UNDERFLOW).sqrt()

    def moves(self, magnitudes: Tensor, room: Tensor) -> Tensor:
        """Return how far the attacker of ``cost`` moves each coordinate, (B, S, n); up to rounding inside the ball."""
        scale = self._flat_scale()
        stretched, space = magnitudes * scale, room / scale
        if self.norm == "l2":
            return torch.minimum(space, stretched / self._slope(stretched, space).clamp(min=UNDERFLOW)) * scale
        order = stretched.argsort(dim=-1, descending=True)
        filled = space.gather(-1, order)
        left = self.radius[:, None, None] - (filled.cumsum(-1) - filled)
        return torch.zeros_like(space).scatter(-1, order, torch.minimum(left.clamp(min=0.0), filled)) * scale

    def _flat_scale(self) -> Tensor:
        return self.scale.flatten(1)[:, None]

    def _allowance(self, magnitudes: Tensor, room: Tensor) -> Tensor:
        """How much of each coefficient is bounded by the ball at most; the rest is bounded by the box."""
        if self.norm == "l2":
            return self._slope(magnitudes, room) * room
        return self._level(magnitudes, room)

    def _slope(self, magnitudes: Tensor, room: Tensor) -> Tensor:
        """Find λ with Σ min(d_i, |A_i| / λ)² = ρ², from above: each round only adds coordinates at their walls.

        Any λ is sound, so it is looked for in float32, with coefficients in units of the largest and rooms in units of
        ρ, beyond which none is needed.
        """
        largest = magnitudes.amax(-1, keepdim=True).clamp(min=NARROW)
        reach = self.radius[:, None, None].clamp(min=NARROW)
        relative, space = (magnitudes / largest).float(), (room / reach).clamp(max=1.0).float()
        squares, walls = relative.square(), space.square()
        slope, every = squares.sum(-1, keepdim=True).sqrt(), walls.sum(-1, keepdim=True)
        for _ in range(ROUNDS):
            inside = (relative < slope * space).float()
            left = 1 - every + torch.linalg.vecdot(walls, inside)[..., None]
            total = torch.linalg.vecdot(squares, inside)[..., None]
            slope = torch.minimum(slope, (total / left.clamp(min=1e-30)).sqrt())
        return slope.double() * (largest / reach)

    def _level(self, magnitudes: Tensor, room: Tensor) -> Tensor:
        """Find θ, the largest |A_i| whose room is not filled when those above it are, by halving; 0 where all are.

        Any θ is sound, so it is looked for in float32, as λ is.
        """
        largest, reach = magnitudes.amax(-1, keepdim=True), self.radius[:, None, None].clamp(min=NARROW)
        relative, space = (magnitudes / largest.clamp(min=NARROW)).float(), (room / reach).clamp(max=1.0).float()
        low, high = torch.full_like(relative[..., :1], -1e-6), torch.ones_like(relative[..., :1])
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            spent = torch.linalg.vecdot(space, (relative > middle).float())[..., None]
            low, high = torch.where(spent < 1, low, middle), torch.where(spent < 1, middle, high)
        # What is below ``low`` is not needed, what is above ``high`` is: the largest in between is exact.
        return magnitudes.masked_fill(relative > high, 0.0).amax(-1, keepdim=True)
