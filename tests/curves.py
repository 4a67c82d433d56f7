"""Activations with bends, their weights, and their formulas as textbooks have them."""

import math

import torch
from torch import Tensor

from certibayes.networks import operations as ops

ACTIVATIONS = {
    "relu6": ops.Clamp(0.0, 6.0),
    "clamp": ops.Clamp(-0.3, 0.7),
    "clamp above": ops.Clamp(None, 0.1),
    "prelu": ops.PReLU(),
    "elu": ops.ELU(1.3),
    "selu": ops.ELU(1.6732632423543772, 1.0507009873554805),
    "celu": ops.ELU(0.5, 1.0, 2.0),
    "softplus": ops.Softplus(),
    "softplus, steep": ops.Softplus(5.0, 17.0),
    "gelu": ops.GELU(),
    "gelu by tanh": ops.GELU("tanh"),
    "silu": ops.SiLU(),
    "hardswish": ops.Hardswish(),
}

SLOPES = torch.tensor([-0.6, 0.2, 1.9])


def weights_of(operation: ops.Operation, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Weights by role, for three channels."""
    return {"weight": SLOPES.to(dtype)} if isinstance(operation, ops.PReLU) else {}


def textbook(operation: ops.Operation, x: Tensor) -> Tensor:
    """The formula as it is printed, in the precision of x: digits cancel where they may."""
    if isinstance(operation, ops.ELU):
        below = operation.scale * operation.alpha * (torch.exp(operation.input_scale * x.clamp(max=0.0)) - 1)
        return torch.where(x > 0, operation.scale * x, below)
    if isinstance(operation, ops.Softplus):
        scaled = operation.beta * x
        return torch.where(scaled > 20, x, torch.log(1 + torch.exp(scaled.clamp(max=20))) / operation.beta)
    if isinstance(operation, ops.GELU) and operation.approximate == "none":
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2.0)))
    if isinstance(operation, ops.GELU):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
    if isinstance(operation, ops.SiLU):
        return x * (1 / (1 + torch.exp(-x)))
    if isinstance(operation, ops.Hardswish):
        return x * (torch.clamp(x + 3, 0, 6) / 6)
    return operation.evaluate(weights_of(operation, x.dtype), x)
