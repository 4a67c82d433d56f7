"""Pooling."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.registry import Lowered, Meaning, lower_function, lower_module, pair


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
