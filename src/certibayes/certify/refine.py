"""Tight margins for a whole predictor: the searches of all its networks on the points that are still open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds import Box, by_name
from certibayes.certify.branch import Search
from certibayes.certify.joint import Lines
from certibayes.certify.network_bounds import known_boxes, require_sound
from certibayes.networks import direct_sums
from certibayes.networks.samples import pick
from certibayes.prediction import Predictor


class Found(NamedTuple):
    """What is known of some problems for one network.

    Attributes:
        which: of the problems, (Q,).
        margins: lower bounds, float64 (Q,).
        smallest: margins that the network really has at ``inputs``, float64 (Q,).
        inputs: where it came closest to the rival, (Q, *input_shape).
    """

    which: Tensor
    margins: Tensor
    smallest: Tensor
    inputs: Tensor


@dataclass
class Refinement:
    """Bounds on margins z_y - z_c of every network over a box, for P problems.

    Attributes:
        predictor: N networks.
        box: inputs of the problems, (P, ...).
        labels: y, (P,).
        rivals: c, (P,).
        rounding: ``"outward"`` or ``"ideal"``.
        method: how margins are bounded before anything is split.
        intermediates: what is known of the layers in between.
    """

    predictor: Predictor
    box: Box
    labels: Tensor
    rivals: Tensor
    rounding: str
    method: str = "hull"
    intermediates: str = "ibp"
    searches: dict[int, tuple[Tensor, Search]] = field(default_factory=dict)

    @torch.no_grad()
    def begin(self, index: int, which: Tensor, known: Tensor, ended: Callable[[], bool]) -> Found:
        """Bound margins of one network, before anything is split.

        Args:
            index: of the network.
            which: problems to begin with, (Q,).
            known: lower bounds that are known, float64 (Q,).
            ended: tells when to stop; what was not reached keeps its known bounds.
        """
        graph, mode = self.predictor.graph, by_name(self.rounding, self.predictor.dtype)
        every = torch.arange(graph.classes, device=which.device)
        own, rival = every == self.labels[which, None], every == self.rivals[which, None]
        specification = (own.to(self.predictor.dtype) - rival.to(self.predictor.dtype)).view(-1, 1, *graph.output_shape)
        params = pick(self.predictor.samples, index)
        with direct_sums():
            boxes, sound = known_boxes(self.predictor, params, self.box.take(which), self.rounding, self.intermediates)
            require_sound(sound)
            self.searches[index] = which, Search(graph, params, boxes, specification, mode, known, self.method, ended)
        return self.found(index)

    @torch.no_grad()
    def split(self, index: int, wanted: Tensor, ended: Callable[[], bool]) -> bool:
        """Split the leaves of one network that are below the margins ``wanted`` of each problem, (P,), once.

        Returns:
            Whether there were any.
        """
        which, search = self.searches[index]
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
        place = torch.full((len(self.rivals),), -1, device=chosen.device)
        place[chosen] = torch.arange(len(chosen), device=chosen.device)
        coefficients = self.box.centre.new_zeros(len(margins), len(chosen), *self.box.centre.shape[1:])
        offsets = margins.clone()
        for index, (which, search) in self.searches.items():
            at = place[which]
            taken = at >= 0
            coefficients[index, at[taken]] = search.line_coefficients[taken]
            offsets[index, at[taken]] = search.line_offsets[taken]
        return Lines(coefficients, offsets)

    def inputs(self, chosen: Tensor) -> Tensor:
        """Return where each network came closest to the rival, for some problems (Q,), (N, Q, *input_shape).

        Networks that were not searched have the middle of the box.
        """
        everywhere = self.box.centre.expand(self.predictor.size, *self.box.centre.shape).clone()
        for index, (which, search) in self.searches.items():
            everywhere[index, which] = search.worst_inputs
        return everywhere[:, chosen]

    def found(self, index: int) -> Found:
        """Return what is known for one network.

        Raises:
            UnsoundBounds: some bounds are not finite.
        """
        which, search = self.searches[index]
        bounds = search.bounds
        require_sound(torch.isfinite(bounds))
        return Found(which, bounds, search.smallest_found, search.worst_inputs)
