"""Where the elements of tensors lie in memory, as kernels of ``support.fused`` look for them.

A kernel counts the elements of its results in the order in which they lie in memory. For element i each tensor has one
rule that says where its own element is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

PACKED = 4
"""Elements that a thread reads at once and computes one after the other, where they lie side by side."""

INDEX = {
    "i": "i",
    "0": "0",
    "%": "i % {b}",
    "/": "(i / {a}) % {b}",
    "+": "(i / {a}) * {b} + i % {a}",
}
"""Rules: in the same place; one value for all; values that come again and again; rows of ``a`` that lie ``b`` apart."""

LETTERS = {"%": "b", "/": "ab", "+": "ab"}
"""Numbers that a rule needs."""


class Place(NamedTuple):
    """A rule for where the element is that belongs to element i of the results.

    Attributes:
        kind: of ``INDEX``.
        a: see there.
        b: see there.
    """

    kind: str
    a: int = 0
    b: int = 0

    @property
    def numbers(self) -> list[int]:
        """Those that the rule needs."""
        return [getattr(self, letter) for letter in LETTERS.get(self.kind, "")]

    @property
    def in_step(self) -> bool:
        """Whether ``PACKED`` neighbors find one value, or as many that follow each other."""
        needed = {"%": [self.b], "/": [self.a], "+": [self.a, self.b]}.get(self.kind, [])
        return all(number % PACKED == 0 for number in needed)


def dense(tensors: Sequence[Tensor]) -> Tensor:
    """Return a tensor, perhaps without memory, of the shape that these broadcast to, with the order of the results.

    It is the order of one that fills its memory without gaps, if there is such a one.
    """
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    whole = [tensor for tensor in tensors if tensor.shape == shape]
    if not whole:
        return torch.empty(shape, dtype=tensors[0].dtype, device="meta")
    return next(filter(is_dense, whole), torch.empty_like(whole[0], device="meta"))


def is_dense(tensor: Tensor) -> bool:
    """Tell whether a tensor fills its memory without gaps, in whatever order of its dimensions."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor in a form for which there is a rule where to find its elements."""
    if place_of(tensor, like) is not None:
        return tensor
    copy = tensor.contiguous()
    if tensor.shape != like.shape and place_of(copy, like) is not None:
        return copy
    return torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def place_of(tensor: Tensor, like: Tensor) -> Place | None:
    """Return the rule for where element i of ``like``, which is dense, finds its value; None if there is none."""
    if tensor.shape == like.shape:
        return _same_shape(tensor, like)
    if tensor.numel() == 1:
        return Place("0")
    sizes = (1,) * (like.dim() - tensor.dim()) + tensor.shape
    varying = [d for d, size in enumerate(sizes) if size > 1]
    strides = [like.stride(d) for d in varying]
    # One dimension, or several that lie next to each other in memory, over which the tensor varies.
    adjacent = strides == sorted(strides, reverse=True)
    if not (adjacent and tensor.is_contiguous() and strides[0] * sizes[varying[0]] == strides[-1] * tensor.numel()):
        return None
    return Place("%", b=tensor.numel()) if strides[-1] == 1 else Place("/", strides[-1], tensor.numel())


def _same_shape(tensor: Tensor, like: Tensor) -> Place | None:
    """Return the rule for a tensor of the same shape: in the same order, or in rows that do not touch."""
    counted = [d for d, size in enumerate(like.shape) if size > 1]
    mine, theirs = ([each.stride(d) for d in counted] for each in (tensor, like))
    if mine == theirs or not like.numel():
        return Place("i")
    row = like.numel() // like.shape[counted[0]]
    fits = mine[1:] == theirs[1:] and theirs[0] == row
    return Place("+", row, mine[0]) if fits and mine[0] * like.shape[counted[0]] < 2**31 else None


def side_by_side(tensors: Sequence[Tensor], places: Sequence[Place]) -> bool:
    """Tell whether every ``PACKED`` neighbors lie side by side where a GPU can read them at once, or in one place."""
    starts = [tensor for tensor, place in zip(tensors, places, strict=True) if place.kind != "0"]
    whole = max(tensor.numel() for tensor in tensors) % PACKED == 0
    aligned = all(tensor.data_ptr() % (PACKED * tensor.element_size()) == 0 for tensor in starts)
    return whole and aligned and all(place.in_step for place in places)
