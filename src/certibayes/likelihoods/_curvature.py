"""Squared per-example gradients of linear and convolutional layers, from one backward pass over the batch.

Under the robust likelihood a weight matrix enters three times: as W x in the clean forward pass, as W c for the
center of the box, and as |W| r for its radius. The gradient of one example b is therefore

    G_b = d_b x_bᵀ + e_b c_bᵀ + s(W) * (f_b r_bᵀ),

where d, e, f are the derivatives of its log-likelihood with respect to the three outputs, and s is the slope of |.|,
or of the smooth function in its place. An attacked input x' in the place of the box adds e_b x'_bᵀ alone, and several
radii add as many terms. The derivatives come from one backward pass in which no weight gradient is formed; see
``bounds.training``.

In a linear layer the squares and cross terms of G_b, summed over b, are matrix products of elementwise products: six
in all, and no example's gradient is ever written down. In a convolution x_b is a matrix with one column of inputs for
each output pixel, d_b has a column for each pixel too, and the square of their product is no product of squares.
There G_b is written down for one layer and one chunk of the batch at a time, and so it is in a linear layer that is
used for several radii: with K of them the products would be of the order K².
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.bounds import IDEAL, Box, LayerUse, Rounding, TrainingPass
from certibayes.likelihoods.base import Gradients
from certibayes.networks import Graph, Network, Node
from certibayes.networks.operations import Conv2d, Linear
from certibayes.support.fused import fused, is_fused
from certibayes.support.stacks import add_product

Head = Callable[[Box], tuple[Tensor, Box]]
"""Outputs, points first, as ``TrainingPass`` has them -> log p(y | x, w), (B,), and the derivative of its sum."""

CHUNK = 2**22
"""Floats of gradients that are written down at a time: 16 MiB in float32. With more, a CPU waits for fresh memory."""


class _Use(NamedTuple):
    """Some uses of a layer's weights: derivatives of the output (U, B, m) and inputs (U, B, n), or images of them."""

    derivative: Tensor
    value: Tensor


def applies_to(graph: Graph) -> bool:
    """Tell whether every parameter belongs to exactly one linear or convolutional layer, used once."""
    layers = [node for node in graph.nodes if _is_layer(node)]
    used = [name for node in graph.nodes for name in node.roles.values() if name in graph.parameters]
    owned = {name for node in layers for name in node.roles.values()}
    return len(used) == len(set(used)) and set(used) <= owned and set(used) == set(graph.parameters)


def _is_layer(node: Node) -> bool:
    """Tell whether the node is a convolution, or a linear layer of flat inputs."""
    return isinstance(node.operation, Conv2d) or (isinstance(node.operation, Linear) and len(node.shape) == 1)


def closed_form_gradients(
    head: Head, network: Network, inputs: Tensor | None, box: Box | None = None, rounding: Rounding = IDEAL
) -> Gradients:
    """Compute ``Gradients`` for a network all of whose parameters are in linear and convolutional layers.

    Args:
        head: the log-likelihood as a function of outputs, with its derivative.
        network: graph, parameters and buffers; ``applies_to`` its graph.
        inputs: points of the clean pass, of attacks, or of both, all of one pass and then all of the next,
            (passes B, ...); None if there are none.
        box: the inputs of the interval passes, likewise; None if there are none.
        rounding: its arithmetic.
    """
    graph, params, weights = network.graph, network.params, {**network.buffers, **network.params}
    layers = [node for node in graph.nodes if _is_layer(node) and not params.keys().isdisjoint(node.roles.values())]
    passes = TrainingPass(graph, {}, weights, inputs, box, rounding, frozenset(node.name for node in layers))
    values, derivative = head(passes.output)
    passes.gradient(derivative)
    gradient: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    magnitudes: dict[str, Tensor] = {}
    for node in layers:
        plain, radius = _split(passes.uses.pop(node.name), len(values))
        weight, bias = node.roles["weight"], node.roles.get("bias")
        if weight in params:
            if isinstance(node.operation, Conv2d):
                sums = _convolution_sums(node.operation, params[weight], plain, radius, rounding)
            else:
                sums = _linear_sums(params[weight], plain, radius, rounding)
            gradient[weight], squares[weight] = sums[:2]
            if sums[2] is not None:
                magnitudes[weight] = sums[2]
        if bias is not None and bias in params:
            # One by one: a GPU has no fast way to a sum over a dimension of two.
            total = sum(plain.derivative[1:], start=plain.derivative[0])
            total = total.flatten(2).sum(-1) if total.dim() > 2 else total
            gradient[bias] = total.sum(0)
            squares[bias] = total.square().sum(0)
    return Gradients(values, gradient, squares, magnitudes)


def _split(use: LayerUse, size: int) -> tuple[_Use, _Use | None]:
    """Return how weights were used at points and centers, and for radii, if there are any; ``size`` is B."""
    derivative, value = use.derivative, use.value
    plain = _Use(derivative.center.unflatten(0, (-1, size)), value.center.unflatten(0, (-1, size)))
    if not len(value.radius):
        return plain, None
    return plain, _Use(derivative.radius.unflatten(0, (-1, size)), value.radius.unflatten(0, (-1, size)))


_Sums = tuple[Tensor, Tensor, Tensor | None]
"""Sum and sum of squares of the per-example gradients, and the sum of those with respect to |W|, if it is used."""


def _linear_sums(weight: Tensor, plain: _Use, radius: _Use | None, rounding: Rounding) -> _Sums:
    """Return the sums of a weight matrix (m, n), multiplied out where it is used for one radius at most.

    Args:
        weight: W.
        plain: its uses at points and centers.
        radius: its uses for radii, if any.
        rounding: for s(W) of these uses.
    """
    if len(plain.value) > 2 or (radius is not None and len(radius.value) > 1):
        return _written_down(_matrix_gradients, weight, plain, radius, rounding, CHUNK // (2 * weight.numel()))
    if radius is None:
        return _outer(plain), _outer(_squared(plain)), None
    squares, crossed, radial = (_outer(terms) for terms in _terms(plain, radius))
    by_magnitude = _outer(radius)
    gradient, squares = _combined(_outer(plain), squares, crossed, radial, by_magnitude, weight, rounding)
    return gradient, squares, by_magnitude


@fused
def _combined(
    gradient: Any, squares: Any, crossed: Any, radial: Any, by_magnitude: Any, weight: Any, rounding: Rounding
) -> tuple[Any, ...]:
    """Return the sum of G_b and that of its squares, in the memory of their first terms."""
    slope = rounding.slope(weight)
    # 2 s C + s² R = 2 s (C + s R / 2), with C the cross terms.
    crossed = add_product(crossed, slope, radial, 0.5)
    return add_product(gradient, slope, by_magnitude), add_product(squares, slope, crossed, 2.0)


def _terms(plain: _Use, radius: _Use) -> list[_Use]:
    """Return the terms of G_b²: of points and centers alone, of these and radii, and of radii alone."""
    if len(plain.value) == 1 or not is_fused(plain.value, mapped=True):
        return [_squared(plain), _product(plain, radius), _product(radius, radius)]
    derivatives, values = (
        _products_of_three(pair[0], pair[1], own[0], factor)
        for pair, own, factor in zip(plain, radius, (2.0, 1.0), strict=True)
    )
    return [_Use(derivatives[part], values[part]) for part in (slice(0, 3), slice(3, 5), slice(5, 6))]


def _squared(plain: _Use) -> _Use:
    """Return the terms of points and centers alone: squares and, if there are both, twice their product."""
    if len(plain.value) == 1:
        return _product(plain, plain)
    return _Use(_with_cross_term(plain.derivative, 2.0), _with_cross_term(plain.value, 1.0))


def _with_cross_term(pair: Tensor, factor: float) -> Tensor:
    """Return a², b² and ``factor`` a b of a pair (2, B, n), as (3, B, n)."""
    return torch.cat([pair * pair, (factor * pair[0] * pair[1])[None]])


def _products_of_three(a: Tensor, b: Tensor, c: Tensor, factor: float) -> Tensor:
    """Return a², b², ``factor`` a b, a c, b c and c² of three (B, n), as (6, B, n), by one kernel."""
    terms = a.new_empty(6, *a.shape)
    _products(a, b, c, factor, out=terms.unbind())
    return terms


@fused
def _products(a: Any, b: Any, c: Any, factor: float) -> tuple[Any, ...]:
    return a * a, b * b, factor * (a * b), a * c, b * c, c * c


def _outer(use: _Use) -> Tensor:
    """Sum of derivativeᵀ value over uses and examples, as one product."""
    return use.derivative.flatten(0, 1).mT @ use.value.flatten(0, 1)


def _product(one: _Use, other: _Use) -> _Use:
    return _Use(one.derivative * other.derivative, one.value * other.value)


def _matrix_gradients(use: _Use, chunk: slice) -> Tensor:
    """Return each example's gradient (b, m, n) of a matrix, summed over its uses."""
    return use.derivative[:, chunk].permute(1, 2, 0) @ use.value[:, chunk].transpose(0, 1)


def _convolution_sums(operation: Conv2d, weight: Tensor, plain: _Use, radius: _Use | None, rounding: Rounding) -> _Sums:
    """Return the sums of filters (O, C / groups, kh, kw)."""
    shape = plain.derivative.shape[2:]
    patches = weight[0].numel() * operation.groups * math.prod(shape[1:])
    # Many pixels make the patches of one use large, many channels the gradients of two.
    size = CHUNK // max(patches, 2 * weight.numel())
    each = partial(_filter_gradients, operation, weight)
    return _written_down(each, weight, plain, radius, rounding, size)


def _written_down(
    gradients: Callable[[_Use, slice], Tensor],
    weight: Tensor,
    plain: _Use,
    radius: _Use | None,
    rounding: Rounding,
    size: int,
) -> _Sums:
    """Write down the gradient of every example, ``size`` of them at a time, and return their sums.

    Args:
        gradients: some uses and which examples -> the sum over these uses for each example, (b, *weight).
        weight: W.
        plain: its uses at points and centers.
        radius: its uses for radii, if any.
        rounding: for s(W) of these uses.
        size: at least one is written down.
    """
    gradient, squares = torch.zeros_like(weight), torch.zeros_like(weight)
    magnitudes, slope = torch.zeros_like(weight), rounding.slope(weight)
    batch_size, size = plain.value.shape[1], max(1, size)
    for start in range(0, batch_size, size):
        chunk = slice(start, start + size)
        each = gradients(plain, chunk)
        if radius is not None:
            by_magnitude = gradients(radius, chunk)
            magnitudes += by_magnitude.sum(0)
            # Not addcmul_ and square_, which vmap does model by model.
            each.add_(by_magnitude.mul_(slope))
        gradient += each.sum(0)
        squares += each.mul_(each).sum(0)
    return gradient, squares, None if radius is None else magnitudes


def _filter_gradients(operation: Conv2d, weight: Tensor, use: _Use, chunk: slice) -> Tensor:
    """Return each example's gradient (b, O, C / groups, kh, kw) of the filters, summed over their uses.

    A convolution is a product of the filters with the input's patches, one column (C / groups) kh kw for each of the
    L output pixels; its gradient is the derivative (O / groups, L) times the transpose of that, group by group.
    """
    kernel, each = weight.shape[2:], []
    for derivative, value in zip(use.derivative[:, chunk], use.value[:, chunk], strict=True):
        patches = functional.unfold(value, kernel, operation.dilation, operation.padding, operation.stride)
        grouped = (len(value) * operation.groups, -1, patches.shape[-1])
        filters = derivative.reshape(grouped) @ patches.reshape(grouped).mT
        each.append(filters.reshape(len(value), *weight.shape))
    for other in each[1:]:
        each[0].add_(other)
    return each[0]
