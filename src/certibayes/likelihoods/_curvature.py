"""Squared per-example gradients of linear and convolutional layers, from one backward pass over the batch.

Under the robust likelihood a weight matrix enters three times: as W x in the clean forward pass, as W c for the
center of the box, and as |W| r for its radius. The gradient of one example b is therefore

    G_b = d_b x_bᵀ + e_b c_bᵀ + s(W) * (f_b r_bᵀ),

where d, e, f are the derivatives of its log-likelihood with respect to the three outputs, and s is the slope of |.|,
or of the smooth function in its place. The derivatives come from one backward pass with respect to zero *probes* added
to the outputs of each layer, in which no weight gradient is formed.

Both network passes are made here. A likelihood knows nothing of probes: it hands over its inputs, its box of inputs,
and its head.

In a linear layer the squares and cross terms of G_b, summed over b, are matrix products of elementwise products: six
in all, and no example's gradient is ever written down. In a convolution x_b is a matrix with one column of inputs for
each output pixel, d_b has a column for each pixel too, and the square of their product is no product of squares.
There G_b is written down for one layer and one chunk of the batch at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from certibayes.bounds import IDEAL, Box, Rounding, interval_bounds
from certibayes.likelihoods.base import Gradients
from certibayes.networks import Graph, Network, Node
from certibayes.networks.operations import Conv2d, Linear, Operation

Head = Callable[[Tensor | None, Box | None], Tensor]
"""Outputs of the clean pass and the box of outputs, None where that pass is not made -> log p(y | x, w), (B,)."""

Probes = dict[str, dict[str, Tensor]]
"""For each layer by name a tensor for each use of its weights: ``"point"``, ``"center"``, ``"radius"``."""

CHUNK = 2**22
"""Floats a convolution may write down at a time: 16 MiB in float32. With more, a CPU waits for fresh memory."""


class _Use(NamedTuple):
    """One use of a layer's weights: derivative of the output (B, m) and input (B, n), or images of them."""

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


def slope(rounding: Rounding, weight: Tensor) -> Tensor:
    """Return the derivative of ``rounding.magnitude``, elementwise: of |w|, or of sqrt(w² + τ²) if that is smoothed."""
    return weight / rounding.magnitude(weight) if rounding.smoothing > 0.0 else weight.sign()


def closed_form_gradients(
    head: Head, network: Network, inputs: Tensor | None, box: Box | None = None, rounding: Rounding = IDEAL
) -> Gradients:
    """Compute ``Gradients`` for a network all of whose parameters are in linear and convolutional layers.

    Args:
        head: the log-likelihood as a function of outputs.
        network: graph, parameters and buffers; ``applies_to`` its graph.
        inputs: of the clean pass, (B, ...); None if there is none.
        box: the inputs of the interval pass; None if there is none.
        rounding: its arithmetic.
    """
    graph, params, weights = network.graph, network.params, {**network.buffers, **network.params}
    layers = [node for node in graph.nodes if _is_layer(node) and not params.keys().isdisjoint(node.roles.values())]
    kinds = (("point",) if inputs is not None else ()) + (("center", "radius") if box is not None else ())
    like = next(iter(params.values()))
    points = inputs if box is None else box.center
    assert points is not None
    probes = {node.name: {kind: like.new_zeros(len(points), *node.shape) for kind in kinds} for node in layers}

    def probed(probes: Probes) -> tuple[Tensor, tuple[Tensor, Probes]]:
        seen: Probes = {node.name: {} for node in layers}

        def at_point(node: Node, values: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if node.name not in probes:
                return output
            seen[node.name]["point"] = values[0]
            return output + probes[node.name]["point"]

        def at_box(node: Node, boxes: tuple[Box, ...], output: Box) -> Box:
            if node.name not in probes:
                return output
            seen[node.name].update(center=boxes[0].center, radius=boxes[0].radius)
            probe = probes[node.name]
            return Box(output.center + probe["center"], output.radius + probe["radius"])

        values = head(
            None if inputs is None else graph.evaluate(weights, inputs, at_point),
            None if box is None else interval_bounds(graph, weights, box, rounding, at_box),
        )
        return values.sum(), (values, seen)

    derivatives, (values, seen) = torch.func.grad(probed, has_aux=True)(probes)
    gradient: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    for node in layers:
        uses = {kind: _Use(derivatives[node.name][kind], seen[node.name][kind]) for kind in kinds}
        radius = uses.pop("radius", None)
        plain = list(uses.values())
        weight, bias = node.roles["weight"], node.roles.get("bias")
        if weight in params:
            factor = None if radius is None else slope(rounding, params[weight])
            gradient[weight], squares[weight] = _weight_sums(node.operation, params[weight], plain, radius, factor)
        if bias is not None and bias in params:
            total = torch.stack([use.derivative for use in plain]).sum(0)
            total = total.reshape(*total.shape[:2], -1).sum(-1)
            gradient[bias] = total.sum(0)
            squares[bias] = total.square().sum(0)
    return Gradients(values, gradient, squares)


def _weight_sums(
    operation: Operation,
    weight: Tensor,
    plain: list[_Use],
    radius: _Use | None,
    factor: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the sum and the sum of squares of the per-example gradients of one layer's weights.

    Args:
        operation: the layer.
        weight: its weights.
        plain: their uses at points and centers.
        radius: their use for radii, if any.
        factor: s(W) of that use.
    """
    if isinstance(operation, Conv2d):
        return _convolution_sums(operation, weight, plain, radius, factor)
    return _linear_sums(plain, radius, factor)


def _linear_sums(plain: list[_Use], radius: _Use | None, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    """Multiply out the squares of a weight matrix (m, n)."""
    terms = [_product(use, use) for use in plain]
    terms += [_product(one, other, 2.0) for one, other in combinations(plain, 2)]
    gradient = _outer(plain)
    if radius is None or factor is None:
        return gradient, _outer(terms)
    squares = torch.addcmul(_outer(terms), factor.square(), _outer([_product(radius, radius)]))
    crossed = _outer([_product(use, radius, 2.0) for use in plain])
    return torch.addcmul(gradient, factor, _outer([radius])), torch.addcmul(squares, factor, crossed)


def _outer(uses: list[_Use]) -> Tensor:
    """Sum of derivativeᵀ value over all uses, as one product."""
    return torch.cat([u.derivative for u in uses]).T @ torch.cat([u.value for u in uses])


def _product(one: _Use, other: _Use, times: float = 1.0) -> _Use:
    return _Use(one.derivative * other.derivative * times, one.value * other.value)


def _convolution_sums(
    operation: Conv2d, weight: Tensor, plain: list[_Use], radius: _Use | None, factor: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Write down the gradients of filters (O, C / groups, kh, kw), a chunk of examples at a time."""
    batch_size, *shape = plain[0].derivative.shape
    patches = weight[0].numel() * operation.groups * math.prod(shape[1:])
    # Many pixels make the patches of one use large, many channels the gradients of two.
    size = max(1, CHUNK // max(patches, 2 * weight.numel()))
    gradient, squares = torch.zeros_like(weight), torch.zeros_like(weight)
    for start in range(0, batch_size, size):
        chunk = slice(start, start + size)
        each = torch.stack([_filter_gradients(operation, weight, use, chunk) for use in plain]).sum(0)
        if radius is not None and factor is not None:
            # Not addcmul_ and square_, which vmap does model by model.
            each.add_(_filter_gradients(operation, weight, radius, chunk).mul_(factor))
        gradient += each.sum(0)
        squares += each.mul_(each).sum(0)
    return gradient, squares


def _filter_gradients(operation: Conv2d, weight: Tensor, use: _Use, chunk: slice) -> Tensor:
    """Return each example's gradient (b, O, C / groups, kh, kw) of the filters in one use of them.

    A convolution is a product of the filters with the input's patches, one column (C / groups) kh kw for each of the
    L output pixels; its gradient is the derivative (O / groups, L) times the transpose of that, group by group.
    """
    derivative, value = use.derivative[chunk], use.value[chunk]
    kernel = weight.shape[2:]
    patches = functional.unfold(value, kernel, operation.dilation, operation.padding, operation.stride)
    grouped = (len(value) * operation.groups, -1, patches.shape[-1])
    filters = derivative.reshape(grouped) @ patches.reshape(grouped).mT
    return filters.reshape(len(value), *weight.shape)
