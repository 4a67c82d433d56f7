"""Operators of ONNX that normalize each example by itself."""

from __future__ import annotations

from torch import nn

from certibayes.networks._onnx_call import Call
from certibayes.networks._onnx_operators import onnx_operator, with_weights


@onnx_operator("LayerNormalization")
def _(call: Call) -> nn.Module:
    if call.outputs > 1:
        raise call.unsupported("its mean or deviation is used")
    axis = int(call.attributes.get("axis", -1)) % len(call.x.shape)
    if axis == 0:
        raise call.unsupported("it goes over the batch")
    shape = call.x.shape[axis:]
    scale, bias = call.weight(1).expand(shape), call.constant(2)
    layer = nn.LayerNorm(shape, float(call.attributes.get("epsilon", 1e-5)), bias=bias is not None)
    return with_weights(layer, weight=scale, bias=None if bias is None else bias.expand(shape))


@onnx_operator("InstanceNormalization")
def _(call: Call) -> nn.Module:
    scale = call.weight(1)
    layer = nn.GroupNorm(len(scale), len(scale), float(call.attributes.get("epsilon", 1e-5)))
    return with_weights(layer, weight=scale, bias=call.weight(2))
