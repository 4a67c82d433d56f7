"""What picks, repeats and shuffles numbers: it becomes slices side by side, copies, and orders of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.registry import Beside, ByShape, Chain, Lowered, Meaning, lower_function, lower_module

Shape = tuple[int, ...]


def picked(dim: int, indices: Sequence[int], shape: Shape) -> Meaning:
    """Return what picks numbers along one dimension, by slices.

    Args:
        dim: that of the batch is 0.
        indices: of what is picked, in order; negative ones count from the end.
        shape: of one example.
    """
    size = shape[dim - 1]
    slices = []
    for start, stop, step in _runs([index % size for index in indices]):
        place = dim - 1
        starts = tuple(start if d == place else 0 for d in range(len(shape)))
        stops = tuple(stop if d == place else s for d, s in enumerate(shape))
        steps = tuple(step if d == place else 1 for d in range(len(shape)))
        slices.append(ops.Slice(starts, stops, steps))
    return slices[0] if len(slices) == 1 else Beside(tuple(slices), dim)


def _runs(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Cut a list into slices: ``[0, 2, 4, 3]`` is ``0:5:2`` and ``3:4:1``."""
    runs: list[list[int]] = []
    for index in indices:
        run = runs[-1] if runs else []
        step = run[1] - run[0] if len(run) > 1 else max(1, index - run[0]) if run else 0
        if run and index - run[-1] == step:
            run.append(index)
        else:
            runs.append([index])
    return [(run[0], run[-1] + 1, run[1] - run[0] if len(run) > 1 else 1) for run in runs]


def fixed_indices(value: Any) -> list[int] | None:
    """Return what a list, a tensor or a buffer of indices, or of truth values, picks; None of anything else."""
    if isinstance(value, fx.Node):
        value = value.meta.get("value")
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(entry, int) for entry in value):
        return None
    if isinstance(value[0], bool):
        return [place for place, entry in enumerate(value) if entry] or None
    return list(value)


def _dimension(dim: int, shape: Shape) -> int:
    place = dim + len(shape) + 1 if dim < 0 else dim
    if place == 0:
        raise UnsupportedLayer(
            "numbers are picked, repeated or turned round along the batch; choose another dimension."
        )
    return place


@lower_function(torch.index_select, "index_select")
def _(x: Any, dim: int, index: Any) -> Lowered:
    indices = fixed_indices(index)
    if indices is None:
        raise UnsupportedLayer("index_select needs indices that are fixed: a buffer of integers.")
    return Lowered(ByShape(lambda shape: picked(_dimension(dim, shape), indices, shape)), (x,))


def _one(value: Any, what: str) -> int:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(numbers) != 1:
        raise UnsupportedLayer(f"{what} along several dimensions at once has no rules; write one call for each.")
    return int(numbers[0])


@lower_function(torch.flip, "flip")
def _(x: Any, *dims: Any, **named: Any) -> Lowered:
    given = named.get("dims", dims[0] if len(dims) == 1 else dims)
    dim = _one(given, "flip")

    def meaning(shape: Shape) -> Meaning:
        place = _dimension(dim, shape)
        return picked(place, range(shape[place - 1] - 1, -1, -1), shape)

    return Lowered(ByShape(meaning), (x,))


@lower_function(torch.fliplr, "fliplr")
def _(x: Any) -> Lowered:
    return Lowered(ByShape(lambda shape: picked(1, range(shape[0] - 1, -1, -1), shape)), (x,))


@lower_function(torch.roll, "roll")
def _(x: Any, shifts: Any, dims: Any) -> Lowered:
    shift, dim = _one(shifts, "roll"), _one(dims, "roll")

    def meaning(shape: Shape) -> Meaning:
        place = _dimension(dim, shape)
        return picked(place, [index - shift for index in range(shape[place - 1])], shape)

    return Lowered(ByShape(meaning), (x,))


@lower_function(torch.tile, "repeat", "tile")
def _(x: Any, *counts: Any) -> Lowered:
    given = tuple(counts[0]) if len(counts) == 1 and isinstance(counts[0], (tuple, list)) else counts
    many = [dim for dim, count in enumerate(given) if isinstance(count, fx.Node) or count != 1]
    if len(many) != 1 or many[0] == 0 or isinstance(given[many[0]], fx.Node):
        raise UnsupportedLayer(
            "repeat has rules for a fixed number of copies along one dimension that is not the batch's, as in "
            "x.repeat(1, 2, 1)."
        )

    def meaning(shape: Shape) -> Meaning:
        if len(given) != len(shape) + 1:
            raise UnsupportedLayer("repeat adds dimensions in front of the batch; use unsqueeze(1) first.")
        return ops.Concatenate(many[0])

    return Lowered(ByShape(meaning), (x,) * int(given[many[0]]))


@lower_function(torch.repeat_interleave, "repeat_interleave")
def _(x: Any, repeats: int, dim: int) -> Lowered:
    def meaning(shape: Shape) -> Meaning:
        place = _dimension(dim, shape) - 1
        return ops.Upsample(tuple(repeats if d == place else 1 for d in range(len(shape))))

    return Lowered(ByShape(meaning), (x,))


@lower_function("expand", "broadcast_to", torch.broadcast_to)
def _expand(x: Any, *sizes: Any) -> Lowered:
    given = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes

    def meaning(shape: Shape) -> Meaning:
        wanted = given[1:]
        if len(wanted) != len(shape) or any(isinstance(size, fx.Node) for size in wanted):
            raise UnsupportedLayer(
                "expand needs a fixed size for each dimension of an example, -1 in front for the batch; x.expand_as(y) "
                "takes the shape of another."
            )
        return ops.Upsample(
            tuple(1 if new in (-1, old) else new // old for old, new in zip(shape, wanted, strict=True))
        )

    return Lowered(ByShape(meaning), (x,))


@lower_function("expand_as")
def _(x: Any, other: Any) -> Lowered:
    return _expand(x, *(other.meta["shape"] or ()))


# Channels and pixels change places: an order of dimensions between two reshapes.


def _shuffled(parts: Any, order: tuple[int, ...]) -> Meaning:
    return ByShape(
        lambda shape: Chain(ops.Permute(order), before=(ops.Reshape(parts(*shape)),), after=(ops.Reshape(()),))
    )


def _pixel_shuffle(r: int) -> Meaning:
    return _shuffled(lambda c, h, w: (c // r**2, r, r, h, w), (1, 4, 2, 5, 3))


def _pixel_unshuffle(r: int) -> Meaning:
    return _shuffled(lambda c, h, w: (c, h // r, r, w // r, r), (1, 3, 5, 2, 4))


@lower_module(nn.PixelShuffle)
def _(module: nn.PixelShuffle) -> tuple[Meaning, dict[str, str]]:
    return _pixel_shuffle(module.upscale_factor), {}


@lower_function(functional.pixel_shuffle)
def _(x: Any, upscale_factor: int) -> Lowered:
    return Lowered(_pixel_shuffle(upscale_factor), (x,))


@lower_module(nn.PixelUnshuffle)
def _(module: nn.PixelUnshuffle) -> tuple[Meaning, dict[str, str]]:
    return _pixel_unshuffle(module.downscale_factor), {}


@lower_function(functional.pixel_unshuffle)
def _(x: Any, downscale_factor: int) -> Lowered:
    return Lowered(_pixel_unshuffle(downscale_factor), (x,))


@lower_module(nn.ChannelShuffle)
def _(module: nn.ChannelShuffle) -> tuple[Meaning, dict[str, str]]:
    g = module.groups
    return _shuffled(lambda c, *sides: (g, c // g, *sides), (2, 1, 3, 4)), {}
