"""From torch's modules and functions to our operations: one short entry each.

A module's entry returns the operation and, by role, the attributes that hold its weights. A function's entry
has the signature of the function it stands for; tensor arguments are ``torch.fx`` nodes. Register your own
with ``lower_module`` and ``lower_function``; later registrations win.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import fx, nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.normalize import Normalize


@dataclass(frozen=True)
class Lowered:
    """What a call means: ``operation`` applied to ``inputs`` with weights by role.

    An operation of None passes its input through. Reshapes are recognized by ``reshapes``: their
    target shape is read off the example instead of the arguments, which may depend on the batch size.
    """

    operation: ops.Operation | None
    inputs: tuple[Any, ...] = ()
    weights: dict[str, Any] = field(default_factory=dict)
    reshapes: bool = False


ModuleEntry = Callable[[Any], tuple[ops.Operation | None, dict[str, str]]]
FunctionEntry = Callable[..., Lowered]
Entry = TypeVar("Entry", ModuleEntry, FunctionEntry)

modules: dict[type[nn.Module], ModuleEntry] = {}
functions: dict[Any, FunctionEntry] = {}


def lower_module(*types: type[nn.Module]) -> Callable[[ModuleEntry], ModuleEntry]:
    """Decorate the entry of one or several module types."""

    def register(entry: ModuleEntry) -> ModuleEntry:
        modules.update(dict.fromkeys(types, entry))
        return entry

    return register


def lower_function(*targets: Any) -> Callable[[FunctionEntry], FunctionEntry]:
    """Decorate the entry of one or several functions, or of tensor methods given by name."""

    def register(entry: FunctionEntry) -> FunctionEntry:
        functions.update(dict.fromkeys(targets, entry))
        return entry

    return register


def pair(value: Any) -> ops.Pair:
    """Write ``3`` as ``(3, 3)``, the way torch reads it."""
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return (int(numbers[0]), int(numbers[-1]))


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


def _weights_of(module: nn.Module, *names: str) -> dict[str, str]:
    return {name: name for name in names if getattr(module, name, None) is not None}


# Modules


@lower_module(nn.Linear)
def _(module: nn.Linear) -> tuple[ops.Operation, dict[str, str]]:
    return ops.Linear(), _weights_of(module, "weight", "bias")


@lower_module(nn.Conv2d)
def _(module: nn.Conv2d) -> tuple[ops.Operation, dict[str, str]]:
    if module.padding_mode != "zeros":
        raise UnsupportedLayer(f"Conv2d pads with {module.padding_mode!r}; only zeros are supported.")
    stride, dilation = pair(module.stride), pair(module.dilation)
    padding = _padding(module.padding, pair(module.kernel_size), dilation, stride)
    return ops.Conv2d(stride, padding, dilation, module.groups), _weights_of(module, "weight", "bias")


@lower_module(nn.BatchNorm1d, nn.BatchNorm2d)
def _(module: nn.BatchNorm2d) -> tuple[ops.Operation, dict[str, str]]:
    if not module.track_running_stats or module.running_mean is None or module.running_var is None:
        raise UnsupportedLayer(
            "a batch norm without running statistics makes each output depend on the whole batch, so nothing "
            "can be proved about one input. Use track_running_stats=True."
        )
    return ops.BatchNorm(module.eps), _weights_of(module, "weight", "bias", "running_mean", "running_var")


@lower_module(Normalize)
def _(module: Normalize) -> tuple[ops.Operation, dict[str, str]]:
    return ops.Normalize(), _weights_of(module, "mean", "std")


@lower_module(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
def _(module: nn.Module) -> tuple[None, dict[str, str]]:
    return None, {}


@lower_module(nn.ReLU)
def _(module: nn.ReLU) -> tuple[ops.Operation, dict[str, str]]:
    return ops.ReLU(), {}


@lower_module(nn.LeakyReLU)
def _(module: nn.LeakyReLU) -> tuple[ops.Operation, dict[str, str]]:
    return _leaky(module.negative_slope), {}


@lower_module(nn.Tanh)
def _(module: nn.Tanh) -> tuple[ops.Operation, dict[str, str]]:
    return ops.Tanh(), {}


@lower_module(nn.Sigmoid)
def _(module: nn.Sigmoid) -> tuple[ops.Operation, dict[str, str]]:
    return ops.Sigmoid(), {}


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


# Functions and tensor methods


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


@lower_function(functional.relu, functional.relu_, torch.relu, torch.relu_, "relu", "relu_")
def _(x: Any, inplace: bool = False) -> Lowered:
    return Lowered(ops.ReLU(), (x,))


@lower_function(functional.leaky_relu, functional.leaky_relu_)
def _(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Lowered:
    return Lowered(_leaky(negative_slope), (x,))


def _leaky(slope: float) -> ops.LeakyReLU:
    if slope < 0:
        raise UnsupportedLayer(f"LeakyReLU with a negative slope ({slope}) is not monotone.")
    return ops.LeakyReLU(float(slope))


@lower_function(functional.tanh, torch.tanh, "tanh")
def _(x: Any) -> Lowered:
    return Lowered(ops.Tanh(), (x,))


@lower_function(functional.sigmoid, torch.sigmoid, "sigmoid")
def _(x: Any) -> Lowered:
    return Lowered(ops.Sigmoid(), (x,))


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


@lower_function(functional.dropout, functional.dropout2d)
def _(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Lowered:
    if training:
        raise UnsupportedLayer(
            "dropout is switched on in eval mode, so the network is random. Pass training=self.training, or use "
            "nn.Dropout; for the mean over dropout masks (MC dropout) there is certibayes.Samples.from_dropout(net)."
        )
    return Lowered(None, (x,))


@lower_function("contiguous", "clone", "detach")
def _(x: Any) -> Lowered:
    return Lowered(None, (x,))


@lower_function(
    torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze,
    "flatten", "view", "reshape", "squeeze", "unsqueeze", "unflatten",
)  # fmt: skip
def _(x: Any, *shape: Any, **named: Any) -> Lowered:
    return Lowered(None, (x,), reshapes=True)


@lower_module(nn.Flatten, nn.Unflatten)
def _(module: nn.Module) -> tuple[ops.Operation, dict[str, str]]:
    return ops.Reshape(()), {}  # the tracer reads the shape off the example


@lower_function(operator.add, operator.iadd, torch.add, "add", "add_")
def _(left: Any, right: Any) -> Lowered:
    return _sum(left, right, offset_sign=1)


@lower_function(operator.sub, operator.isub, torch.sub, "sub", "sub_")
def _(left: Any, right: Any) -> Lowered:
    return _sum(left, right, offset_sign=-1)


def _sum(left: Any, right: Any, offset_sign: int) -> Lowered:
    if _is_number(right):
        return Lowered(ops.Shift(float(right), 1, offset_sign), (left,))
    if _is_number(left):
        return Lowered(ops.Shift(float(left), offset_sign, 1), (right,))
    if _is_weight(right):
        return Lowered(ops.Shift(None, 1, offset_sign), (left,), {"offset": right})
    if _is_weight(left):
        return Lowered(ops.Shift(None, offset_sign, 1), (right,), {"offset": left})
    return Lowered(ops.Add() if offset_sign > 0 else ops.Subtract(), (left, right))


@lower_function(operator.mul, operator.imul, torch.mul, "mul", "mul_")
def _(left: Any, right: Any) -> Lowered:
    if _is_number(left) or _is_weight(left):
        left, right = right, left
    if _is_number(right):
        return Lowered(ops.Multiply(float(right)), (left,))
    if _is_weight(right):
        return Lowered(ops.Multiply(), (left,), {"factor": right})
    raise UnsupportedLayer(
        "a product of two activations has no rules yet; one factor must be a constant or a parameter."
    )


@lower_function(operator.truediv, operator.itruediv, torch.div, "div", "div_")
def _(left: Any, right: Any) -> Lowered:
    if _is_number(right):
        return Lowered(ops.Divide(float(right)), (left,))
    if _is_weight(right):
        return Lowered(ops.Divide(), (left,), {"divisor": right})
    raise UnsupportedLayer("division by an activation has no rules; the divisor must be a constant.")


@lower_function(operator.neg, torch.neg, "neg")
def _(x: Any) -> Lowered:
    return Lowered(ops.Multiply(-1.0), (x,))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _is_weight(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.op == "get_attr"
