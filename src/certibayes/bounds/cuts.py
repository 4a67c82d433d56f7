r"""Multi-neuron cuts: the tightest linear upper bound of one ReLU unit over the box of its layer's inputs.

The chord of CROWN bounds relu(w x + b) by a linear function of z = w x + b, and knows of x no more than that z lies in
[l, u]. Over the box of x itself the concave envelope is lower; at the corners of the box, where attacks end, it is the
unit itself (Anderson et al., "Strong mixed-integer programming formulations for trained neural networks", 2020;
Tjandraatmadja et al., "The convex relaxation barrier, revisited", 2020). Let h_i and k_i be the largest and smallest
value of w_i x_i. For any coefficients s in [0, 1]ⁿ

    relu(w x + b) <= Σ s_i w_i x_i + max( b + Σ (1 - s_i) h_i,  -Σ s_i k_i ),

because w x + b = Σ s_i w_i x_i + b + Σ (1 - s_i) w_i x_i and 0 = Σ s_i w_i x_i - Σ s_i w_i x_i. Equal coefficients
u / (u - l) give the chord; the envelope is the smallest of all these cuts. Any coefficients are sound, so the best ones
may be found by gradient ascent, as the slopes of alpha-CROWN are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds._offset import coefficient_error
from certibayes.bounds.rounding import Rounding
from certibayes.networks import Graph, Node
from certibayes.networks.operations import Linear, ReLU, Weights
from certibayes.regions import Box


class Cuts(NamedTuple):
    """Cuts above K units of one layer, for each example and quantity.

    Attributes:
        units: which units, (B, S, K), none twice.
        in_use: where a cut replaces the chord, (B, S, K); elsewhere units only fill up the list.
        coefficients: s, (B, S, K, n).
    """

    units: Tensor
    in_use: Tensor
    coefficients: Tensor


CutsByNode = Mapping[str, Cuts]


class Relaxed(NamedTuple):
    """A linear function of the units of a layer, after cuts have replaced some units by functions of its inputs.

    Attributes:
        rest: coefficients on the units that are left, (B, S, H).
        coefficients: on the layer's inputs, (B, S, n).
        constant: (B, S), in float64.
    """

    rest: Tensor
    coefficients: Tensor
    constant: Tensor


def cut_layers(graph: Graph) -> dict[str, Node]:
    """Return the ReLU nodes that can have cuts, by name, with the linear layer that feeds each."""
    by_name = {node.name: node for node in graph.nodes}
    feeding = {node.name: by_name.get(node.inputs[0]) for node in graph.nodes if isinstance(node.operation, ReLU)}
    return {
        name: source
        for name, source in feeding.items()
        if source is not None and isinstance(source.operation, Linear) and len(source.shape) == 1
    }


def chord_cuts(coefficients: Tensor, box: Box, inputs: int, most: int) -> Cuts:
    """Return the cuts that are chords, above every unit that may have either sign and a negative coefficient.

    Args:
        coefficients: on the units, (B, S, H).
        box: pre-activation bounds of the units, (B, H).
        inputs: n, the number of inputs of the layer.
        most: number of units with cuts, at most; those whose chord may lose most are taken.
    """
    low, high = box.lower, box.upper
    crossing = (low < 0) & (high > 0)
    chord = torch.where(crossing, high / (high - low).clamp(min=torch.finfo(high.dtype).tiny), torch.zeros_like(high))
    loss = coefficients.clamp(max=0) * (chord * low)[:, None]
    count = min(most, int((loss > 0).sum(-1).max())) if loss.numel() else 0
    lost, units = loss.topk(count, -1)
    chosen = chord[:, None].expand_as(loss).gather(-1, units)
    return Cuts(units, lost > 0, chosen[..., None].expand(*units.shape, inputs).clone())


def apply_cuts(
    cuts: Cuts, coefficients: Tensor, weights: Weights, inputs: Box, output: Box, rounding: Rounding
) -> Relaxed:
    """Bound the units that have cuts, where their coefficients are negative.

    Args:
        cuts: over K units.
        coefficients: on all units, (B, S, H).
        weights: of the linear layer.
        inputs: box of its inputs, (B, n).
        output: box of the units themselves, (B, H).
        rounding: of the program that runs. Its w x + b is off by at most γ (|w| |x| + |b|), and relu passes that on.
    """
    taken = coefficients.gather(-1, cuts.units).clamp(max=0) * cuts.in_use
    rest = coefficients.scatter_add(-1, cuts.units, -taken)
    weight, bias = weights["weight"], weights.get("bias")
    center, radius, fractions = inputs.center, inputs.radius, cuts.coefficients
    if rounding.outward:
        # Products of two floats are exact in float64, and its sums are off by far less than is added below.
        weight, bias = weight.double(), None if bias is None else bias.double()
        center, radius, fractions = center.double(), radius.double(), fractions.double()

    part, above, offsets = _linear_functions(cuts, fractions, weight, bias, center, radius)
    through = (taken.to(part.dtype)[..., None, :] @ part).squeeze(-2)
    if not rounding.outward:
        return Relaxed(rest, through, (taken * above).sum(-1).double())
    magnitude = _on_units(cuts, (center.abs() + radius) @ rounding.magnitude(weight).T) + offsets.abs()
    # Of the program that runs; of the sums here, n and then K terms long.
    terms, units = weight.shape[1], taken.shape[-1]
    lost = magnitude * (1.25 * rounding.gamma(terms + 8) + (terms + units + 64) * 2.0**-50) + 2 * rounding.underflow
    constant = (taken.double() * (above + lost)).sum(-1)
    # Incoming coefficients that are a few units off multiply what the units really are.
    own = torch.zeros_like(rest).scatter_add(-1, cuts.units, taken)
    return Relaxed(rest, through.to(rest.dtype), constant - coefficient_error(own, output, rounding).double())


def cut_values(cuts: Cuts, weights: Weights, inputs: Box, x: Tensor) -> Tensor:
    """Return the value of every cut at one x of each example, (B, n) -> (B, S, K), rounding aside."""
    part, above, _ = _linear_functions(
        cuts, cuts.coefficients, weights["weight"], weights.get("bias"), inputs.center, inputs.radius
    )
    return (part @ x[:, None, :, None]).squeeze(-1) + above


def _linear_functions(
    cuts: Cuts, fractions: Tensor, weight: Tensor, bias: Tensor | None, center: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return s_i w_i, (B, S, K, n), the constants of the cuts, and the biases of their units, (B, S, K)."""
    part = fractions * weight[cuts.units]
    middle = (part @ center[:, None, :, None]).squeeze(-1)
    reach = (part.abs() @ radius[:, None, :, None]).squeeze(-1)
    offsets = torch.zeros_like(middle) if bias is None else bias[cuts.units]
    top = _on_units(cuts, center @ weight.T + radius @ weight.abs().T)
    return part, torch.maximum(offsets + top - (middle + reach), reach - middle), offsets


def _on_units(cuts: Cuts, value: Tensor) -> Tensor:
    """Pick (B, H) for the units of cuts, (B, S, K)."""
    return value[:, None].expand(-1, cuts.units.shape[1], -1).gather(-1, cuts.units)
