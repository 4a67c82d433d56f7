"""What moves numbers and changes none."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.orders import fixed_indices, picked
from certibayes.networks.lowering.registry import (
    AfterEach,
    ByShape,
    Chain,
    Lowered,
    Meaning,
    Parts,
    is_number,
    lower_function,
    lower_module,
)

Shape = tuple[int, ...]


@lower_function("contiguous", "clone", "detach")
def _(x: Any, memory_format: Any = None) -> Lowered:
    return Lowered(None, (x,))


@lower_function("to", "float", "double", "half", "bfloat16", "type", "type_as", "cpu", "cuda", "requires_grad_")
def _(x: Any, *arguments: Any, **named: Any) -> Lowered:
    return Lowered(None, (x,))  # of the precision that it has: every other is refused where values are recorded


@lower_function(
    torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze,
    "flatten", "view", "reshape", "squeeze", "unsqueeze", "unflatten", "view_as", "reshape_as",
)  # fmt: skip
def _(x: Any, *shape: Any, **named: Any) -> Lowered:
    return Lowered(None, (x,), reshapes=True)


@lower_module(nn.Flatten, nn.Unflatten)
def _(module: nn.Module) -> tuple[ops.Operation, dict[str, str]]:
    return ops.Reshape(()), {}  # the tracer reads the shape off the example


# Orders of dimensions. Those of calls count the batch as 0, as torch does.


def _dimension(dim: int, shape: Shape) -> int:
    return dim + len(shape) + 1 if dim < 0 else dim


def _permute(x: Any, order: Any) -> Lowered:
    def meaning(shape: Shape) -> Meaning:
        first, *rest = order([*range(len(shape) + 1)])
        if first != 0:
            raise UnsupportedLayer("a permutation moves the dimension of the batch, which must stay the first.")
        return ops.Permute(tuple(rest)) if len(rest) > 1 else None

    return Lowered(ByShape(meaning), (x,))


@lower_function(torch.permute, "permute")
def _(x: Any, *dims: Any) -> Lowered:
    given = list(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else list(dims)
    return _permute(x, lambda order: [order[dim] for dim in given])


@lower_function(torch.transpose, torch.swapaxes, torch.swapdims, "transpose", "swapaxes", "swapdims")
def _transpose(x: Any, dim0: int, dim1: int) -> Lowered:
    def order(dims: list[int]) -> list[int]:
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
        return dims

    return _permute(x, order)


@lower_function(torch.movedim, torch.moveaxis, "movedim", "moveaxis")
def _(x: Any, source: Any, destination: Any) -> Lowered:
    def order(dims: list[int]) -> list[int]:
        sources, places = ([d % len(dims) for d in _all(given)] for given in (source, destination))
        left = iter(dim for dim in dims if dim not in sources)
        return [sources[places.index(place)] if place in places else next(left) for place in dims]

    return _permute(x, order)


def _all(dims: Any) -> tuple[int, ...]:
    return tuple(dims) if isinstance(dims, (tuple, list)) else (dims,)


@lower_function(getattr)
def _(x: Any, name: str) -> Lowered:
    if name in ("data", "real"):
        return Lowered(None, (x,))
    if name != "mT":
        raise UnsupportedLayer(f"x.{name} of an activation moves the dimension of the batch. Use x.mT or permute.")
    return _transpose(x, -2, -1)


# Parts of a tensor


@lower_function(operator.getitem)
def _index(x: Any, index: Any) -> Lowered:
    given = index if isinstance(index, tuple) else (index,)
    return Lowered(ByShape(lambda shape: _sliced(given, shape)), (x,))


def _sliced(index: tuple[Any, ...], shape: Shape) -> Meaning:
    """Return what picks the numbers, and a reshape where a dimension is dropped or added."""
    if any(isinstance(part, fx.Node) and fixed_indices(part) is None for entry in index for part in _bounds_of(entry)):
        raise UnsupportedLayer("an index depends on the input or on the batch size; only constants can be used.")
    known = sum(entry is not None and entry is not Ellipsis for entry in index)
    full = [slice(None)] * (len(shape) + 1 - known)
    if Ellipsis in [entry for entry in index if not isinstance(entry, (list, torch.Tensor))]:
        at = index.index(Ellipsis)
        index = (*index[:at], *full, *index[at + 1 :])
    else:
        index = (*index, *full)
    dims = [entry for entry in index if entry is not None]
    lists = [place for place, entry in enumerate(dims) if not isinstance(entry, (int, slice))]
    if lists:
        (place, *others), indices = lists, fixed_indices(dims[lists[0]])
        whole = all(entry == slice(None) for at, entry in enumerate(dims) if at != place)
        if indices is None or others or place == 0 or not whole or len(dims) != len(index):
            raise UnsupportedLayer(
                "an activation is indexed by a list or a tensor. That has rules for one list of fixed integers and "
                "full slices, as in x[:, [2, 0, 5]], besides numbers and slices, as in x[:, 1:, 0]."
            )
        return picked(place, indices, shape)
    if dims[0] != slice(None):
        raise UnsupportedLayer("an index picks some inputs of the batch; write x[:, ...] to pick numbers of each.")
    ends = []
    for entry, size in zip(dims[1:], shape, strict=True):
        if isinstance(entry, slice):
            start, stop, step = entry.indices(size)
            ends.append((start, max(start, stop), step))
        else:
            ends.append((entry % size, entry % size + 1, 1))
    starts, stops, steps = zip(*ends, strict=True) if ends else ((), (), ())
    plain = all(isinstance(entry, slice) for entry in index)
    if (starts, stops, steps) == ((0,) * len(shape), shape, (1,) * len(shape)):
        return None if plain else ops.Reshape(())
    operation = ops.Slice(starts, stops, steps)
    return operation if plain else Chain(operation, after=(ops.Reshape(()),))


def _bounds_of(entry: Any) -> tuple[Any, ...]:
    return (entry.start, entry.stop, entry.step) if isinstance(entry, slice) else (entry,)


def _along(dim: int, shape: Shape, entry: Any) -> tuple[Any, ...]:
    """Index one dimension, that of the batch being 0."""
    dim = _dimension(dim, shape)
    return (*[slice(None)] * dim, entry)


@lower_function(torch.narrow, "narrow")
def _(x: Any, dim: int, start: int, length: int) -> Lowered:
    return Lowered(ByShape(lambda shape: _sliced(_along(dim, shape, slice(start, start + length)), shape)), (x,))


@lower_function(torch.select, "select")
def _(x: Any, dim: int, index: int) -> Lowered:
    return Lowered(ByShape(lambda shape: _sliced(_along(dim, shape, index), shape)), (x,))


def _pieces(x: Any, dim: int, sizes: Any) -> Lowered:
    def operations(shape: Shape) -> Sequence[Meaning]:
        place = _dimension(dim, shape)
        if place == 0:
            raise UnsupportedLayer("the batch is split into pieces; split another dimension, such as 1.")
        start, found = 0, []
        for size in sizes(shape[place - 1]):
            found.append(_sliced(_along(place, shape, slice(start, start + size)), shape))
            start += size
        return found

    return Lowered(Parts(operations), (x,))


def _equal(total: int, size: int) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]


@lower_function(torch.chunk, "chunk")
def _(x: Any, chunks: int, dim: int = 0) -> Lowered:
    return _pieces(x, dim, lambda total: _equal(total, -(-total // chunks)))


@lower_function(torch.split, "split")
def _(x: Any, split_size: Any, dim: int = 0) -> Lowered:
    return _pieces(x, dim, lambda total: _equal(total, split_size) if is_number(split_size) else split_size)


@lower_function(torch.unbind, "unbind")
def _(x: Any, dim: int = 0) -> Lowered:
    def operations(shape: Shape) -> Sequence[Meaning]:
        size = shape[_dimension(dim, shape) - 1]
        return [_sliced(_along(dim, shape, at), shape) for at in range(size)]

    return Lowered(Parts(operations), (x,))


# Several tensors side by side


@lower_function(torch.cat, torch.concat, torch.concatenate)
def _(tensors: Any, dim: int = 0) -> Lowered:
    inputs = tuple(tensors)
    return Lowered(ByShape(lambda shape: ops.Concatenate(_beside(dim, shape))), inputs)


@lower_function(torch.hstack)
def _(tensors: Any) -> Lowered:
    return Lowered(ops.Concatenate(1), tuple(tensors))


@lower_function(torch.stack)
def _(tensors: Any, dim: int = 0) -> Lowered:
    def meaning(shape: Shape) -> Meaning:
        place = _beside(dim, (*shape, 1))
        if not shape:
            return AfterEach(ops.Reshape((1,)), ops.Concatenate(1))
        if place > len(shape):
            # Along a new last dimension: side by side as rows, then as columns.
            order = (*range(2, len(shape) + 2), 1)
            rows = ops.Reshape((len(tensors), *shape))
            return Chain(ops.Concatenate(1), after=(rows, ops.Permute(order)))
        return Chain(ops.Concatenate(place), after=(ops.Reshape(()),))

    return Lowered(ByShape(meaning), tuple(tensors))


def _beside(dim: int, shape: Shape) -> int:
    if _dimension(dim, shape) == 0:
        raise UnsupportedLayer("tensors are concatenated along the batch; choose another dimension, such as 1.")
    return _dimension(dim, shape)


# Padding and repeating


def _pad(widths: Any, mode: str, value: Any) -> ops.Pad:
    return ops.Pad(tuple(int(width) for width in widths), mode, float(value or 0.0))


@lower_function(functional.pad)
def _(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Lowered:
    if any(isinstance(width, fx.Node) for width in pad):
        raise UnsupportedLayer("the padding depends on the batch size; only constants can be used.")
    return Lowered(_pad(pad, mode, value), (x,))


@lower_module(nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d)
def _(module: Any) -> tuple[ops.Operation, dict[str, str]]:
    return _pad(module.padding, "constant", module.value), {}


@lower_module(nn.ReflectionPad1d, nn.ReflectionPad2d)
def _(module: Any) -> tuple[ops.Operation, dict[str, str]]:
    return _pad(module.padding, "reflect", 0.0), {}


@lower_module(nn.ReplicationPad1d, nn.ReplicationPad2d)
def _(module: Any) -> tuple[ops.Operation, dict[str, str]]:
    return _pad(module.padding, "replicate", 0.0), {}


@lower_module(nn.CircularPad1d, nn.CircularPad2d)
def _(module: Any) -> tuple[ops.Operation, dict[str, str]]:
    return _pad(module.padding, "circular", 0.0), {}


def _upsample(size: Any, scale: Any, mode: str) -> Meaning:
    if mode not in ("nearest", "nearest-exact"):
        raise UnsupportedLayer(
            f"interpolation by {mode!r} has no rules. Use mode='nearest', or nn.ConvTranspose2d with fixed weights."
        )

    def meaning(shape: Shape) -> Meaning:
        sides = shape[1:]
        given = scale if size is None else [new / old for new, old in zip(_each(size, sides), sides, strict=True)]
        factors = [float(factor) for factor in _each(given, sides)]
        if any(factor < 1 or factor != int(factor) for factor in factors):
            raise UnsupportedLayer(f"images of {sides} are resized by {factors}; only whole factors have rules.")
        return ops.Upsample(tuple(int(factor) for factor in factors))

    return ByShape(meaning)


def _each(value: Any, sides: Shape) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value] * len(sides)


@lower_module(nn.Upsample, nn.UpsamplingNearest2d)
def _(module: nn.Upsample) -> tuple[Meaning, dict[str, str]]:
    return _upsample(module.size, module.scale_factor, module.mode), {}


@lower_function(functional.interpolate, functional.upsample)
def _(x: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", **named: Any) -> Lowered:
    if any(isinstance(part, fx.Node) for part in _each(size, (1,))):
        raise UnsupportedLayer("the size of an interpolation depends on the batch; only constants can be used.")
    return Lowered(_upsample(size, scale_factor, mode), (x,))
