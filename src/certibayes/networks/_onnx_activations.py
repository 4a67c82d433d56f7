"""ONNX's activations as torch modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from certibayes.networks._onnx_call import Call
from certibayes.networks._onnx_operators import onnx_operator, with_weights


@onnx_operator("Relu")
def _(call: Call) -> nn.Module:
    return nn.ReLU()


@onnx_operator("LeakyRelu")
def _(call: Call) -> nn.Module:
    return nn.LeakyReLU(float(call.attributes.get("alpha", 0.01)))


@onnx_operator("Sigmoid")
def _(call: Call) -> nn.Module:
    return nn.Sigmoid()


@onnx_operator("Tanh")
def _(call: Call) -> nn.Module:
    return nn.Tanh()


class Clamp(nn.Module):
    """Clamp every number."""

    def __init__(self, low: float | None, high: float | None):
        super().__init__()
        self.low, self.high = low, high

    def extra_repr(self) -> str:
        """Show the ends in the repr of the network."""
        return f"low={self.low}, high={self.high}"

    def forward(self, x: Tensor) -> Tensor:
        """Clamp a batch."""
        return torch.clamp(x, self.low, self.high)


@onnx_operator("Clip")
def _(call: Call) -> nn.Module:
    # Older files have the ends as attributes.
    low, high = (
        call.attributes.get(name) if value is None else float(value)
        for name, value in (("min", call.constant(1)), ("max", call.constant(2)))
    )
    return Clamp(low, high) if (low, high) != (None, None) else nn.Identity()


@onnx_operator("PRelu")
def _(call: Call) -> nn.Module:
    slope, shape = call.weight(1), call.x.shape
    if slope.numel() != 1 and (slope.numel() != shape[1] or slope.dim() != len(shape) - 1 or len(slope) != shape[1]):
        raise call.unsupported(f"its slope of shape {tuple(slope.shape)} is not one for each channel of {shape}")
    return with_weights(nn.PReLU(slope.numel()), weight=slope.flatten())


@onnx_operator("Elu")
def _(call: Call) -> nn.Module:
    return nn.ELU(float(call.attributes.get("alpha", 1.0)))


@onnx_operator("Celu")
def _(call: Call) -> nn.Module:
    return nn.CELU(float(call.attributes.get("alpha", 1.0)))


@onnx_operator("Selu")
def _(call: Call) -> nn.Module:
    settings = (
        call.attributes.get("alpha", 1.67326319217681884765625),
        call.attributes.get("gamma", 1.05070102214813232),
    )
    if abs(settings[0] - 1.6732632) > 1e-6 or abs(settings[1] - 1.0507010) > 1e-6:
        raise call.unsupported(f"its settings {settings} are not those of SELU")
    return nn.SELU()


@onnx_operator("Softplus")
def _(call: Call) -> nn.Module:
    return nn.Softplus()


@onnx_operator("HardSwish")
def _(call: Call) -> nn.Module:
    return nn.Hardswish()
