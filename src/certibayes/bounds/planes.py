r"""Planes above ReLU units: the tightest upper bound of one unit over the box of all that its layer takes in.

The chord of CROWN bounds relu(w x + b) by a line in z = w x + b, and knows of x no more than that z lies in [l, u].
Over the box of x itself the concave envelope is lower; at the corners of the box, where attacks end, it is the unit
itself (Anderson et al., "Strong mixed-integer programming formulations for trained neural networks", 2020;
Tjandraatmadja et al., "The convex relaxation barrier, revisited", 2020). Let h_i and k_i be the largest and smallest
value of w_i x_i. For any shares s in [0, 1]ⁿ

    relu(w x + b) <= Σ s_i w_i x_i + max( b + Σ (1 - s_i) h_i,  -Σ s_i k_i ),

because w x + b = Σ s_i w_i x_i + b + Σ (1 - s_i) w_i x_i and 0 = Σ s_i w_i x_i - Σ s_i w_i x_i. Equal shares
u / (u - l) give the chord; the envelope is the smallest of all these planes. Any shares are sound, so the best ones may
be found by gradient ascent, as the slopes of alpha-CROWN are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds.offset import coefficient_error
from certibayes.bounds.rounding import Rounding
from certibayes.networks import Graph, Node
from certibayes.networks.operations import Linear, ReLU, Weights
from certibayes.regions import Box


class Planes(NamedTuple):
    """Planes above K units of one layer, for each example and quantity.

    Attributes:
        units: which units, (B, S, K), none twice.
        in_use: where a plane takes the place of the chord, (B, S, K); elsewhere units only fill up the list.
        shares: s, (B, S, K, n).
    """

    units: Tensor
    in_use: Tensor
    shares: Tensor


PlanesByNode = Mapping[str, Planes]


class Raised(NamedTuple):
    """What planes make of coefficients on their units: a linear function of what the layer takes in.

    Attributes:
        rest: coefficients on the units that are left, (B, S, H).
        coefficients: on what the layer takes in, (B, S, n).
        constant: (B, S), in float64.
    """

    rest: Tensor
    coefficients: Tensor
    constant: Tensor


def planed_layers(graph: Graph) -> dict[str, Node]:
    """Return the ReLU nodes that can have planes, by name, with the linear layer that feeds each."""
    by_name = {node.name: node for node in graph.nodes}
    feeding = {node.name: by_name.get(node.inputs[0]) for node in graph.nodes if isinstance(node.operation, ReLU)}
    return {
        name: source
        for name, source in feeding.items()
        if source is not None and isinstance(source.operation, Linear) and len(source.shape) == 1
    }


def chord_planes(coefficients: Tensor, box: Box, width: int, most: int) -> Planes:
    """Return the planes that are chords, above every unit that may have either sign and a negative coefficient.

    Args:
        coefficients: on the units, (B, S, H).
        box: what the units take in, (B, H).
        width: n, how many values the layer takes in.
        most: at most so many units, those whose chord may lose most.
    """
    low, high = box.lower, box.upper
    crossing = (low < 0) & (high > 0)
    share = torch.where(crossing, high / (high - low).clamp(min=torch.finfo(high.dtype).tiny), torch.zeros_like(high))
    loss = coefficients.clamp(max=0) * (share * low)[:, None]
    count = min(most, int((loss > 0).sum(-1).max())) if loss.numel() else 0
    lost, units = loss.topk(count, -1)
    chosen = share[:, None].expand_as(loss).gather(-1, units)
    return Planes(units, lost > 0, chosen[..., None].expand(*units.shape, width).clone())


def raise_units(
    planes: Planes, coefficients: Tensor, weights: Weights, inputs: Box, output: Box, rounding: Rounding
) -> Raised:
    """Bound the units that have planes, where their coefficients are negative.

    Args:
        planes: over K units.
        coefficients: on all units, (B, S, H).
        weights: of the linear layer.
        inputs: box of what it takes in, (B, n).
        output: box of the units themselves, (B, H).
        rounding: of the program that runs. Its w x + b is off by at most γ (|w| |x| + |b|), and relu passes that on.
    """
    taken = coefficients.gather(-1, planes.units).clamp(max=0) * planes.in_use
    rest = coefficients.scatter_add(-1, planes.units, -taken)
    weight, bias = weights["weight"], weights.get("bias")
    center, radius, shares = inputs.center, inputs.radius, planes.shares
    if rounding.outward:
        # Products of two floats are exact in float64, and its sums are off by far less than is added below.
        weight, bias = weight.double(), None if bias is None else bias.double()
        center, radius, shares = center.double(), radius.double(), shares.double()

    part, above, offsets = _planes(planes, shares, weight, bias, center, radius)
    through = (taken.to(part.dtype)[..., None, :] @ part).squeeze(-2)
    if not rounding.outward:
        return Raised(rest, through, (taken * above).sum(-1).double())
    magnitude = _on_units(planes, (center.abs() + radius) @ rounding.magnitude(weight).T) + offsets.abs()
    # Of the program that runs; of the sums here, n and then K terms long.
    terms, units = weight.shape[1], taken.shape[-1]
    lost = magnitude * (1.25 * rounding.gamma(terms + 8) + (terms + units + 64) * 2.0**-50) + 2 * rounding.underflow
    constant = (taken.double() * (above + lost)).sum(-1)
    # Coefficients that arrived a few units off multiply what the units really are.
    own = torch.zeros_like(rest).scatter_add(-1, planes.units, taken)
    return Raised(rest, through.to(rest.dtype), constant - coefficient_error(own, output, rounding).double())


def plane_values(planes: Planes, weights: Weights, inputs: Box, x: Tensor) -> Tensor:
    """Return the height of every plane at one x of each example, (B, n) -> (B, S, K), rounding aside."""
    part, above, _ = _planes(
        planes, planes.shares, weights["weight"], weights.get("bias"), inputs.center, inputs.radius
    )
    return (part @ x[:, None, :, None]).squeeze(-1) + above


def _planes(
    planes: Planes, shares: Tensor, weight: Tensor, bias: Tensor | None, center: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return s_i w_i, (B, S, K, n), the constants of the planes, and the biases of their units, (B, S, K)."""
    part = shares * weight[planes.units]
    middle = (part @ center[:, None, :, None]).squeeze(-1)
    reach = (part.abs() @ radius[:, None, :, None]).squeeze(-1)
    offsets = torch.zeros_like(middle) if bias is None else bias[planes.units]
    top = _on_units(planes, center @ weight.T + radius @ weight.abs().T)
    return part, torch.maximum(offsets + top - (middle + reach), reach - middle), offsets


def _on_units(planes: Planes, value: Tensor) -> Tensor:
    """Pick (B, H) for the units of planes, (B, S, K)."""
    return value[:, None].expand(-1, planes.units.shape[1], -1).gather(-1, planes.units)
