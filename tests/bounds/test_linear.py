"""Linear bounds: the laws of soundness on every network of the zoo, and what they are when they are known."""

import pytest
import torch
from hypothesis import given
from torch import nn

from certibayes.bounds import (
    IDEAL,
    Box,
    LinearBounder,
    Relaxation,
    ideal_box,
    interval_bounds,
    interval_margins,
    layer_boxes,
    linear_bounds,
    linear_margins,
    outward,
    outward_box,
    registered,
    registry,
)
from certibayes.bounds._backward import Backward
from certibayes.bounds.linear import margin_specification
from certibayes.bounds.registry import Rules
from certibayes.networks import direct_sums, trace
from certibayes.networks.operations import LeakyReLU, ReLU

from ..strategies import ZOO, attacked_points, ball, in_turn, inputs, law, outputs_at, points_of, radii, seeds, traced

every_network = pytest.mark.parametrize("name", ZOO)


def outputs_in(graph, params, lower, upper, seed):
    points = torch.cat(
        [points_of(lower, upper, 24, seed), attacked_points(lambda x: graph.evaluate(params, x), lower, upper)]
    )
    return outputs_at(graph, params, points).double()


def random_slopes(graph, batch, quantities, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return {
        node.name: torch.rand(batch, quantities, *node.shape, generator=generator, dtype=dtype)
        for node in graph.nodes
        if isinstance(node.operation, (ReLU, LeakyReLU))
    }


def slopes_of(kind, graph, quantities, seed, dtype=torch.float32):
    return random_slopes(graph, 3, quantities, seed, dtype) if kind == "random" else kind


def test_every_layer_has_a_linear_rule():
    assert [kind.__name__ for kind, rules in registered().items() if rules.linear is None] == []


@pytest.mark.parametrize(("name", "kind"), in_turn(ZOO, ["zero", "adaptive", "random"]))
class TestSoundness:
    @law(4)
    @given(seed=seeds, eps=radii)
    def test_ideal_bounds_hold_every_point_of_the_ball(self, name, kind, seed, eps):
        graph, params = traced(name, seed, torch.float64)
        x = inputs(name, 3, seed, torch.float64)
        slopes = slopes_of(kind, graph, 2 * graph.classes, seed, torch.float64)
        lower, upper = linear_bounds(graph, params, ideal_box(x, eps), IDEAL, slopes)
        outputs = outputs_in(graph, params, *ball(x, eps), seed)
        slack = 1e-11 * (1 + outputs.abs().amax())
        assert (outputs >= lower - slack).all()
        assert (outputs <= upper + slack).all()

    @law(4)
    @given(seed=seeds, eps=radii)
    def test_outward_bounds_hold_the_float32_program_without_tolerance(self, name, kind, seed, eps):
        graph, params = traced(name, seed)
        x = inputs(name, 3, seed)
        with direct_sums():
            slopes = slopes_of(kind, graph, 2 * graph.classes, seed)
            lower, upper = linear_bounds(graph, params, outward_box(x, eps), outward(torch.float32), slopes)
        outputs = outputs_in(graph, params, *ball(x, eps), seed)
        assert (outputs >= lower).all()
        assert (outputs <= upper).all()

    @law(3)
    @given(seed=seeds, eps=radii)
    def test_margins_hold_the_exact_differences_of_float32_outputs(self, name, kind, seed, eps):
        graph, params = traced(name, seed)
        x = inputs(name, 3, seed)
        labels = torch.tensor([0, 1, 2])
        with direct_sums():
            slopes = slopes_of(kind, graph, graph.classes - 1, seed)
            margins = linear_margins(graph, params, outward_box(x, eps), labels, outward(torch.float32), slopes)
        outputs = outputs_in(graph, params, *ball(x, eps), seed)
        own = outputs.gather(-1, labels.expand(len(outputs), 3)[..., None])
        assert (own - outputs >= margins).all()


@every_network
@law(3)
@given(seed=seeds)
def test_at_radius_zero_every_float32_output_is_inside(name, seed):
    graph, params = traced(name, seed)
    x = inputs(name, 3, seed)
    with torch.no_grad(), direct_sums():
        lower, upper = linear_bounds(graph, params, outward_box(x, 0.0), outward(torch.float32))
        for outputs in (graph.evaluate(params, x), torch.cat([graph.evaluate(params, part) for part in x.split(1)])):
            assert (outputs.double() >= lower).all()
            assert (outputs.double() <= upper).all()


@every_network
@law(3)
@given(seed=seeds, eps=radii)
def test_they_are_never_worse_than_interval_bounds(name, seed, eps):
    graph, params = traced(name, seed, torch.float64)
    x = inputs(name, 3, seed, torch.float64)
    box = ideal_box(x, eps)
    lower, upper = linear_bounds(graph, params, box)
    interval = interval_bounds(graph, params, box)
    assert (lower >= interval.lower - 1e-9 * (1 + interval.lower.abs())).all()
    assert (upper <= interval.upper + 1e-9 * (1 + interval.upper.abs())).all()
    labels = torch.tensor([0, 1, 2])
    margins, elided = linear_margins(graph, params, box, labels), interval_margins(graph, params, box, labels)
    assert (margins >= elided - 1e-9 * (1 + elided.abs())).all()


@every_network
@law(2)
@given(seed=seeds)
def test_outward_bounds_are_close_to_ideal_ones(name, seed):
    graph, params = traced(name, seed)
    x = inputs(name, 3, seed)
    ideal = linear_bounds(graph, params, ideal_box(x, 0.05))
    sound = linear_bounds(graph, params, outward_box(x, 0.05), outward(torch.float32))
    scale = 1 + max(
        box.center.abs().max() + box.radius.max() for box in layer_boxes(graph, params, ideal_box(x, 0.05)).values()
    )
    assert (ideal[0] - sound[0]).max() < 2e-3 * scale
    assert (sound[1] - ideal[1]).max() < 2e-3 * scale


def test_one_linear_layer_is_exact():
    graph, params = traced("one linear layer", 0, torch.float64)
    x = inputs("one linear layer", 3, 0, torch.float64)
    weight, bias = params["weight"], params["bias"]
    lower, upper = linear_bounds(graph, params, ideal_box(x, 0.3))
    center = x @ weight.T + bias
    torch.testing.assert_close(lower, center - 0.3 * weight.abs().sum(-1))
    torch.testing.assert_close(upper, center + 0.3 * weight.abs().sum(-1))


def test_rivals_are_all_classes_but_the_label():
    specification, rivals = margin_specification(torch.tensor([0, 2, 3]), 4, torch.float32)
    assert rivals.tolist() == [[1, 2, 3], [0, 1, 3], [0, 1, 2]]
    outputs = torch.tensor([[1.0, 20.0, 300.0, 4000.0]] * 3)
    found = (specification @ outputs[..., None]).squeeze(-1)
    assert found.tolist() == [[-19.0, -299.0, -3999.0], [299.0, 280.0, -3700.0], [3999.0, 3980.0, 3700.0]]


def test_a_single_class_has_no_rivals():
    specification, rivals = margin_specification(torch.tensor([0]), 1, torch.float32)
    assert specification.shape == (1, 0, 1)
    assert rivals.shape == (1, 0)


@pytest.mark.parametrize("name", ["relu", "convolution, stride and padding", "residual", "max pool, padded, ceil"])
def test_samples_may_be_vmapped(name):
    graph, params = traced(name, 0)
    x = inputs(name, 3, 0)
    stacked = {key: torch.stack([p, 1.1 * p]) for key, p in params.items()}
    mapped = torch.vmap(lambda p: linear_bounds(graph, p, outward_box(x, 0.05), outward(torch.float32))[0])(stacked)
    alone = [
        linear_bounds(graph, {k: p[i] for k, p in stacked.items()}, outward_box(x, 0.05), outward(torch.float32))[0]
        for i in range(2)
    ]
    torch.testing.assert_close(mapped, torch.stack(alone), rtol=1e-4, atol=1e-4)


def test_bounds_are_differentiable_in_the_slopes():
    graph, params = traced("relu", 0)
    x = inputs("relu", 3, 0)
    boxes = layer_boxes(graph, params, ideal_box(x, 0.5))
    specification, _ = margin_specification(torch.tensor([0, 1, 2]), 3, torch.float32)
    slopes = {name: s.requires_grad_() for name, s in random_slopes(graph, 3, 2, 0).items()}
    LinearBounder(graph, params, boxes).lower(specification, Relaxation(slopes)).sum().backward()
    assert any(slope.grad.abs().sum() > 0 for slope in slopes.values())


def test_coefficients_of_the_caller_are_left_as_they_are():
    """A network that only changes shapes hands them back as a view."""
    x = torch.rand(2, 2, 3)
    for net in (nn.Flatten(), nn.Sequential(nn.Flatten(), nn.ReLU()), nn.Sequential(nn.Flatten(), nn.Linear(6, 6))):
        network = trace(net, x[:1])
        boxes = layer_boxes(network.graph, network.params, outward_box(x, 0.1), outward(torch.float32))
        mine = -torch.eye(6).expand(2, 6, 6).clone()
        with torch.no_grad():
            LinearBounder(network.graph, network.params, boxes, outward(torch.float32), in_place=True).lower(mine)
        assert torch.equal(mine, -torch.eye(6).expand(2, 6, 6))


@every_network
def test_memory_that_is_used_again_changes_nothing(name, monkeypatch):
    """Overwriting coefficients, and going through them in portions, leaves every bit as it is."""
    graph, params = traced(name, 0)
    boxes = layer_boxes(graph, params, outward_box(inputs(name, 5, 0), 0.05), outward(torch.float32))
    both = torch.cat([torch.eye(graph.classes), -torch.eye(graph.classes)]).view(-1, *graph.output_shape)
    both = both.expand(5, *both.shape)
    in_place = LinearBounder(graph, params, boxes, outward(torch.float32), in_place=True)
    careful, kept, _ = in_place.lower_with_coefficients(both)
    assert set(kept) == {"input", *(node.name for node in graph.nodes)}
    assert torch.equal(kept[graph.nodes[-1].name], both)
    quick = in_place.lower(both)
    monkeypatch.setattr("certibayes.bounds.sums.PORTION", 2 * both[0].numel() * 10)
    in_portions = in_place.lower(both)
    torch.testing.assert_close(quick, careful, rtol=0, atol=0)
    torch.testing.assert_close(in_portions, careful, rtol=1e-6, atol=1e-6)


def test_rules_of_others_are_not_given_coefficients_to_overwrite(monkeypatch):
    """A rule may hand one tensor to both of its inputs, whatever it says of it."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other, self.last = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.last(torch.relu(self.one(x)) + torch.relu(self.other(x)))

    def shared(operation, weights, step):
        nothing = step.coefficients.new_zeros(step.coefficients.shape[:2])
        return Backward((step.coefficients, step.coefficients), nothing, owned=True)

    torch.manual_seed(0)
    x = torch.rand(3, 4)
    network = trace(Branches(), x[:1])
    rounding = outward(torch.float32)
    (operation,) = {type(node.operation) for node in network.graph.nodes if len(node.inputs) == 2}
    rules = registered()[operation]
    monkeypatch.setitem(registry._rules, operation, Rules(rules.interval, linear=shared))
    boxes = layer_boxes(network.graph, network.params, outward_box(x, 0.1), rounding)
    specification, _ = margin_specification(torch.tensor([0, 1, 2]), 3, torch.float32)
    lower = [
        LinearBounder(network.graph, network.params, boxes, rounding, in_place).lower(specification)
        for in_place in (False, True)
    ]
    torch.testing.assert_close(lower[0], lower[1], rtol=0, atol=0)


def test_boxes_may_be_vmapped_with_the_same_weights():
    graph, params = traced("relu", 0)
    centers = torch.stack([inputs("relu", 3, 0), inputs("relu", 3, 1)])

    def bound(center):
        return linear_bounds(graph, params, Box(center, torch.full_like(center, 0.1)), outward(torch.float32))[0]

    mapped = torch.vmap(bound)(centers)
    torch.testing.assert_close(mapped, torch.stack([bound(center) for center in centers]), rtol=1e-4, atol=1e-4)
