"""Activations."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.registry import (
    Chain,
    Lowered,
    Meaning,
    is_number,
    lower_function,
    lower_module,
    weights_of,
)


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


@lower_function(functional.relu, functional.relu_, torch.relu, torch.relu_, "relu", "relu_")
def _(x: Any, inplace: bool = False) -> Lowered:
    return Lowered(ops.ReLU(), (x,))


@lower_function(functional.leaky_relu, functional.leaky_relu_)
def _(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Lowered:
    return Lowered(_leaky(negative_slope), (x,))


@lower_module(nn.Threshold)
def _(module: nn.Threshold) -> tuple[ops.Operation, dict[str, str]]:
    return _threshold(module.threshold, module.value), {}


@lower_function(functional.threshold, torch.threshold)
def _(x: Any, threshold: float, value: float, inplace: bool = False) -> Lowered:
    return Lowered(_threshold(threshold, value), (x,))


def _threshold(threshold: float, value: float) -> ops.Operation:
    """Return x where it is above the threshold, and the value elsewhere."""
    if threshold != value:
        raise UnsupportedLayer(
            f"a threshold at {threshold} that puts {value} in its place jumps, and has no rules. With both the same, "
            "as in nn.Threshold(0.1, 0.1), it is x.clamp(min=0.1)."
        )
    return _clamp(threshold, None)


def _leaky(slope: float) -> ops.LeakyReLU:
    if slope < 0:
        raise UnsupportedLayer(f"LeakyReLU with a negative slope ({slope}) is not monotone.")
    return ops.LeakyReLU(float(slope))


@lower_function(functional.tanh, torch.tanh, "tanh", "tanh_")
def _(x: Any) -> Lowered:
    return Lowered(ops.Tanh(), (x,))


@lower_function(functional.sigmoid, torch.sigmoid, torch.special.expit, "sigmoid", "sigmoid_")
def _(x: Any) -> Lowered:
    return Lowered(ops.Sigmoid(), (x,))


@lower_module(nn.RReLU)
def _(module: nn.RReLU) -> tuple[ops.Operation, dict[str, str]]:
    return _leaky((module.lower + module.upper) / 2), {}


@lower_module(nn.PReLU)
def _(module: nn.PReLU) -> tuple[ops.Operation, dict[str, str]]:
    return ops.PReLU(), weights_of(module, "weight")


@lower_function(functional.prelu, torch.prelu)
def _(x: Any, weight: Any) -> Lowered:
    return Lowered(ops.PReLU(), (x,), {"weight": weight})


# Clamped


def _clamp(low: Any, high: Any) -> ops.Operation:
    if not all(end is None or (is_number(end) and not math.isnan(end)) for end in (low, high)):
        raise UnsupportedLayer("the ends of a clamp must be numbers.")
    ends = [None if end is None or math.isinf(end) else float(end) for end in (low, high)]
    if ends == [0.0, None]:
        return ops.ReLU()
    if None not in ends and low > high:
        raise UnsupportedLayer(f"a clamp from {low} to {high} leaves nothing between its ends.")
    return ops.Clamp(*ends)


@lower_module(nn.ReLU6, nn.Hardtanh)
def _(module: nn.Hardtanh) -> tuple[ops.Operation, dict[str, str]]:
    return _clamp(module.min_val, module.max_val), {}


@lower_function(functional.relu6)
def _(x: Any, inplace: bool = False) -> Lowered:
    return Lowered(ops.Clamp(0.0, 6.0), (x,))


@lower_function(functional.hardtanh, functional.hardtanh_)
def _(x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Lowered:
    return Lowered(_clamp(min_val, max_val), (x,))


@lower_function(torch.clamp, torch.clamp_, torch.clip, "clamp", "clamp_", "clip", "clip_")
def _(x: Any, min: Any = None, max: Any = None) -> Lowered:
    return Lowered(_clamp(min, max), (x,))


@lower_function(torch.clamp_min, "clamp_min", "clamp_min_")
def _(x: Any, min: Any) -> Lowered:
    return Lowered(_clamp(min, None), (x,))


@lower_function(torch.clamp_max, "clamp_max", "clamp_max_")
def _(x: Any, max: Any) -> Lowered:
    return Lowered(_clamp(None, max), (x,))


def _hardsigmoid() -> Meaning:
    return Chain(ops.Clamp(0.0, 6.0), before=(ops.Shift(3.0),), after=(ops.Divide(6.0),))


@lower_module(nn.Hardsigmoid)
def _(module: nn.Hardsigmoid) -> tuple[Meaning, dict[str, str]]:
    return _hardsigmoid(), {}


@lower_function(functional.hardsigmoid)
def _(x: Any, inplace: bool = False) -> Lowered:
    return Lowered(_hardsigmoid(), (x,))


@lower_module(nn.Hardswish)
def _(module: nn.Hardswish) -> tuple[ops.Operation, dict[str, str]]:
    return ops.Hardswish(), {}


@lower_function(functional.hardswish)
def _(x: Any, inplace: bool = False) -> Lowered:
    return Lowered(ops.Hardswish(), (x,))


# Smooth

SELU = ops.ELU(1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def _elu(alpha: Any, input_scale: float = 1.0) -> ops.ELU:
    if not (is_number(alpha) and alpha > 0):
        raise UnsupportedLayer(f"ELU and CELU need a positive alpha, got {alpha}.")
    return ops.ELU(float(alpha), 1.0, input_scale)


@lower_module(nn.ELU)
def _(module: nn.ELU) -> tuple[ops.Operation, dict[str, str]]:
    return _elu(module.alpha), {}


@lower_module(nn.CELU)
def _(module: nn.CELU) -> tuple[ops.Operation, dict[str, str]]:
    return _elu(module.alpha, 1.0 / module.alpha), {}


@lower_module(nn.SELU)
def _(module: nn.SELU) -> tuple[ops.Operation, dict[str, str]]:
    return SELU, {}


@lower_function(functional.elu, functional.elu_)
def _(x: Any, alpha: float = 1.0, inplace: bool = False) -> Lowered:
    return Lowered(_elu(alpha), (x,))


@lower_function(functional.celu, torch.celu)
def _(x: Any, alpha: float = 1.0, inplace: bool = False) -> Lowered:
    return Lowered(_elu(alpha, 1.0 / alpha), (x,))


@lower_function(functional.selu, torch.selu)
def _(x: Any, inplace: bool = False) -> Lowered:
    return Lowered(SELU, (x,))


def _softplus(beta: Any, threshold: Any) -> ops.Softplus:
    if not (is_number(beta) and beta > 0 and is_number(threshold) and threshold >= 16):
        raise UnsupportedLayer(
            f"Softplus has rules for a positive beta and a threshold of at least 16, where the jump to a straight line "
            f"is small; got beta {beta} and threshold {threshold}."
        )
    return ops.Softplus(float(beta), float(threshold))


@lower_module(nn.Softplus)
def _(module: nn.Softplus) -> tuple[ops.Operation, dict[str, str]]:
    return _softplus(module.beta, module.threshold), {}


@lower_function(functional.softplus)
def _(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Lowered:
    return Lowered(_softplus(beta, threshold), (x,))


def _log_sigmoid() -> Meaning:
    """Log s(x) = -softplus(-x)."""
    return Chain(ops.Softplus(), before=(ops.Multiply(-1.0),), after=(ops.Multiply(-1.0),))


@lower_module(nn.LogSigmoid)
def _(module: nn.LogSigmoid) -> tuple[Meaning, dict[str, str]]:
    return _log_sigmoid(), {}


@lower_function(functional.logsigmoid)
def _(x: Any) -> Lowered:
    return Lowered(_log_sigmoid(), (x,))


@lower_module(nn.GELU)
def _(module: nn.GELU) -> tuple[ops.Operation, dict[str, str]]:
    return ops.GELU(module.approximate), {}


@lower_function(functional.gelu)
def _(x: Any, approximate: str = "none") -> Lowered:
    return Lowered(ops.GELU(approximate), (x,))


@lower_module(nn.SiLU)
def _(module: nn.SiLU) -> tuple[ops.Operation, dict[str, str]]:
    return ops.SiLU(), {}


@lower_function(functional.silu)
def _(x: Any, inplace: bool = False) -> Lowered:
    return Lowered(ops.SiLU(), (x,))
