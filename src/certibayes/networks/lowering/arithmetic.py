"""Sums, products and quotients."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.registry import Lowered, is_constant, is_number, lower_function


@lower_function(operator.add, operator.iadd, torch.add, "add", "add_")
def _(left: Any, other: Any, alpha: Any = 1) -> Lowered:
    return _sum(left, _times(other, alpha), offset_sign=1)


@lower_function(operator.sub, operator.isub, torch.sub, torch.subtract, "sub", "sub_", "subtract")
def _(left: Any, other: Any, alpha: Any = 1) -> Lowered:
    return _sum(left, _times(other, alpha), offset_sign=-1)


@lower_function(torch.rsub)
def _(left: Any, other: Any, alpha: Any = 1) -> Lowered:
    return _sum(other, _times(left, alpha), offset_sign=-1)


def _times(value: Any, alpha: Any) -> Any:
    if alpha == 1:
        return value
    if not (is_number(value) and is_number(alpha)):
        raise UnsupportedLayer(f"a sum with alpha={alpha} has no rules; write x + {alpha} * y.")
    return value * alpha


def _sum(left: Any, right: Any, offset_sign: int) -> Lowered:
    if is_number(right):
        return Lowered(ops.Shift(float(right), 1, offset_sign), (left,))
    if is_number(left):
        return Lowered(ops.Shift(float(left), offset_sign, 1), (right,))
    if is_constant(right):
        return Lowered(ops.Shift(None, 1, offset_sign), (left,), {"offset": right})
    if is_constant(left):
        return Lowered(ops.Shift(None, offset_sign, 1), (right,), {"offset": left})
    return Lowered(ops.Add() if offset_sign > 0 else ops.Subtract(), (left, right))


def _require_no_size(value: Any) -> None:
    if isinstance(value, fx.Node) and value.meta.get("shape") is None:
        raise UnsupportedLayer(
            f"{value.name} depends on the size of the batch, so that an input's output would depend on the inputs "
            "beside it. Means over an example, x.mean((2, 3)), have rules."
        )


@lower_function(operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_", "multiply")
def _(left: Any, other: Any) -> Lowered:
    if is_number(left) or is_constant(left):
        left, other = other, left
    if is_number(other):
        return Lowered(ops.Multiply(float(other)), (left,))
    _require_no_size(other)
    if is_constant(other):
        return Lowered(ops.Multiply(), (left,), {"factor": other})
    raise UnsupportedLayer(
        "a product of two activations has no rules yet; one factor must be a constant or a parameter. x * sigmoid(x) "
        "is F.silu(x), x * (x > 0) is F.relu(x). For gates, such as squeeze and excite, train a network without them."
    )


@lower_function(
    operator.truediv, operator.itruediv, torch.div, torch.divide, torch.true_divide,
    "div", "div_", "divide", "true_divide",
)  # fmt: skip
def _(left: Any, other: Any) -> Lowered:
    if is_number(other):
        return Lowered(ops.Divide(float(other)), (left,))
    _require_no_size(other)
    if is_constant(other):
        return Lowered(ops.Divide(), (left,), {"divisor": other})
    raise UnsupportedLayer(
        "division by an activation has no rules; the divisor must be a constant. For features of length 1 there are "
        "nn.RMSNorm and nn.LayerNorm."
    )


@lower_function(operator.neg, torch.neg, torch.negative, "neg", "neg_", "negative")
def _(x: Any) -> Lowered:
    return Lowered(ops.Multiply(-1.0), (x,))
