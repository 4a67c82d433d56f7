"""Layers with weights, and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.products import transposed_weight
from certibayes.networks.lowering.registry import (
    Chain,
    Lowered,
    Meaning,
    is_weight,
    lower_function,
    lower_module,
    pair,
    weights_of,
)
from certibayes.networks.normalize import Normalize


def _padding(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return zeros before and after each side, as torch reads numbers, "valid" and "same"."""
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(span // 2, span - span // 2) for span in spans]
    numbers = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,)
    numbers = numbers * len(kernel) if len(numbers) == 1 else numbers
    return [(int(number), int(number)) for number in numbers]


def _convolution(
    make: Callable[[tuple[int, ...]], ops.Operation], sides: list[tuple[int, int]], mode: str = "zeros"
) -> Meaning:
    """Return a convolution whose padding is its own where it can be: symmetric, and of zeros.

    Args:
        make: of the padding that the convolution does itself.
        sides: padding before and after each side of the image.
        mode: of the padding, in torch's words.
    """
    own = tuple(near for near, far in sides)
    symmetric = all(near == far for near, far in sides)
    if symmetric and (mode == "zeros" or not any(own)):
        return make(own)
    widths = tuple(width for side in reversed(sides) for width in side)
    pad = ops.Pad(widths, "constant" if mode == "zeros" else mode)
    return Chain(make((0,) * len(sides)), before=(pad,))


@lower_module(nn.Linear)
def _(module: nn.Linear) -> tuple[ops.Operation, dict[str, str]]:
    return ops.Linear(), weights_of(module, "weight", "bias")


@lower_module(nn.Conv2d)
def _(module: nn.Conv2d) -> tuple[Meaning, dict[str, str]]:
    stride, dilation = pair(module.stride), pair(module.dilation)
    sides = _padding(module.padding, pair(module.kernel_size), dilation)

    def make(padding: tuple[int, ...]) -> ops.Operation:
        return ops.Conv2d(stride, pair(padding), dilation, module.groups)

    return _convolution(make, sides, module.padding_mode), weights_of(module, "weight", "bias")


@lower_module(nn.Conv1d)
def _(module: nn.Conv1d) -> tuple[Meaning, dict[str, str]]:
    (stride,), (dilation,), (kernel,) = module.stride, module.dilation, module.kernel_size
    sides = _padding(module.padding, (kernel,), (dilation,))

    def make(padding: tuple[int, ...]) -> ops.Operation:
        return ops.Conv1d(stride, padding[0], dilation, module.groups)

    return _convolution(make, sides, module.padding_mode), weights_of(module, "weight", "bias")


@lower_module(nn.ConvTranspose2d)
def _(module: nn.ConvTranspose2d) -> tuple[Meaning, dict[str, str]]:
    stride, padding, more, dilation = map(pair, (module.stride, module.padding, module.output_padding, module.dilation))
    operation = ops.ConvTranspose2d(stride, padding, more, dilation, module.groups)
    return operation, weights_of(module, "weight", "bias")


@lower_module(nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
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


@lower_module(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout)
def _(module: nn.Module) -> tuple[None, dict[str, str]]:
    return None, {}


@lower_function(functional.linear)
def _(x: Any, weight: Any, bias: Any = None) -> Lowered:
    matrix = transposed_weight(weight)
    if matrix is not None and bias is None:
        return Lowered(ops.MatMul(), (x,), {"weight": matrix})
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
    kernel = weight.meta["shape"][2:] if is_weight(weight) else (1, 1)

    def make(own: tuple[int, ...]) -> ops.Operation:
        return ops.Conv2d(pair(stride), pair(own), pair(dilation), int(groups))

    meaning = _convolution(make, _padding(padding, kernel, pair(dilation)))
    return Lowered(meaning, (x,), {"weight": weight, "bias": bias})


@lower_function(functional.conv1d, torch.conv1d)
def _(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Lowered:
    kernel = weight.meta["shape"][2:] if is_weight(weight) else (1,)
    step, reach = pair(stride)[0], pair(dilation)[0]

    def make(own: tuple[int, ...]) -> ops.Operation:
        return ops.Conv1d(step, own[0], reach, int(groups))

    meaning = _convolution(make, _padding(padding, kernel, (reach,)))
    return Lowered(meaning, (x,), {"weight": weight, "bias": bias})


@lower_function(functional.conv_transpose2d, torch.conv_transpose2d)
def _(  # noqa: PLR0913 - the function's own signature
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Lowered:
    settings = pair(stride), pair(padding), pair(output_padding), pair(dilation)
    operation = ops.ConvTranspose2d(*settings, int(groups))
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


@lower_function(functional.dropout, functional.dropout1d, functional.dropout2d, functional.alpha_dropout)
def _(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Lowered:
    if training and p != 0:
        raise UnsupportedLayer(
            "dropout is switched on in eval mode, so the network is random. Pass training=self.training, or use "
            "nn.Dropout; for the mean over dropout masks (MC dropout) there is certibayes.Samples.from_dropout(net)."
        )
    return Lowered(None, (x,))
