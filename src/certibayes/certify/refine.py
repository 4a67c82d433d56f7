"""Tight margins for a whole predictor: the searches of all its networks on the points that are still open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Box, by_name
from certibayes.certify.branch import Search
from certibayes.certify.joint import Lines
from certibayes.certify.network_bounds import MEMORY, known_boxes, require_sound
from certibayes.certify.prospects import PROBES
from certibayes.networks import direct_sums
from certibayes.networks.samples import pick
from certibayes.prediction import Predictor


class Found(NamedTuple):
    """What is known of some problems for one network.

    Attributes:
        network: which one.
        which: of the problems, (Q,).
        margins: lower bounds, float64 (Q,).
        smallest: margins that the network really has at ``inputs``, float64 (Q,).
        inputs: where it came closest to the rival, (Q, *input_shape).
    """

    network: int
    which: Tensor
    margins: Tensor
    smallest: Tensor
    inputs: Tensor


class Searched(NamedTuple):
    """A network, some of the problems, (Q,), and the search over these."""

    network: int
    which: Tensor
    search: Search


def bytes_held(predictor: Predictor, rivals: int) -> int:
    """Bytes that a refinement holds for each point of which it searches so many rivals, before anything is split."""
    inputs = torch.Size(predictor.graph.input_shape).numel()
    layers = [torch.Size(node.shape).numel() for node in predictor.graph.nodes]
    number = torch.finfo(predictor.dtype).bits // 8
    # Boxes are two numbers each; the first networks may have two searches, of different rivals. For every rival there
    # are a line and the worst input, and a sign for every unit.
    boxes, search = 2 * number * (inputs + sum(layers)), 2 * number * inputs + sum(layers)
    return (predictor.size + PROBES) * boxes + predictor.size * rivals * search


@dataclass
class Refinement:
    """Bounds on margins z_y - z_c of every network over a box, for P problems.

    Attributes:
        predictor: N networks.
        box: inputs of the points, (B, ...).
        point: which of them each problem is about, (P,).
        labels: y, (P,).
        rivals: c, (P,).
        rounding: ``"outward"`` or ``"ideal"``.
        intermediates: what is known of the layers in between.
        memory: bytes for the work at hand, besides what is held; see ``bytes_held``.
        searches: that have begun, each with other problems.
    """

    predictor: Predictor
    box: Box
    point: Tensor
    labels: Tensor
    rivals: Tensor
    rounding: str
    intermediates: str = "ibp"
    memory: int = MEMORY
    searches: list[Searched] = field(default_factory=list)

    @torch.no_grad()
    def begin(self, network: int, which: Tensor, known: Tensor, method: str, ended: Callable[[], bool]) -> Found:
        """Bound margins of one network, before anything is split.

        Args:
            network: which one.
            which: problems to begin with, (Q,).
            known: lower bounds that are known, float64 (Q,).
            method: how they are bounded; see ``branch.METHODS``.
            ended: tells when to stop; what was not reached keeps its known bounds.
        """
        graph, mode = self.predictor.graph, by_name(self.rounding, self.predictor.dtype)
        every = torch.arange(graph.classes, device=which.device)
        own, rival = every == self.labels[which, None], every == self.rivals[which, None]
        specification = (own.to(self.predictor.dtype) - rival.to(self.predictor.dtype)).view(-1, 1, *graph.output_shape)
        params = pick(self.predictor.samples, network)
        with direct_sums():
            # Once a point: all of its rivals share the boxes of the layers, which are most of what a search holds.
            points, point = self.point[which].unique(return_inverse=True)
            boxes, sound = known_boxes(self.predictor, params, self.box.take(points), self.rounding, self.intermediates)
            require_sound(sound)
            search = Search(graph, params, boxes, point, specification, mode, known, method, ended, self.memory)
        self.searches.append(Searched(network, which, search))
        return self.found(self.searches[-1])

    @torch.no_grad()
    def split(self, searched: Searched, wanted: Tensor, ended: Callable[[], bool]) -> bool:
        """Split the leaves of one search that are below the margins ``wanted`` of each problem, (P,), once.

        Returns:
            Whether there were any.
        """
        _, which, search = searched
        if not bool(search.open(wanted[which]).any()):
            return False
        with direct_sums():
            search.advance(wanted[which], ended)
        return True

    def lines(self, chosen: Tensor, margins: Tensor) -> Lines:
        """Return linear bounds on the margins of all networks for some problems.

        Args:
            chosen: which problems, (Q,).
            margins: known lower bounds, float64 (N, Q), which stand where there is nothing better.
        """
        coefficients = self.box.centre.new_zeros(len(margins), len(chosen), *self.box.centre.shape[1:])
        offsets = margins.clone()
        for network, search, place, taken in self._of(chosen):
            coefficients[network, place] = search.line_coefficients[taken]
            offsets[network, place] = search.line_offsets[taken]
        return Lines(coefficients, offsets)

    def inputs(self, chosen: Tensor) -> Tensor:
        """Return where each network came closest to the rival, for some problems (Q,), (N, Q, *input_shape).

        Networks that were not searched have the middle of the box.
        """
        middle = self.box.centre[self.point[chosen]]
        inputs = middle.expand(self.predictor.size, *middle.shape).clone()
        for network, search, place, taken in self._of(chosen):
            inputs[network, place] = search.worst_inputs[taken]
        return inputs

    def _of(self, chosen: Tensor) -> Iterator[tuple[int, Search, Tensor, Tensor]]:
        """Yield every search, with its network, and where its problems stand in ``chosen``, (Q,), and in itself."""
        places = torch.full((len(self.rivals),), -1, device=chosen.device)
        places[chosen] = torch.arange(len(chosen), device=chosen.device)
        for network, which, search in self.searches:
            taken = places[which] >= 0
            yield network, search, places[which][taken], taken

    def found(self, searched: Searched) -> Found:
        """Return what one search knows.

        Raises:
            UnsoundBounds: some bounds are not finite.
        """
        network, which, search = searched
        bounds = search.bounds
        require_sound(torch.isfinite(bounds))
        return Found(network, which, bounds, search.smallest_found, search.worst_inputs)
