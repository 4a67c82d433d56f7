"""Training needs gradients through ideal bounds, for parameters, inputs and the radius."""

import pytest
import torch

from certibayes.bounds import ideal_box, interval_bounds, interval_margins, worst_logits
from certibayes.regions import InputRegion

from ..strategies import CLASSES, ZOO, inputs, traced

LABELS = torch.tensor([0, 2])

pytestmark = pytest.mark.parametrize("name", ["relu", "tanh", "arithmetic", "batch norm on images", "residual"])


@pytest.mark.parametrize("what", ["logits", "margins"])
def test_gradients_of_ideal_bounds_are_right(name, what):
    assert name in ZOO
    graph, params = traced(name, 5, torch.float64)
    names = list(graph.parameters)
    x = inputs(name, 2, 5, torch.float64)

    def bound(x, eps, *values):
        everything = {**params, **dict(zip(names, values, strict=True))}
        box = InputRegion(x, eps).ideal_box()
        if what == "margins":
            return interval_margins(graph, everything, box, LABELS)
        return worst_logits(interval_bounds(graph, everything, box), LABELS)

    leaves = [x, torch.tensor(0.05, dtype=torch.float64), *[params[n] for n in names]]
    leaves = [leaf.clone().requires_grad_(True) for leaf in leaves]
    assert torch.autograd.gradcheck(bound, leaves, fast_mode=True)


def test_worst_logits_take_the_lower_end_for_the_label_only(name):
    graph, params = traced(name, 1, torch.float64)
    box = interval_bounds(graph, params, ideal_box(inputs(name, 2, 1, torch.float64), 0.1))
    worst = worst_logits(box, LABELS)
    for row, label in enumerate(LABELS.tolist()):
        for column in range(CLASSES):
            expected = box.lower if column == label else box.upper
            assert worst[row, column] == expected[row, column]


def test_per_example_gradients_by_vmap(name):
    graph, params = traced(name, 2, torch.float64)
    x = inputs(name, 2, 2, torch.float64)

    def loss(weights, x, label):
        logits = worst_logits(interval_bounds(graph, {**params, **weights}, ideal_box(x[None], 0.05)), label[None])
        return torch.nn.functional.cross_entropy(logits, label[None])

    weights = {key: params[key] for key in graph.parameters}
    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, LABELS)
    for row in range(2):
        alone = torch.func.grad(loss)(weights, x[row], LABELS[row])
        for key in weights:
            torch.testing.assert_close(each[key][row], alone[key])
