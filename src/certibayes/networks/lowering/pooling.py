"""Pooling."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.registry import Lowered, lower_function, lower_module, pair


@lower_module(nn.MaxPool2d)
def _(module: nn.MaxPool2d) -> tuple[ops.Operation | None, dict[str, str]]:
    return _max_pool(
        None,
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        module.ceil_mode,
        module.return_indices,
    ).operation, {}


@lower_module(nn.AvgPool2d)
def _(module: nn.AvgPool2d) -> tuple[ops.Operation | None, dict[str, str]]:
    return _avg_pool(
        None,
        module.kernel_size,
        module.stride,
        module.padding,
        module.ceil_mode,
        module.count_include_pad,
        module.divisor_override,
    ).operation, {}


@lower_module(nn.AdaptiveAvgPool2d)
def _(module: nn.AdaptiveAvgPool2d) -> tuple[ops.Operation | None, dict[str, str]]:
    return _adaptive_avg_pool(None, module.output_size).operation, {}


@lower_function(functional.max_pool2d, torch.max_pool2d)
def _max_pool(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Lowered:
    if return_indices:
        raise UnsupportedLayer("max_pool2d with return_indices=True has no bounds.")
    kernel = pair(kernel_size)
    operation = ops.MaxPool2d(kernel, pair(stride) if stride else kernel, pair(padding), pair(dilation), ceil_mode)
    return Lowered(operation, (x,))


@lower_function(functional.avg_pool2d)
def _avg_pool(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Lowered:
    kernel = pair(kernel_size)
    operation = ops.AvgPool2d(
        kernel,
        pair(stride) if stride else kernel,
        pair(padding),
        ceil_mode,
        count_include_pad,
        divisor_override,
    )
    return Lowered(operation, (x,))


@lower_function(functional.adaptive_avg_pool2d)
def _adaptive_avg_pool(x: Any, output_size: Any) -> Lowered:
    size = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    return Lowered(ops.AdaptiveAvgPool2d((size[0], size[1])), (x,))
