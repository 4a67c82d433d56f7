"""Activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.registry import Lowered, lower_function, lower_module


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
