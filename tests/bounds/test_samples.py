"""Bounds are written for one network; vmap over stacked samples must give what a loop gives."""

import pytest
import torch

from certibayes.bounds import IDEAL, Box, interval_bounds, interval_margins, outward, outward_box
from certibayes.support.stacks import map_samples, stack

from ..strategies import CLASSES, ZOO, inputs, traced

pytestmark = pytest.mark.parametrize("name", ZOO)


@pytest.mark.parametrize("rounding", [IDEAL, outward(torch.float64)], ids=["ideal", "outward"])
def test_vmap_equals_the_loop(name, rounding):
    graph, _ = traced(name)
    stacked = stack([traced(name, seed, torch.float64)[1] for seed in range(3)])
    box = outward_box(inputs(name, 4, 0, torch.float64), 0.1)
    labels = torch.arange(4) % CLASSES

    def bound(params):
        logits = interval_bounds(graph, params, box, rounding)
        margins = interval_margins(graph, params, box, labels, rounding)
        return torch.stack([logits.center, logits.radius, margins])

    torch.testing.assert_close(torch.vmap(bound)(stacked), map_samples(bound, stacked))


def test_bounds_change_none_of_their_arguments(name):
    graph, params = traced(name)
    box = outward_box(inputs(name, 4, 0), 0.1)
    before = {key: value.clone() for key, value in params.items()}
    kept = Box(box.center.clone(), box.radius.clone())
    interval_bounds(graph, params, box, outward(torch.float32))
    assert torch.equal(box.center, kept.center) and torch.equal(box.radius, kept.radius)
    assert all(torch.equal(before[key], params[key]) for key in params)


def test_an_empty_batch_has_empty_bounds(name):
    graph, params = traced(name)
    bounds = interval_bounds(graph, params, outward_box(inputs(name, 0, 0), 0.1), outward(torch.float32))
    assert bounds.center.shape == bounds.radius.shape == (0, CLASSES)
