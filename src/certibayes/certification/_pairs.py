"""Pairs of point and rival that bounds leave open: searches in every network, and what is known of all networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from certibayes.bounds.linear import LinearFunction
from certibayes.certification._branch import Search
from certibayes.certification._layers import intermediate_boxes
from certibayes.certification._leaves import Start, Trees
from certibayes.certification._prospects import PROBES
from certibayes.certification.network_bounds import margin_coefficients
from certibayes.certification.problem import Problem
from certibayes.networks import direct_sums
from certibayes.prediction import Predictor
from certibayes.support.stacks import pick


class Searched(NamedTuple):
    """A network, the pairs of it that were searched, (Q,), the search and what it found."""

    network: int
    which: Tensor
    search: Search
    trees: Trees

    @property
    def margins(self) -> Tensor:
        """Lower bounds on the margins of the pairs, float64 (Q,); -inf where nothing is known."""
        bounds = self.trees.bounds
        return torch.where(torch.isfinite(bounds), bounds, -torch.inf)


@dataclass(frozen=True)
class Pairs:
    """P pairs of point and rival, and searches for small margins in N networks.

    Attributes:
        point: (P,).
        rival: (P,).
        smallest: smallest margin that each network was seen to have, float64 (N, P); infinite where none was looked at.
        given_up: pairs of which costly bounds are not to be expected, (P,); see ``certification._prospects``.
        searches: each of other pairs.
    """

    point: Tensor
    rival: Tensor
    smallest: Tensor
    given_up: Tensor
    searches: tuple[Searched, ...] = ()

    @staticmethod
    def of(wanted: Tensor, networks: int) -> Pairs:
        """Return pairs for the rivals that are wanted, (B, C), which no network has searched."""
        point, rival = wanted.nonzero().T
        smallest = torch.full((networks, len(point)), torch.inf, dtype=torch.float64, device=point.device)
        return Pairs(point, rival, smallest, torch.zeros_like(point, dtype=torch.bool))

    def of_pairs(self, values: Tensor) -> Tensor:
        """Pick values (..., B, C) for every pair, (..., P)."""
        return values[..., self.point, self.rival]

    def with_search(self, searched: Searched, place: int | None = None) -> Pairs:
        """Record a search: a new one, or one that has gone on, at its ``place``."""
        smallest = self.smallest.clone()
        smallest[searched.network, searched.which] = searched.trees.smallest
        before, after = (self.searches, ()) if place is None else (self.searches[:place], self.searches[place + 1 :])
        return replace(self, smallest=smallest, searches=(*before, searched, *after))

    def functions(self, chosen: Tensor, known: Tensor) -> LinearFunction:
        """Return linear functions below the margins of all networks for some pairs.

        Args:
            chosen: which pairs, (Q,).
            known: lower bounds on their margins, float64 (N, Q), which stand where there is nothing better.

        Returns:
            Coefficients (N, Q, *input_shape) and offsets (N, Q).
        """
        like = self.searches[0].trees.coefficients
        coefficients, offsets = like.new_zeros(len(known), len(chosen), *like.shape[1:]), known.clone()
        for network, trees, place, taken in self._of(chosen):
            coefficients[network, place] = trees.coefficients[taken]
            offsets[network, place] = trees.offsets[taken]
        return LinearFunction(coefficients, offsets)

    def start(self, chosen: Tensor) -> Start | None:
        """Return what the last searches of some pairs, (Q,), found at their roots; None if there were none."""
        if not self.searches:
            return None
        like = self.searches[0].trees.leaves.variables
        start = Start(like.new_zeros(len(chosen), like.shape[1]), torch.zeros_like(chosen, dtype=torch.bool))
        for _, trees, place, taken in self._of(chosen):
            # Where leaves were split there is no root any more.
            if len(trees.leaves.problem) == len(trees.known):
                start.variables[place], start.is_known[place] = trees.leaves.variables[taken], True
        return start

    def worst_inputs(self, chosen: Tensor, middle: Tensor) -> Tensor:
        """Return where each network came closest to the rival, for some pairs (Q,), (N, Q, *input_shape).

        Networks that were not searched have ``middle``, (Q, *input_shape).
        """
        inputs = middle.expand(len(self.smallest), *middle.shape).clone()
        for network, trees, place, taken in self._of(chosen):
            inputs[network, place] = trees.worst_inputs[taken]
        return inputs

    def _of(self, chosen: Tensor) -> Iterator[tuple[int, Trees, Tensor, Tensor]]:
        """Yield what every search found, with its network, and where its pairs stand in ``chosen``, (Q,), and in it."""
        places = torch.full((len(self.point),), -1, device=chosen.device)
        places[chosen] = torch.arange(len(chosen), device=chosen.device)
        for network, which, _, trees in self.searches:
            taken = places[which] >= 0
            yield network, trees, places[which][taken], taken


NO_PAIRS = Pairs.of(torch.zeros(0, 0, dtype=torch.bool), 0)


def search_in(problem: Problem, pairs: Pairs, network: int, which: Tensor) -> Search:
    """Set up the search in one network.

    Args:
        problem: the points.
        pairs: of them.
        network: which one.
        which: of the pairs, (Q,).
    """
    predictor, graph = problem.predictor, problem.predictor.graph
    labels, rivals = problem.labels[pairs.point[which]], pairs.rival[which]
    specification = margin_coefficients(graph, labels, rivals, predictor.dtype)[:, None]
    params = pick(predictor.samples, network)
    # Once per point: all of its rivals share the boxes of the layers, which are most of what a search holds.
    points, point = pairs.point[which].unique(return_inverse=True)
    with direct_sums():
        boxes, _ = intermediate_boxes(
            predictor, params, problem.box.take(points), problem.rounding, problem.intermediates,
            None if problem.share is None else problem.share.take(points), network,
        )  # fmt: skip
    return Search(graph, params, boxes, point, specification, problem.arithmetic, problem.memory // 2)


def bytes_held(predictor: Predictor, rivals: int) -> int:
    """Bytes that searches hold for each point of which they search so many rivals, before anything is split."""
    inputs = torch.Size(predictor.graph.input_shape).numel()
    layers = [torch.Size(node.shape).numel() for node in predictor.graph.nodes]
    number = torch.finfo(predictor.dtype).bits // 8
    # Boxes are two numbers each; the first networks may have two searches, of different rivals. For every rival there
    # are a linear function and the worst input, and for every unit a sign and a variable.
    boxes, search = 2 * number * (inputs + sum(layers)), 2 * number * inputs + 3 * sum(layers)
    return (predictor.size + PROBES) * boxes + predictor.size * rivals * search
