"""Problems as ``certify`` makes them, and searches over all rivals of some points."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from certibayes.bounds import Box, LinearBounder, Rounding, layer_boxes
from certibayes.bounds.linear import margin_specification
from certibayes.certification import network_bounds
from certibayes.certification._branch import Search
from certibayes.certification._leaves import Trees
from certibayes.certification.problem import Problem
from certibayes.networks import Graph, Params
from certibayes.prediction import Predictor
from certibayes.regions import Domain, InputRegion
from certibayes.support import stacks

EVERY_RIVAL = 2.0
"""A threshold that no difference of probabilities exceeds, so that every rival of every point is open."""


def mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take networks all at once, as on a GPU."""
    for module in (stacks, network_bounds):
        monkeypatch.setattr(module, "are_mapped", lambda stacked: True)


def problem_of(
    predictor: Predictor,
    x: Tensor,
    eps: float,
    labels: Tensor | None = None,
    norm: str = "linf",
    domain: Domain = None,
    **settings: Any,
) -> Problem:
    """A batch of points, with outward rounding unless the settings say otherwise."""
    settings = {"rounding": "outward", "threshold": 1e-6, "memory": 2**28, **settings}
    region, predicted = InputRegion.around(x, eps, norm, domain), predictor.predict(x)
    box = region.outward_box(predictor.dtype) if settings["rounding"] == "outward" else region.ideal_box()
    labels = predicted if labels is None else labels
    return Problem(predictor=predictor, region=region, box=box, labels=labels, predicted=predicted, **settings)


def search_of(
    graph: Graph, params: Params, box: Box, labels: Tensor, rounding: Rounding
) -> tuple[Search, Trees, Tensor]:
    """One search over all rivals of all points, begun from linear bounds; and the rivals, (B, C - 1)."""
    boxes = layer_boxes(graph, params, box, rounding)
    specification, rivals = margin_specification(labels, graph.classes, box.center.dtype)
    point = torch.arange(len(labels)).repeat_interleave(rivals.shape[1])
    known = LinearBounder(graph, params, boxes, rounding).lower(specification).flatten()
    search = Search(graph, params, boxes, point, specification.flatten(0, 1)[:, None], rounding)
    return search, search.begin(known, "hull"), rivals


def asked(trees: Trees, wanted: float = 100.0) -> Tensor:
    """The same margin of every problem."""
    return torch.full_like(trees.known, wanted)


def is_done(trees: Trees, wanted: float = 100.0) -> bool:
    """Whether nothing is left to split for a margin of every problem."""
    return not bool(trees.open(asked(trees, wanted)).any())


def finish(search: Search, trees: Trees, rounds: int = 40) -> Trees:
    """Split until nothing is left to split."""
    for _ in range(rounds):
        if is_done(trees):
            break
        trees = search.advance(trees, asked(trees))
    return trees
