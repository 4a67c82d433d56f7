"""Boxes that CROWN has narrowed, kept for the stages that come after.

CROWN's intermediate bounds cost far more than the bounds that are made of them. They are the same in every stage, so
they are found once for every network and point of a batch; all other boxes follow from them by intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from certibayes.bounds.intermediate import narrowed_layers
from certibayes.bounds.linear import Boxes
from certibayes.networks import Graph
from certibayes.regions import Box

Kind = tuple[int, str]
"""A network, and how its layers were narrowed: ``"crown"`` or ``"alpha-crown"``."""


class Narrowed:
    """What is known of the layers of every network, for the points of a batch.

    Args:
        points: how many there are.
        memory: bytes that may be kept; what comes after that is not.
    """

    def __init__(self, points: int, memory: int):
        self._points, self._left = points, memory
        self._rows: dict[Kind, Tensor] = {}
        self._boxes: dict[Kind, Mapping[str, Box]] = {}

    def of(self, kind: Kind, points: Tensor) -> Boxes | None:
        """Return narrowed boxes of some points, (P,), by layer; None unless those of all are known."""
        if kind not in self._rows:
            return None
        rows = self._rows[kind][points]
        if bool((rows < 0).any()):
            return None
        return {name: box.take(rows) for name, box in self._boxes[kind].items()}

    def keep(self, graph: Graph, kind: Kind, points: Tensor, boxes: Boxes) -> None:
        """Keep narrowed boxes of some points, (P,), as long as there is room."""
        found = {name: Box(boxes[name].center, boxes[name].radius) for name in narrowed_layers(graph)}
        size = sum(2 * box.center.numel() * box.center.element_size() for box in found.values())
        if size > self._left:
            return
        self._left -= size
        known = self._boxes.get(kind)
        if known is None:
            self._rows[kind] = torch.full((self._points,), -1, device=points.device)
            self._boxes[kind], start = found, 0
        else:
            start = len(next(iter(known.values())).center) if known else 0
            self._boxes[kind] = {name: _joined([known[name], box]) for name, box in found.items()}
        self._rows[kind][points] = torch.arange(start, start + len(points), device=points.device)


@dataclass(frozen=True)
class Share:
    """What is kept of some of the points, (P,), in one network, or, while that is None, in any."""

    narrowed: Narrowed
    points: Tensor
    network: int | None = None

    def take(self, points: Tensor | slice) -> Share:
        """Return that of fewer points."""
        return replace(self, points=self.points[points])

    def of_network(self, network: int) -> Share:
        """Return that of one network."""
        return replace(self, network=network)

    def known(self, intermediates: str) -> Boxes | None:
        """Return the boxes that are kept, by layer; None unless those of all points are."""
        return None if self.network is None else self.narrowed.of((self.network, intermediates), self.points)

    def keep(self, graph: Graph, intermediates: str, boxes: Boxes) -> None:
        """Keep boxes, as long as there is room."""
        if self.network is not None:
            self.narrowed.keep(graph, (self.network, intermediates), self.points, boxes)


def kept(shares: Sequence[Share], intermediates: str) -> Boxes | None:
    """Return the boxes that are kept of all shares, one after the other, by layer; None unless all of them are."""
    found: list[Boxes] = []
    for share in shares:
        known = share.known(intermediates)
        if known is None:
            return None
        found.append(known)
    if len(found) < 2:
        return found[0] if found else None
    return {name: _joined([boxes[name] for boxes in found]) for name in found[0]}


def _joined(boxes: Sequence[Box]) -> Box:
    return Box(torch.cat([box.center for box in boxes]), torch.cat([box.radius for box in boxes]))
