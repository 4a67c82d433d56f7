"""Networks of one graph that are bounded at once: what is known of their points lies one network after the other.

Which units of a layer are worth a bound differs from network to network and from point to point, and inside
``torch.vmap`` nobody can look at that. So the choice is made outside, on boxes of all networks and points, (N B, ...),
and only the arithmetic is mapped: ``each`` gives every network its own rows, as many as every other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from certibayes.networks import Params
from certibayes.regions import Box
from certibayes.support.stacks import count, map_trees, pick


@dataclass(frozen=True)
class Stack:
    """N networks of one graph.

    Attributes:
        params: parameters and buffers of N samples, or, where N is 1, of one, without a dimension for it.
        count: N.
    """

    params: Params
    count: int = 1

    @staticmethod
    def of(stacked: Params) -> Stack:
        """Return the networks of N samples."""
        number = count(stacked)
        return Stack(pick(stacked, 0)) if number == 1 else Stack(stacked, number)

    @property
    def first(self) -> Params:
        """Parameters and buffers of the first of them."""
        return self.params if self.count == 1 else pick(self.params, 0)

    def each(self, function: Callable[..., Any], *rows: Any) -> Any:
        """Return ``function`` of the parameters of each network and its rows, one network after the other.

        Args:
            function: of one network's parameters and trees of (R, ...).
            *rows: trees of tensors (N R, ...).
        """
        if self.count == 1:
            return function(self.params, *rows)
        found = map_trees(function, self.params, *apart(rows, self.count))
        return pytree.tree_map_only(Tensor, lambda tensor: tensor.flatten(0, 1), found)

    def box(self, box: Box) -> Box:
        """Return the box of inputs, (B, ...), for each network, (N B, ...)."""
        every = torch.arange(len(box.center), device=box.center.device)
        return box if self.count == 1 else box.take(every.repeat(self.count))

    def side_by_side(self, wanted: Tensor) -> Rows:
        """Return the units that are wanted, (N B, units), as rows of each network."""
        found = wanted.nonzero()
        points = len(wanted) // self.count
        network = found[:, 0] // points
        counts = wanted.view(self.count, -1).sum(1)
        rank = torch.arange(len(found), device=found.device) - (counts.cumsum(0) - counts)[network]
        # A network that has fewer is given its first unit again and again.
        rows = found.new_zeros(self.count, int(counts.max()), 2)
        rows[..., 0] = torch.arange(self.count, device=found.device)[:, None] * points
        rows[network, rank] = found
        return Rows(rows, found, network, rank)


def apart(rows: Any, count: int) -> Any:
    """Return trees of (N R, ...) as trees of (N, R, ...)."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.unflatten(0, (count, -1)), rows)


class Rows(NamedTuple):
    """Units of N networks, as many rows for each.

    Attributes:
        rows: point and number of a unit, (N, M, 2).
        wanted: those that were asked for, (R, 2).
        network: where they are among all rows, (R,).
        rank: likewise.
    """

    rows: Tensor
    wanted: Tensor
    network: Tensor
    rank: Tensor

    def of_wanted(self, values: Tensor) -> Tensor:
        """Return the values of what was asked for, (R, ...), among those of all rows, (N, M, ...)."""
        return values[self.network, self.rank]
