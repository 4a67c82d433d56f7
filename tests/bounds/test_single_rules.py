"""Each rule by itself: a later layer's widening must not cover what an earlier rule forgot.

Every node of every network of the zoo is bounded alone, over boxes that stand where its inputs never were, and compared
with torch's float32 kernel, with other float32 programs, and with float64 as a stand-in for exact arithmetic.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from certibayes.bounds import Box, outward, rules_for
from certibayes.networks import INPUT, direct_sums

from ..strategies import ZOO, assert_inside, generator, law, seeds, traced
from .float_programs import OTHER_PROGRAMS

F32 = outward(torch.float32)


def _box(shape: tuple[int, ...], seed: int, scale: float, relative: float) -> Box:
    """Centers of magnitude ``scale`` with many digits, radii ``relative`` times as large; some radii are 0."""
    rng = generator(seed)
    center = torch.randn(6, *shape, generator=rng) * scale
    radius = torch.rand(center.shape, generator=rng) * scale * relative
    return Box(center, radius * torch.randint(0, 2, center.shape, generator=rng))


def _points(box: Box, seed: int) -> list[Tensor]:
    """The center, and float32 points that lie inside by exact comparison, most of them at the ends."""
    low, high = box.center.double() - box.radius.double(), box.center.double() + box.radius.double()
    rng = generator(seed)
    found = [box.center]
    for _ in range(6):
        target = torch.where(torch.rand(low.shape, generator=rng) < 0.5, low, high)
        point = target.float()
        inside = (low <= point.double()) & (point.double() <= high)
        inwards = torch.nextafter(point, box.center)
        point = torch.where(inside, point, inwards)
        assert bool(((low <= point.double()) & (point.double() <= high)).all())
        found.append(point)
    return found


@pytest.mark.parametrize("name", ZOO)
@law(8)
@given(
    seed=seeds,
    scale=st.sampled_from([1e-20, 1e-3, 1.0, 300.0, 1e5]),
    relative=st.sampled_from([0.0, 1e-7, 1e-4, 0.3]),
)
def test_each_rule_holds_alone(name, seed, scale, relative):
    torch.manual_seed(seed)  # of the random orders
    graph, params = traced(name, seed)
    shapes = {INPUT: graph.input_shape, **{node.name: node.shape for node in graph.nodes}}
    for index, node in enumerate(graph.nodes):
        boxes = tuple(_box(shapes[source], seed + 7 * i, scale, relative) for i, source in enumerate(node.inputs))
        weights = node.weights(params)
        double = {role: tensor.double() for role, tensor in weights.items()}
        with direct_sums():
            box = rules_for(node.operation).interval(node.operation, weights, boxes, F32)
            points = [torch.stack(_points(b, seed + index)) for b in boxes]
            at_once = [p.flatten(0, 1) for p in points]

            def assert_holds(outputs, box=box, shape=points[0].shape[:2]):
                assert_inside(outputs.unflatten(0, shape), box)

            assert_holds(node.operation.evaluate(weights, *at_once))
            assert_holds(node.operation.evaluate(double, *(p.double() for p in at_once)))
            for i in (0, 5):
                alone = torch.stack(
                    [node.operation.evaluate(weights, *(p[i : i + 1] for p in ps)) for ps in zip(*points, strict=True)]
                )
                assert_inside(alone, Box(box.center[[i]], box.radius[[i]]))
            other = OTHER_PROGRAMS.get(type(node.operation))
            if other is not None:
                for order in (torch.arange, torch.randperm):
                    assert_holds(other(node.operation, weights, at_once[0], order))
