"""Squared per-example gradients of linear layers, without materialising per-example gradients.

Under the robust likelihood a weight matrix enters three times: as W x in the clean forward pass, as W c for the
centre of the box, and as |W| r for its radius. The gradient of one example b is therefore

    G_b = d_b x_bᵀ + e_b c_bᵀ + sign(W) * (f_b r_bᵀ),

where d, e, f are the derivatives of its log-likelihood with respect to the three outputs. Squares and cross terms,
summed over b, are matrix products of elementwise products: six in all. The derivatives come from one backward pass
with respect to zero *probes* added to the outputs of each layer, in which no weight gradient is formed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Box
from certibayes.likelihoods.base import Gradients
from certibayes.networks import Graph, Node, Params
from certibayes.networks.operations import Linear

PointObserver = Callable[[Node, tuple[Tensor, ...], Tensor], Tensor]
BoxObserver = Callable[[Node, tuple[Box, ...], Box], Box]
Evaluate = Callable[[PointObserver, BoxObserver], Tensor]
"""Computes the log-likelihood (B,) of one point pass and at most one box pass, letting observers look on."""


class _Use(NamedTuple):
    """One use of a layer's weights: derivative of the output (B, m) and input (B, n)."""

    derivative: Tensor
    value: Tensor


def applies_to(graph: Graph) -> bool:
    """Tell whether every parameter belongs to exactly one linear layer, used once."""
    used = [name for node in graph.nodes for name in node.roles.values() if name in graph.parameters]
    linear = {name for node in graph.nodes if isinstance(node.operation, Linear) for name in node.roles.values()}
    flat = all(len(node.shape) == 1 for node in graph.nodes if isinstance(node.operation, Linear))
    return flat and len(used) == len(set(used)) and set(used) <= linear and set(used) == set(graph.parameters)


def linear_layer_gradients(
    graph: Graph, params: Params, batch_size: int, evaluate: Evaluate, passes: tuple[str, ...]
) -> Gradients:
    """Compute ``Gradients`` for a network all of whose parameters are in linear layers.

    Args:
        graph: the network; ``applies_to`` it.
        params: its parameters.
        batch_size: B.
        evaluate: the log-likelihood.
        passes: which of "point", "centre", "radius" ``evaluate`` makes.
    """
    layers = [node for node in graph.nodes if isinstance(node.operation, Linear)]
    like = next(iter(params.values()))
    probes = {node.name: {kind: like.new_zeros(batch_size, *node.shape) for kind in passes} for node in layers}

    def probed(probes: dict[str, dict[str, Tensor]]) -> tuple[Tensor, tuple[Tensor, Any]]:
        inputs: dict[str, dict[str, Tensor]] = {node.name: {} for node in layers}

        def on_point(node: Node, values: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if node.name not in probes:
                return output
            inputs[node.name]["point"] = values[0]
            return output + probes[node.name]["point"]

        def on_box(node: Node, boxes: tuple[Box, ...], output: Box) -> Box:
            if node.name not in probes:
                return output
            inputs[node.name].update(centre=boxes[0].centre, radius=boxes[0].radius)
            probe = probes[node.name]
            return Box(output.centre + probe["centre"], output.radius + probe["radius"])

        values = evaluate(on_point, on_box)
        return values.sum(), (values, inputs)

    derivatives, (values, inputs) = torch.func.grad(probed, has_aux=True)(probes)
    gradient: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    for node in layers:
        uses = {kind: _Use(derivatives[node.name][kind], inputs[node.name][kind]) for kind in passes}
        plain = [use for kind, use in uses.items() if kind != "radius"]
        weight = node.roles["weight"]
        sign = params[weight].sign() if "radius" in uses else None
        gradient[weight], squares[weight] = _weight_sums(plain, uses.get("radius"), sign)
        if "bias" in node.roles:
            total = torch.stack([use.derivative for use in plain]).sum(0)
            gradient[node.roles["bias"]] = total.sum(0)
            squares[node.roles["bias"]] = total.square().sum(0)
    return Gradients(values, gradient, squares)


def _outer(uses: list[_Use]) -> Tensor:
    """Sum of derivativeᵀ value over all uses, as one product."""
    return torch.cat([u.derivative for u in uses]).T @ torch.cat([u.value for u in uses])


def _product(one: _Use, other: _Use, factor: float = 1.0) -> _Use:
    return _Use(one.derivative * other.derivative * factor, one.value * other.value)


def _weight_sums(plain: list[_Use], radius: _Use | None, sign: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sum and the sum of squares of the per-example gradients of one weight matrix."""
    terms = [_product(use, use) for use in plain]
    terms += [_product(one, other, 2.0) for one, other in combinations(plain, 2)]
    gradient = _outer(plain)
    if radius is None or sign is None:
        return gradient, _outer(terms)
    # |w| has derivative 0 at w = 0, hence the square of the sign.
    squares = torch.addcmul(_outer(terms), sign.abs(), _outer([_product(radius, radius)]))
    crossed = _outer([_product(use, radius, 2.0) for use in plain])
    return torch.addcmul(gradient, sign, _outer([radius])), torch.addcmul(squares, sign, crossed)
