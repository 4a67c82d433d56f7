"""Every linear rule by itself: A z >= A' x + d for the float program that runs, however it sums."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from certibayes.bounds import (
    Box,
    LinearBounder,
    Relaxation,
    layer_boxes,
    linear_bounds,
    outward_box,
    rules_for,
    within_range,
)
from certibayes.bounds._backward import Step
from certibayes.bounds._offset import Offset
from certibayes.bounds.sums import COEFFICIENT_UNITS
from certibayes.networks import direct_sums, trace

from ..strategies import (
    ZOO,
    Functional,
    ball,
    few_of,
    fractions,
    generator,
    graph_and_params,
    inputs,
    points_of,
    traced,
)
from .rounding_cases import F32, ORDERS, UNIT, random_numbers, run_in_order, sum_of_products


def _coefficients(shape, kind: str, seed: int) -> Tensor:
    found = random_numbers(seed, *shape, octaves=8.0)
    if kind == "cancelling":
        # Large and almost the same, with signs that alternate: in images row by row, so that partial sums grow.
        period = shape[-1] if len(shape) > 3 else 1
        signs = 1.0 - 2.0 * (torch.arange(found[0, 0].numel()) // period % 2).view(shape[2:])
        found = signs * 1000.0 + found * 2.0**-8
    if kind == "equal":
        # Partial sums of equal numbers round the same way again and again, so that errors add up.
        found = torch.full_like(found, 0.5 + float(torch.rand((), generator=generator(seed))))
    if kind == "alone":
        # On one output, in the middle of the second of two channels: nothing else allows for its error.
        chosen = torch.arange(found[0, 0].numel()) == found[0, 0].numel() * 3 // 4
        found = found * chosen.view(shape[2:])
    return found


def _assert_rules_hold(graph, params, x, eps, kind, seed):
    with torch.no_grad(), direct_sums():
        boxes = layer_boxes(graph, params, outward_box(x, eps), F32)
        backs = {}
        for node in graph.nodes:
            coefficients = _coefficients((len(x), 2, *node.shape), kind, seed)
            step = Step(coefficients, tuple(boxes[name] for name in node.inputs), boxes[node.name], F32)
            rule = rules_for(node.operation).linear
            back = rule(node.operation, node.weights(params), step)
            offset = Offset(coefficients, F32)
            offset.add_layer(step, back)
            backs[node.name] = coefficients, back, offset.value
    points = points_of(*ball(x, eps), 6, seed)
    for point, order in zip(points, [None, *ORDERS.values(), None, torch.arange], strict=True):
        for name, (values, output) in run_in_order(graph, params, point, order).items():
            coefficients, back, low = backs[name]
            room = torch.full_like(low, 1e-30)
            for into, value in zip(back.coefficients, values, strict=True):
                product = (into.double() * value.double()[:, None]).flatten(2)
                low = low + product.sum(-1)
                # A rule that says nothing of errors may leave its coefficients four units off.
                room = room + (4 * UNIT if back.carries_error else 2.0**-45) * product.abs().sum(-1)
            products = (coefficients.double() * output.double()[:, None]).flatten(2)
            value = products.sum(-1)
            if not back.carries_error:
                # Whoever does not pass on by what its own coefficients may be off allows for it.
                value = value - COEFFICIENT_UNITS * UNIT * products.abs().sum(-1)
            assert bool((value >= low - room).all()), f"{name}: {float((low - room - value).max()):.2e} too high"


@pytest.mark.parametrize("kind", ["random", "cancelling"])
@pytest.mark.parametrize("name", ZOO)
def test_every_rule_bounds_what_runs(name, kind):
    for seed, eps in ((0, 0.0), (1, 1e-4), (2, 0.3)):
        graph, params = traced(name, seed)
        _assert_rules_hold(graph, params, inputs(name, 2, seed), eps, kind, seed)


OVERLAPPING = {
    "max": lambda: nn.MaxPool2d((2, 4), 1, (1, 2)),
    "max, dilated": lambda: nn.MaxPool2d(3, 2, 1, dilation=2),
    "average": lambda: nn.AvgPool2d(3, 1, 1),
    "adaptive": lambda: nn.AdaptiveAvgPool2d((11, 9)),
    "convolution": lambda: nn.Conv2d(2, 8, 5, padding=2),
}


@pytest.mark.parametrize("kind", ["random", "cancelling"])
@pytest.mark.parametrize("layer", OVERLAPPING)
def test_coefficients_of_overlapping_windows_may_cancel(layer, kind):
    """An input that many windows see gets the sum of their coefficients, which is small where these are not."""
    for seed in range(6):
        torch.manual_seed(seed)
        net = nn.Sequential(OVERLAPPING[layer](), nn.Flatten())
        net.input_shape = (2, 7, 7)
        graph, params = graph_and_params(trace(net, torch.zeros(1, 2, 7, 7)))
        x = torch.zeros(2, 2, 7, 7)
        x[..., 3, 3] = 1 + torch.rand(2, 2)  # the one that all windows around it choose
        _assert_rules_hold(graph, params, x, 1e-6, kind, seed)


COPYING = {
    "upsample": lambda: nn.Upsample(scale_factor=12),
    "replicate": lambda: nn.ReplicationPad2d(19),
    "reflect": lambda: nn.ReflectionPad2d(2),
    "constant": lambda: nn.ConstantPad2d(20, 0.7),
    "constant, in one sum": lambda: nn.ConstantPad2d(8, 0.7),
    "sum": lambda: Functional(lambda self, x: x.sum((1, 2)) - x.mean((1, 2))),
    "transposed convolution": lambda: nn.Sequential(
        nn.Upsample(scale_factor=5), nn.ConvTranspose2d(2, 2, 11, bias=False)
    ),
}


@pytest.mark.parametrize("kind", ["random", "cancelling", "alone", "equal"])
@pytest.mark.parametrize("layer", few_of(COPYING, fast=COPYING.keys() - {"transposed convolution"}))
def test_coefficients_of_copies_may_cancel(layer, kind):
    """A number with many copies gets the sum of their coefficients, and many constants are added up."""
    for seed in range(12 if kind == "equal" else 4):
        torch.manual_seed(seed)
        net = nn.Sequential(COPYING[layer](), nn.Flatten())
        graph, params = graph_and_params(trace(net, torch.zeros(1, 2, 3, 3)))
        _assert_rules_hold(graph, params, 1 + torch.rand(2, 2, 3, 3), 1e-6, kind, seed)


def test_the_error_of_sums_that_cancel_is_that_of_their_terms():
    """Filters without a mean over an image of one color: the sums are nothing but rounding errors."""
    for seed in range(4):
        torch.manual_seed(seed)
        layer = nn.ConvTranspose2d(2, 2, 11, bias=False)
        layer.weight.data -= layer.weight.mean((0, 2, 3), keepdim=True)
        graph, params = graph_and_params(trace(nn.Sequential(layer, nn.Flatten()), torch.zeros(1, 2, 15, 15)))
        _assert_rules_hold(graph, params, torch.full((2, 2, 15, 15), 1.1), 0.0, "alone", seed)


def test_errors_that_layers_carry_on_are_covered_by_those_before_them():
    """However many there are in a row: each may leave its coefficients four units off."""
    shapes = [nn.Unflatten(1, (2, 3)), nn.Flatten()] * 6
    graph, params = graph_and_params(trace(nn.Sequential(*shapes), torch.zeros(1, 6)))
    x, specification = random_numbers(0, 1, 6), random_numbers(1, 1, 2, 6, octaves=10)
    boxes = layer_boxes(graph, params, outward_box(x, 0.0), F32)
    lower = LinearBounder(graph, params, boxes, F32).at_input(specification)
    for found, row in zip(fractions(lower)[0], fractions(specification)[0], strict=True):
        magnitude = sum_of_products([abs(a) for a in row], [abs(v) for v in fractions(x)[0]])
        assert found <= sum_of_products(row, fractions(x)[0]) - 4 * len(shapes) * Fraction(UNIT) * magnitude


def test_products_with_the_box_may_underflow():
    """Small coefficients on small inputs: the last sums lose them altogether."""
    graph, params = graph_and_params(trace(nn.Flatten(), torch.zeros(1, 2)))
    x, specification = torch.full((1, 2), 2.0**-140), torch.full((1, 1, 2), -(2.0**-20))
    boxes = layer_boxes(graph, params, outward_box(x, 0.0), F32)
    exact = -2 * Fraction(2) ** -160
    assert fractions(LinearBounder(graph, params, boxes, F32).at_input(specification))[0][0] <= exact


def test_multipliers_may_cancel_coefficients_that_are_off():
    """All that is left of a coefficient then is what it was off by."""
    graph, params = graph_and_params(trace(nn.Sequential(nn.ReLU(), nn.Flatten()), torch.zeros(1, 3)))
    x = torch.tensor([[1.0, 2.0, 4.0]])
    boxes = layer_boxes(graph, params, outward_box(x, 0.0), F32)
    specification = torch.ones(1, 1, 3)
    relu = graph.nodes[0].name
    multipliers = Relaxation(multipliers={relu: specification}, signs={relu: torch.ones_like(specification)})
    found = LinearBounder(graph, params, boxes, F32).at_input(specification, multipliers)
    assert fractions(found)[0][0] <= -12 * 7 * Fraction(UNIT)


SIDE_BY_SIDE = {
    "whole": (lambda: nn.MaxPool2d(2), 6),
    "left over": (lambda: nn.MaxPool2d(2), 7),
    "padded": (lambda: nn.MaxPool2d(2, padding=1), 7),
    "padded, left over": (lambda: nn.MaxPool2d((3, 2), padding=(1, 0)), 6),
    "ceil": (lambda: nn.MaxPool2d(3, ceil_mode=True), 7),
    "padded, ceil": (lambda: nn.MaxPool2d(3, padding=1, ceil_mode=True), 6),
    "one pixel": (lambda: nn.MaxPool2d(1), 5),
    "apart": (lambda: nn.MaxPool2d(2, 3), 7),
}


@pytest.mark.parametrize("kind", ["random", "cancelling"])
@pytest.mark.parametrize("case", SIDE_BY_SIDE)
def test_windows_side_by_side_on_images_of_any_size(case, kind):
    """With ties, too: whole images of one value, and of few values."""
    layer, side = SIDE_BY_SIDE[case]
    net = nn.Sequential(layer(), nn.Flatten())
    graph, params = graph_and_params(trace(net, torch.zeros(1, 2, side, side)))
    for seed, eps in ((0, 0.0), (1, 1e-6), (2, 0.4)):
        x = torch.randn(3, 2, side, side, generator=generator(seed))
        x[1], x[2] = 0.5, x[2].round()
        _assert_rules_hold(graph, params, x, eps, kind, seed)
        lower, upper = linear_bounds(graph, params, outward_box(x, eps), F32)
        for point in points_of(*ball(x, eps), 6, seed):
            outputs = graph.evaluate(params, point).double()
            assert bool((outputs >= lower).all() and (outputs <= upper).all())


def test_a_maximum_that_may_be_anyone_pays_for_its_upper_end():
    """For coefficients that are off, and for the sum over a whole image."""
    operation = trace(nn.Sequential(nn.MaxPool2d(2), nn.Flatten()), torch.zeros(1, 1, 24, 24)).graph.nodes[0].operation
    box = Box(random_numbers(0, 1, 1, 24, 24), 10 + random_numbers(1, 1, 1, 24, 24).abs())
    output = rules_for(operation).interval(operation, {}, (box,), F32)
    coefficients = -random_numbers(2, 1, 2, 1, 12, 12, octaves=10).abs()
    back = rules_for(operation).linear(operation, {}, Step(coefficients, (box,), output, F32))
    assert not back.coefficients[0].any()
    top = fractions(output.center.double().flatten() + output.radius.flatten())
    for found, row in zip(fractions(back.constant)[0], fractions(coefficients.flatten(2))[0], strict=True):
        assert found <= sum_of_products(row, top) * (1 + 12 * Fraction(UNIT))


@pytest.mark.parametrize("padding", [0, 1])
def test_what_lies_beyond_an_image_is_never_the_highest(padding):
    """However far down the image itself is: every value within range, and every lower end beyond it."""
    net = nn.Sequential(nn.MaxPool2d(2, padding=padding), nn.Flatten())
    graph, params = graph_and_params(trace(net, torch.zeros(1, 1, 3, 3)))
    box = Box(torch.full((1, 1, 3, 3), -0.9 * 2.0**100), torch.full((1, 1, 3, 3), 0.9 * 2.0**100))
    inside, inverted = within_range(box)
    assert bool(inside.all()) and not bool(inverted)
    lower, _ = linear_bounds(graph, params, box, F32)
    assert bool((lower <= -1.8 * 2.0**100).all())
    boxes = layer_boxes(graph, params, box, F32)
    ones = torch.eye(graph.classes)[None]
    assert bool((LinearBounder(graph, params, boxes, F32).at_input(ones) <= -1.8 * 2.0**100).all())
