"""Layers with weights, and dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.registry import Lowered, lower_function, lower_module, pair, weights_of
from certibayes.networks.normalize import Normalize


def _same_padding(kernel: ops.Pair, dilation: ops.Pair, stride: ops.Pair) -> ops.Pair:
    spans = tuple(d * (k - 1) for k, d in zip(kernel, dilation, strict=True))
    if stride != (1, 1) or any(span % 2 for span in spans):
        raise UnsupportedLayer(
            "padding='same' is supported where it is symmetric: stride 1 and odd kernels. "
            "Give the padding as numbers, or pad explicitly by a wider kernel."
        )
    return (spans[0] // 2, spans[1] // 2)


def _padding(padding: Any, kernel: ops.Pair, dilation: ops.Pair, stride: ops.Pair) -> ops.Pair:
    if padding == "valid":
        return (0, 0)
    return _same_padding(kernel, dilation, stride) if padding == "same" else pair(padding)


@lower_module(nn.Linear)
def _(module: nn.Linear) -> tuple[ops.Operation, dict[str, str]]:
    return ops.Linear(), weights_of(module, "weight", "bias")


@lower_module(nn.Conv2d)
def _(module: nn.Conv2d) -> tuple[ops.Operation, dict[str, str]]:
    if module.padding_mode != "zeros":
        raise UnsupportedLayer(f"Conv2d pads with {module.padding_mode!r}; only zeros are supported.")
    stride, dilation = pair(module.stride), pair(module.dilation)
    padding = _padding(module.padding, pair(module.kernel_size), dilation, stride)
    return ops.Conv2d(stride, padding, dilation, module.groups), weights_of(module, "weight", "bias")


@lower_module(nn.BatchNorm1d, nn.BatchNorm2d)
def _(module: nn.BatchNorm2d) -> tuple[ops.Operation, dict[str, str]]:
    if not module.track_running_stats or module.running_mean is None or module.running_var is None:
        raise UnsupportedLayer(
            "a batch norm without running statistics makes each output depend on the whole batch, so nothing "
            "can be proved about one input. Use track_running_stats=True."
        )
    return ops.BatchNorm(module.eps), weights_of(module, "weight", "bias", "running_mean", "running_var")


@lower_module(Normalize)
def _(module: Normalize) -> tuple[ops.Operation, dict[str, str]]:
    return ops.Normalize(), weights_of(module, "mean", "std")


@lower_module(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
def _(module: nn.Module) -> tuple[None, dict[str, str]]:
    return None, {}


@lower_function(functional.linear)
def _(x: Any, weight: Any, bias: Any = None) -> Lowered:
    return Lowered(ops.Linear(), (x,), {"weight": weight, "bias": bias})


@lower_function(functional.conv2d, torch.conv2d)
def _(
    x: Any,
    weight: fx.Node,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Lowered:
    if isinstance(padding, str) and padding != "valid":
        raise UnsupportedLayer("conv2d in functional form takes its padding as numbers.")
    operation = ops.Conv2d(pair(stride), _padding(padding, (1, 1), (1, 1), (1, 1)), pair(dilation), int(groups))
    return Lowered(operation, (x,), {"weight": weight, "bias": bias})


@lower_function(functional.batch_norm)
def _(  # noqa: PLR0913 - the function's own signature
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Lowered:
    if training or running_mean is None:
        raise UnsupportedLayer("batch_norm needs running statistics and training=False.")
    roles = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    return Lowered(ops.BatchNorm(eps), (x,), roles)


@lower_function(functional.dropout, functional.dropout2d)
def _(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Lowered:
    if training:
        raise UnsupportedLayer(
            "dropout is switched on in eval mode, so the network is random. "
            "Pass training=self.training, or use nn.Dropout."
        )
    return Lowered(None, (x,))
