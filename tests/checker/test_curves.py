"""Activations with bends in the independent checker, each alone."""

import numpy as np
import pytest
import torch

from certibayes.checker._enclosure import Interval, enclose
from certibayes.networks import INPUT, Graph, Node

from ..curves import ACTIVATIONS, textbook, weights_of
from ..strategies import generator
from .cases import FLOAT32


def _enclosed(operation, lower, upper):
    weights = weights_of(operation)
    graph = Graph((Node("a", operation, (INPUT,), {role: role for role in weights}, (3,)),), (3,), tuple(weights))
    arrays = {role: weight.numpy() for role, weight in weights.items()}
    found, known = enclose(graph, arrays, Interval(lower.double().numpy(), upper.double().numpy()), FLOAT32)
    assert known.all()
    return found


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_points_lie_inside_by_any_formula(name):
    operation = ACTIVATIONS[name]
    x = torch.linspace(-12, 12, 3001).view(-1, 1).expand(-1, 3).contiguous()
    found = _enclosed(operation, x, x)
    exact = operation.evaluate(weights_of(operation, torch.float64), x.double())
    for value in (operation.evaluate(weights_of(operation), x), exact, textbook(operation, x)):
        assert (found.lower <= value.double().numpy()).all() and (value.double().numpy() <= found.upper).all()
    assert (found.upper - found.lower <= 1e-4 * (1 + np.abs(x.numpy()))).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_intervals_hold_all_between_their_ends(name):
    operation, rng = ACTIVATIONS[name], generator(0)
    center = torch.randn(200, 3, generator=rng) * 3
    radius = torch.rand(200, 3, generator=rng) * 4
    lower, upper = center - radius, center + radius
    found = _enclosed(operation, lower, upper)
    for fraction in torch.linspace(0, 1, 101):
        x = torch.clamp(torch.lerp(lower, upper, fraction), lower, upper)
        value = operation.evaluate(weights_of(operation), x).double().numpy()
        assert (found.lower <= value).all() and (value <= found.upper).all()
