"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.registry import (
    AfterEach,
    ByShape,
    Chain,
    Lowered,
    Meaning,
    Parts,
    is_constant,
    lower_function,
    lower_module,
    pair,
)


@lower_module(nn.MaxPool2d)
def _(module: nn.MaxPool2d) -> tuple[Meaning, dict[str, str]]:
    return _max_pool(
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        module.ceil_mode,
        module.return_indices,
    ), {}


@lower_module(nn.AvgPool2d)
def _(module: nn.AvgPool2d) -> tuple[Meaning, dict[str, str]]:
    return _avg_pool(
        module.kernel_size,
        module.stride,
        module.padding,
        module.ceil_mode,
        module.count_include_pad,
        module.divisor_override,
    ), {}


@lower_module(nn.AdaptiveAvgPool2d)
def _(module: nn.AdaptiveAvgPool2d) -> tuple[Meaning, dict[str, str]]:
    return _adaptive_avg_pool(module.output_size), {}


def _max_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> ops.MaxPool2d:
    if return_indices:
        raise UnsupportedLayer("max_pool2d with return_indices=True has no bounds.")
    kernel = pair(kernel_size)
    return ops.MaxPool2d(kernel, pair(stride) if stride else kernel, pair(padding), pair(dilation), ceil_mode)


@lower_module(nn.MaxPool1d)
def _(module: nn.MaxPool1d) -> tuple[Meaning, dict[str, str]]:
    numbers = (module.kernel_size, module.stride, module.padding, module.dilation)
    return _max_pool1d(*numbers, module.ceil_mode, module.return_indices), {}


@lower_module(nn.AvgPool1d)
def _(module: nn.AvgPool1d) -> tuple[Meaning, dict[str, str]]:
    numbers = (module.kernel_size, module.stride, module.padding)
    return _avg_pool1d(*numbers, module.ceil_mode, module.count_include_pad), {}


@lower_module(nn.AdaptiveAvgPool1d)
def _(module: nn.AdaptiveAvgPool1d) -> tuple[Meaning, dict[str, str]]:
    return _adaptive_avg_pool1d(module.output_size), {}


@lower_module(nn.AdaptiveMaxPool1d)
def _(module: nn.AdaptiveMaxPool1d) -> tuple[Meaning, dict[str, str]]:
    return _adaptive_max_pool(module.output_size, module.return_indices), {}


@lower_module(nn.AdaptiveMaxPool2d)
def _(module: nn.AdaptiveMaxPool2d) -> tuple[Meaning, dict[str, str]]:
    return _adaptive_max_pool(module.output_size, module.return_indices), {}


@lower_function(functional.max_pool2d, torch.max_pool2d)
def _(x: Any, *settings: Any, **named: Any) -> Lowered:
    return Lowered(_max_pool(*settings, **named), (x,))


def _avg_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> ops.AvgPool2d:
    kernel = pair(kernel_size)
    return ops.AvgPool2d(
        kernel, pair(stride) if stride else kernel, pair(padding), ceil_mode, count_include_pad, divisor_override
    )


@lower_function(functional.avg_pool2d)
def _(x: Any, *settings: Any, **named: Any) -> Lowered:
    return Lowered(_avg_pool(*settings, **named), (x,))


def _adaptive_avg_pool(output_size: Any) -> ops.AdaptiveAvgPool2d:
    size = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    return ops.AdaptiveAvgPool2d((size[0], size[1]))


@lower_function(functional.adaptive_avg_pool2d)
def _(x: Any, output_size: Any) -> Lowered:
    return Lowered(_adaptive_avg_pool(output_size), (x,))


# Sequences are images of one row.


def _on_row(pool: ops.Operation) -> Meaning:
    def meaning(shape: tuple[int, ...]) -> Meaning:
        if len(shape) != 2:
            raise UnsupportedLayer(f"a pooling of sequences (batch, channels, length) reads shape {shape}.")
        return Chain(pool, before=(ops.Reshape((shape[0], 1, shape[1])),), after=(ops.Reshape(()),))

    return ByShape(meaning)


def _one(value: Any) -> int:
    return pair(value)[0]


def _max_pool1d(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Meaning:
    if return_indices:
        raise UnsupportedLayer("max_pool1d with return_indices=True has no bounds.")
    kernel, step = _one(kernel_size), _one(stride) if stride else _one(kernel_size)
    return _on_row(ops.MaxPool2d((1, kernel), (1, step), (0, _one(padding)), (1, _one(dilation)), ceil_mode))


def _avg_pool1d(
    kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True
) -> Meaning:
    kernel, step = _one(kernel_size), _one(stride) if stride else _one(kernel_size)
    return _on_row(ops.AvgPool2d((1, kernel), (1, step), (0, _one(padding)), ceil_mode, count_include_pad))


def _adaptive_avg_pool1d(output_size: Any) -> Meaning:
    return _on_row(ops.AdaptiveAvgPool2d((1, _one(output_size))))


@lower_function(functional.max_pool1d, torch.max_pool1d)
def _(x: Any, *settings: Any, **named: Any) -> Lowered:
    return Lowered(_max_pool1d(*settings, **named), (x,))


@lower_function(functional.avg_pool1d, torch.avg_pool1d)
def _(x: Any, *settings: Any, **named: Any) -> Lowered:
    return Lowered(_avg_pool1d(*settings, **named), (x,))


@lower_function(functional.adaptive_avg_pool1d)
def _(x: Any, output_size: Any) -> Lowered:
    return Lowered(_adaptive_avg_pool1d(output_size), (x,))


@lower_function(functional.adaptive_max_pool2d, functional.adaptive_max_pool1d)
def _(x: Any, output_size: Any, return_indices: bool = False) -> Lowered:
    return Lowered(_adaptive_max_pool(output_size, return_indices), (x,))


def _adaptive_max_pool(output_size: Any, return_indices: bool) -> Meaning:
    """Return the pooling by windows of one size, where the image divides into them evenly."""
    if return_indices:
        raise UnsupportedLayer("an adaptive maximum with return_indices=True has no bounds.")

    def meaning(shape: tuple[int, ...]) -> Meaning:
        sides = shape[1:]
        wanted = list(output_size) if isinstance(output_size, (tuple, list)) else [output_size] * len(sides)
        counts = [side if count is None else count for side, count in zip(sides, wanted, strict=True)]
        if any(side % count for side, count in zip(sides, counts, strict=True)):
            raise UnsupportedLayer(
                f"an adaptive maximum makes {tuple(counts)} of {sides}, which does not divide evenly. Use MaxPool2d "
                "with the kernel that you mean."
            )
        kernel = pair([side // count for side, count in zip(sides, counts, strict=True)])
        if len(sides) == 2:
            return ops.MaxPool2d(kernel, kernel)
        return _on_row(ops.MaxPool2d((1, kernel[0]), (1, kernel[0])))

    return ByShape(meaning)


# Whole dimensions


def _dims(dim: Any, shape: tuple[int, ...], what: str) -> tuple[int, ...]:
    """Return dimensions in order; that of the batch is 0, and must not be among them."""
    given = dim if isinstance(dim, (tuple, list)) else (dim,)
    found = tuple(sorted(int(d) % (len(shape) + 1) for d in given))
    if not found or 0 in found:
        raise UnsupportedLayer(f"a {what} over the batch mixes its inputs; name the other dimensions, as in (2, 3).")
    return found


@lower_function(torch.sum, "sum")
def _(x: Any, dim: Any = 0, keepdim: bool = False, dtype: None = None) -> Lowered:
    return Lowered(ByShape(lambda shape: _reduced(ops.Sum, _dims(dim, shape, "sum"), keepdim, shape)), (x,))


@lower_function(torch.mean, "mean")
def _(x: Any, dim: Any = 0, keepdim: bool = False, dtype: None = None) -> Lowered:
    return Lowered(ByShape(lambda shape: _reduced(ops.Mean, _dims(dim, shape, "mean"), keepdim, shape)), (x,))


def _reduced(
    kind: type[ops.Sum] | type[ops.Mean], dims: tuple[int, ...], keepdim: bool, shape: tuple[int, ...]
) -> Meaning:
    """Keep the dimensions where none would be left."""
    if keepdim or len(dims) < len(shape):
        return kind(dims, bool(keepdim))
    return Chain(kind(dims, True), after=(ops.Reshape(()),))


def _extremum(dim: Any, sign: int = 1) -> ByShape:
    """Bring the dimensions to the end, and pool over all of them as one row; the minimum is -max(-x).

    Args:
        dim: one or several; that of the batch is 0.
        sign: 1 for the maximum, -1 for the minimum.
    """

    def meaning(shape: tuple[int, ...]) -> Meaning:
        dims = _dims(dim, shape, "maximum" if sign > 0 else "minimum")
        kept = [d for d in range(1, len(shape) + 1) if d not in dims]
        order = (*kept, *dims)
        size = math.prod(shape[d - 1] for d in dims)
        row = ops.Reshape((math.prod(shape) // size, 1, size))
        move = (ops.Permute(order),) if order != tuple(sorted(order)) else ()
        turn = (ops.Multiply(-1.0),) if sign < 0 else ()
        return Chain(ops.MaxPool2d((1, size), (1, size)), (*turn, *move, row), (*turn, ops.Reshape(())))

    return ByShape(meaning)


@lower_function(torch.amax, "amax")
def _(x: Any, dim: Any = (), keepdim: bool = False) -> Lowered:
    return Lowered(_extremum(dim), (x,))


@lower_function(torch.amin, "amin")
def _(x: Any, dim: Any = (), keepdim: bool = False) -> Lowered:
    return Lowered(_extremum(dim, -1), (x,))


@lower_function(torch.max, "max")
def _(x: Any, dim: Any = 0, keepdim: bool = False) -> Lowered:
    if isinstance(dim, fx.Node):
        return _of_two(x, dim, 1)
    return Lowered(Parts(lambda shape: [_extremum(dim)]), (x,))


@lower_function(torch.min, "min")
def _(x: Any, dim: Any = 0, keepdim: bool = False) -> Lowered:
    if isinstance(dim, fx.Node):
        return _of_two(x, dim, -1)
    return Lowered(Parts(lambda shape: [_extremum(dim, -1)]), (x,))


@lower_function(torch.maximum, "maximum")
def _(x: Any, other: Any) -> Lowered:
    return _of_two(x, other, 1)


@lower_function(torch.minimum, "minimum")
def _(x: Any, other: Any) -> Lowered:
    return _of_two(x, other, -1)


def _of_two(x: fx.Node, other: fx.Node, sign: int) -> Lowered:
    """Put two tensors side by side, as the columns of a matrix, and pool over its rows."""
    shape = x.meta["shape"]
    if is_constant(x) or is_constant(other) or other.meta["shape"] != shape:
        word, end = ("maximum", "min") if sign > 0 else ("minimum", "max")
        raise UnsupportedLayer(
            f"the {word} of two tensors has rules where both are activations of one shape; of an activation and a "
            f"number it is x.clamp({end}=number), and F.relu(x) is x.clamp(min=0)."
        )
    size, turn = math.prod(shape[1:]), (ops.Multiply(-1.0),) if sign < 0 else ()
    pool = (ops.Permute((2, 1)), ops.Reshape((size, 1, 2)), ops.MaxPool2d((1, 2), (1, 2)))
    chain = Chain(ops.Concatenate(1), after=(*turn, *pool, *turn, ops.Reshape(())))
    return Lowered(AfterEach(ops.Reshape((1, size)), chain), (x, other))
