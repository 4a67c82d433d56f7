"""Which activation to split next.

The linear bound of a leaf has its minimum at a corner x* of the box, where the network itself gives more by what each
relaxation loses at x*. That is one score. The other is what the chord above a unit on [l, u] adds to the offset of the
bound, |min(c, 0)| u |l| / (u - l) for a coefficient c on its output, which a split takes away (BaBSR; Bunel et al.,
2020). Units with the highest scores of either kind are candidates. Before a leaf is split, the children of every
candidate are bounded by one backward pass each with the variables of their parent, and the candidate whose children
gain most is taken (filtered smart branching; De Palma et al., 2021).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds.cuts import Cuts, cut_values
from certibayes.bounds.linear import Boxes, LinearBounder
from certibayes.bounds.relaxation import Relaxation
from certibayes.networks import Node
from certibayes.networks.graph import INPUT

BY_SCORE = 3
"""Candidates of each of the two scores."""

LARGER_GAIN = 0.1
"""Weight of the larger gain of two children beside the smaller one."""


class Scores(NamedTuple):
    """What is known of every activation of a leaf.

    Attributes:
        losses: what its relaxation loses at the corner, (L, H).
        offsets: what its chord adds to the offset of the bound, (L, H).
        margin: of the network itself at the corner, float64 (L,).
    """

    losses: Tensor
    offsets: Tensor
    margin: Tensor

    @property
    def loss(self) -> Tensor:
        """What can be gained by splits, (L,), 0 where there is nothing to split."""
        if self.losses.shape[1] == 0:
            return torch.zeros_like(self.losses.sum(1))
        largest, offset = self.losses.amax(1), self.offsets.amax(1)
        # Where fixed signs rule the corner out, nothing may be lost there and yet the bound be too low.
        return torch.where(largest > 0, largest, offset)

    @property
    def candidates(self) -> Tensor:
        """Units to choose from, (L, K), the highest loss first; -1 where there are fewer."""
        count = min(BY_SCORE, self.losses.shape[1])
        both = [score.topk(count, 1) for score in (self.losses, self.offsets)]
        return torch.cat([torch.where(values > 0, units, -1) for values, units in both], 1)


def scores_at(
    corner: Tensor,
    bounder: LinearBounder,
    relus: list[Node],
    specification: Tensor,
    signs: Tensor,
    coefficients: dict[str, Tensor],
    chosen: Relaxation,
) -> Scores:
    """Score the activations of leaves.

    Args:
        corner: of the box, where the bound of each leaf is smallest, (L, *input_shape).
        bounder: of the leaves.
        relus: activations that may be split, H units in all.
        specification: coefficients on the outputs, (L, 1, *output_shape).
        signs: that are fixed already, (L, H).
        coefficients: on the output of each node, (L, *shape).
        chosen: the relaxation that they come from.
    """
    boxes, slopes, values = bounder.boxes, chosen.slopes, {INPUT: corner}
    assert not isinstance(slopes, str)

    def remember(node: Node, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        values[node.name] = output
        return output

    outputs = bounder.graph.evaluate(bounder.params, corner, remember)
    margin = (outputs[:, None] * specification).flatten(1).sum(1)
    losses, offsets = [corner.new_zeros(len(corner), 0)], [corner.new_zeros(len(corner), 0)]
    for node in relus:
        z, c, box = values[node.inputs[0]], coefficients[node.name], boxes[node.inputs[0]]
        low, high = box.center - box.radius, box.center + box.radius
        chord = high / (high - low).clamp(min=1e-30)
        above = chord * (z - low)
        if node.name in chosen.cuts:
            above = _under_cuts(above, node, chosen.cuts[node.name], bounder, values)
        line = torch.where(c > 0, slopes[node.name][:, 0] * z, above)
        crosses = ((low < 0) & (high > 0)).to(c)
        losses.append((c * (z.clamp(min=0) - line) * crosses).flatten(1))
        offsets.append((c.clamp(max=0) * low * chord * crosses).flatten(1))
    is_free = (signs == 0).to(corner)
    lost, offset = (torch.cat(parts, 1).clamp(min=0.0) * is_free for parts in (losses, offsets))
    return Scores(torch.nan_to_num(lost), torch.nan_to_num(offset), margin.double())


def _under_cuts(above: Tensor, node: Node, cuts: Cuts, bounder: LinearBounder, values: dict[str, Tensor]) -> Tensor:
    """Put the values of cuts, where there are any, into upper bounds of units, (L, H)."""
    source = next(other for other in bounder.graph.nodes if other.name == node.inputs[0])
    fed = source.inputs[0]
    boxes: Boxes = bounder.boxes
    at = cut_values(cuts, source.weights(bounder.params), boxes[fed], values[fed])
    units, in_use = cuts.units[:, 0], cuts.in_use[:, 0]
    return above.scatter(1, units, torch.where(in_use, at[:, 0], above.gather(1, units)))


def best_of(children: Tensor, before: Tensor, target: Tensor, candidates: Tensor) -> Tensor:
    """Return the candidate of each leaf whose children gain most, (L,).

    Args:
        children: bounds of both children of every candidate, (L, K, 2).
        before: bounds of the leaves, (L,).
        target: above which a child gains nothing more, (L,).
        candidates: (L, K), -1 for none.
    """
    gain = children.clamp(max=target[:, None, None]) - before[:, None, None]
    gain = torch.nan_to_num(gain).clamp(min=0.0)
    value = gain.amin(-1) + LARGER_GAIN * gain.amax(-1)
    # Of candidates that gain alike, nothing perhaps, the first.
    value = torch.where(candidates >= 0, value, -1.0)
    return candidates.gather(1, value.argmax(1, keepdim=True)).squeeze(1)
