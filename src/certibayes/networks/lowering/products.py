"""Products with a matrix of weights, in the many ways of writing one."""

from __future__ import annotations

import operator
from string import ascii_uppercase
from typing import Any

import torch
from torch import fx

from certibayes.errors import UnsupportedLayer
from certibayes.networks import operations as ops
from certibayes.networks.lowering.registry import ByShape, Chain, Lowered, Meaning, is_weight, lower_function


def transposed_weight(value: Any) -> fx.Node | None:
    """Return the parameter W of ``W.T``, ``W.t()``, ``W.mT`` or ``W.transpose(0, 1)``, with two dimensions."""
    if not isinstance(value, fx.Node) or not value.args or not is_weight(value.args[0]):
        return None
    weight, *arguments = value.args
    assert isinstance(weight, fx.Node)
    attribute = value.target is getattr and arguments[0] in ("T", "mT")
    swaps = value.target in ("transpose", "swapaxes", torch.transpose)
    method = value.target in ("t", torch.t) or (swaps and set(arguments) in ({0, 1}, {-2, -1}, {0, -1}))
    return weight if (attribute or method) and len(weight.meta["shape"]) == 2 else None


@lower_function(operator.matmul, torch.matmul, torch.mm, "matmul", "mm")
def _(left: Any, right: Any) -> Lowered:
    matrix = transposed_weight(right)
    if is_weight(right) and len(right.meta["shape"]) == 2:
        return Lowered(ops.MatMul(), (left,), {"weight": right})
    if matrix is not None:
        return Lowered(ops.Linear(), (left,), {"weight": matrix})
    if is_weight(left) and len(left.meta["shape"]) == 2 and len(right.meta["shape"] or ()) == 3:
        flip = ops.Permute((2, 1))
        return Lowered(Chain(ops.Linear(), before=(flip,), after=(ops.Permute((2, 1)),)), (right,), {"weight": left})
    raise UnsupportedLayer(
        "a matrix product has rules where one factor is a parameter or buffer with two dimensions, as in x @ self.W or "
        "x @ self.W.T, and with a vector (x * self.w).sum(-1); a product of two activations, as in attention, has none."
    )


@lower_function(torch.einsum)
def _(equation: str, *factors: Any) -> Lowered:
    """Lower a sum over one index of an activation, such as ``einsum("bnd,dk->bnk", x, self.W)``."""
    given = tuple(factors[0]) if len(factors) == 1 and isinstance(factors[0], (tuple, list)) else factors
    terms, arrow, result = equation.replace(" ", "").partition("->")
    named = dict(zip(given, terms.split(","), strict=True)) if len(given) == 2 == len(set(given)) else {}
    weights = [factor for factor in named if is_weight(factor) and len(factor.meta["shape"]) == 2]
    if not arrow or len(weights) != 1:
        raise _einsum(equation)
    (weight,), (x,) = weights, [factor for factor in named if factor is not weights[0]]
    meaning = ByShape(lambda shape: _contraction(equation, named[x], named[weight], result, len(shape)))
    return Lowered(meaning, (x,), {"weight": weight})


def _contraction(equation: str, activation: str, matrix: str, result: str, dims: int) -> Meaning:
    """Return the product: the index that is summed over goes last, and the new one where it belongs."""
    if "..." in activation:
        unused = [letter for letter in ascii_uppercase if letter not in equation]
        stands_for = "".join(unused[: dims + 1 - len(activation) + 3])
        activation, result = activation.replace("...", stands_for), result.replace("...", stands_for)
    summed = [letter for letter in activation if letter in matrix and letter not in result]
    distinct = len(set(activation)) == len(activation) == dims + 1 and len(set(matrix)) == 2
    if len(summed) != 1 or not distinct:
        raise _einsum(equation)
    (old,) = summed
    new, kept = matrix.replace(old, ""), activation.replace(old, "")
    # Every other index stays, and the batch in front.
    if new in activation or sorted(result) != sorted(kept + new) or result[0] != activation[0] or kept[:1] != result[0]:
        raise _einsum(equation)
    into = ops.Permute(tuple(activation.index(letter) for letter in kept[1:] + old))
    out = ops.Permute(tuple((kept + new).index(letter) for letter in result[1:]))
    product = ops.MatMul() if matrix[0] == old else ops.Linear()
    plain = tuple(range(1, dims + 1))
    return Chain(product, *((order,) if order.order != plain else () for order in (into, out)))


def _einsum(equation: str) -> UnsupportedLayer:
    return UnsupportedLayer(
        f"einsum({equation!r}) has rules where an activation meets a parameter or buffer with two dimensions and one "
        "index of it is summed over, as in einsum('bnd,dk->bnk', x, self.W)."
    )
