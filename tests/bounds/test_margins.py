"""Margins with the last layer folded in: z_y - z_j, bounded from below."""

import pytest
import torch
from hypothesis import given

from certibayes.bounds import IDEAL, ideal_box, interval_bounds, interval_margins, outward, outward_box
from certibayes.networks import direct_sums

from ..strategies import CLASSES, ZOO, attacked_points, ball, inputs, law, outputs_at, points_of, radii, seeds, traced

F32 = outward(torch.float32)
BATCH = 4
LABELS = torch.arange(BATCH) % CLASSES

pytestmark = pytest.mark.parametrize("name", ZOO)


def _margins(logits):
    """z_y - z_j of logits (..., B, C) in float64, where differences of float32 are as good as exact."""
    logits = logits.double()
    own = logits.gather(-1, LABELS[:, None].expand(*logits.shape[:-1], 1))
    return own - logits


def _points(graph, params, lower, upper, seed):
    def margins(x):
        return _margins(graph.evaluate(params, x).unflatten(0, (-1, BATCH))).flatten(0, 1)

    return torch.cat([points_of(lower, upper, 24, seed), attacked_points(margins, lower, upper)])


@law(4)
@given(seed=seeds, eps=radii)
def test_outward_margins_hold_for_the_float_program(name, seed, eps):
    graph, params = traced(name, seed)
    x = inputs(name, BATCH, seed)
    with direct_sums():
        bound = interval_margins(graph, params, outward_box(x, eps), LABELS, F32)
        assert bound.dtype == torch.float64
    points = _points(graph, params, *ball(x, eps), seed)
    assert bool((_margins(outputs_at(graph, params, points)) >= bound).all())


@law(4)
@given(seed=seeds, eps=radii)
def test_ideal_margins_hold_in_exact_arithmetic(name, seed, eps):
    graph, params = traced(name, seed, torch.float64)
    x = inputs(name, BATCH, seed, torch.float64)
    bound = interval_margins(graph, params, ideal_box(x, eps), LABELS)
    margins = _margins(outputs_at(graph, params, _points(graph, params, *ball(x, eps), seed)))
    assert bool((margins >= bound - 1e-10 * (1 + bound.abs())).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@law(4)
@given(seed=seeds, eps=radii)
def test_margins_are_never_looser_than_two_logits_apart(name, dtype, seed, eps):
    graph, params = traced(name, seed, dtype)
    x = inputs(name, BATCH, seed, dtype)
    is_label = LABELS[:, None] == torch.arange(CLASSES)
    for box, rounding in ((outward_box(x, eps), outward(dtype)), (ideal_box(x, eps), IDEAL)):
        logits = interval_bounds(graph, params, box, rounding)
        lower, upper = logits.ends()
        apart = (lower[is_label][:, None] - upper).masked_fill(is_label, 0.0)
        scale = 1 + lower.abs().amax() + upper.abs().amax()
        margins = interval_margins(graph, params, box, LABELS, rounding).double()
        assert bool((margins >= apart - 64 * torch.finfo(dtype).eps * scale).all())


def test_the_labels_own_margin_is_zero(name):
    graph, params = traced(name)
    margins = interval_margins(graph, params, outward_box(inputs(name, BATCH, 0), 0.1), LABELS, F32)
    assert bool((margins.gather(1, LABELS[:, None]) == 0).all())
