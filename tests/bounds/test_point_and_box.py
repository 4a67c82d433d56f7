"""Points and boxes in one pass: the same outputs, bounds and gradients as in two."""

import pytest
import torch

from certibayes.bounds import ideal_box, interval_bounds, point_and_box
from certibayes.bounds.rounding import smoothed

from ..strategies import ZOO, inputs, traced


@pytest.mark.parametrize("tau", [0.0, 0.01])
@pytest.mark.parametrize("name", ZOO)
def test_one_pass_is_two(name, tau):
    graph, params = traced(name, dtype=torch.float64)
    x, rounding = inputs(name, 3, 1, dtype=torch.float64), smoothed(tau)
    weight = torch.linspace(0.5, 2.0, graph.classes, dtype=torch.float64)

    def apart(params):
        box = interval_bounds(graph, params, ideal_box(x, 0.1), rounding)
        return graph.evaluate(params, x), box.center, box.radius

    def at_once(params):
        point, box = point_and_box(graph, params, x, ideal_box(x, 0.1), rounding)
        return point, box.center, box.radius

    def total(passes):
        """Of everything the pass returns, with other weights for each, so that nothing cancels."""

        def value(weights):
            parts = passes({**params, **weights})
            return sum((k + 1) * (part.flatten(1) * weight).sum() for k, part in enumerate(parts))

        return value

    for found, expected in zip(at_once(params), apart(params), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    learned = {key: params[key] for key in graph.parameters}
    slopes, expected = torch.func.grad(total(at_once))(learned), torch.func.grad(total(apart))(learned)
    for key in learned:
        torch.testing.assert_close(slopes[key], expected[key], rtol=1e-10, atol=1e-10)
