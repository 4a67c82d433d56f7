"""Linear bounds hold for the float program that runs, however it sums: every piece by itself, and the whole.

Random networks rarely come near the worst case of a rounding error, so the pieces are held against exact fractions and
against what the text of ``bounds.relaxation`` promises, and whole networks are built to lose as many digits as
they can.
"""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from certibayes.bounds import (
    IDEAL,
    Box,
    ball,
    ideal_box,
    layer_boxes,
    linear_bounds,
    linear_lower,
    outward,
    outward_box,
    rules_for,
    within_range,
)
from certibayes.bounds.linear import least
from certibayes.bounds.relaxation import COEFFICIENT_UNITS, LONG, PIECE, Step, paid, paid_units
from certibayes.bounds.rules.activation import Lines, between, kinked
from certibayes.networks import direct_sums, trace

from ..strategies import (
    ZOO,
    Functional,
    fractions,
    generator,
    graph_and_params,
    inputs,
    law,
    points_of,
    seeds,
    threads,
    traced,
)
from .test_exact import _layers, _network, _range_on_interval, _range_on_rectangle
from .test_float_program import OTHER_PROGRAMS

F32, F64 = outward(torch.float32), outward(torch.float64)
UNIT = F32.unit
ORDERS = {
    "forwards": torch.arange,
    "backwards": lambda n: torch.arange(n).flip(0),
    "evens first": lambda n: torch.cat([torch.arange(0, n, 2), torch.arange(1, n, 2)]),
}
LENGTHS = (7, LONG - 1, LONG, LONG + 1, 784, 3072, 5000)


def _random(seed: int, *shape: int, spread: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, times powers of two up to ``spread`` away."""
    rng = generator(seed)
    numbers = torch.randn(shape, generator=rng, dtype=dtype)
    return numbers * torch.exp2(((torch.rand(shape, generator=rng) * 2 - 1) * spread).round()).to(dtype)


def _total(*factors: list) -> Fraction:
    """Exact sum of products."""
    total = Fraction(0)
    for terms in zip(*factors, strict=True):
        product = Fraction(1)
        for term in terms:
            product *= term
        total += product
    return total


# The pieces, in exact arithmetic


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("spread", [0.0, 20.0])
def test_a_box_isleast_below_the_exact_minimum_also_where_coefficients_are_off(length, spread):
    coefficients = _random(0, 1, 2, length, spread=spread)
    # What cancels loses most.
    coefficients[..., 1::2] = -coefficients[..., : length - length % 2 : 2]
    centre = _random(1, 1, length // 2 + 1, spread=spread / 2).repeat_interleave(2, -1)[:, :length]
    radius = _random(2, 1, length).abs() * 2.0**-30 * centre.abs()
    found = fractions(least(coefficients, Box(centre, radius), F32))[0]
    size = [abs(c) + r for c, r in zip(fractions(centre)[0], fractions(radius)[0], strict=True)]
    for k, row in enumerate(fractions(coefficients)[0]):
        weights = [abs(a) for a in row]
        smallest = _total(row, fractions(centre)[0]) - _total(weights, fractions(radius)[0])
        # Three layers that pass coefficients on, four units each.
        smallest -= _total(weights, size) * Fraction(12 * UNIT)
        assert found[k] <= smallest
        # And not far below: two sums of this length, or of its pieces, twice over.
        units = 4 * ((length if length <= LONG else PIECE) + 8) + 40
        assert found[k] >= smallest - _total(weights, size) * Fraction(units * UNIT)


@pytest.mark.parametrize("length", LENGTHS)
def test_an_error_of_a_layer_is_paid_in_full(length):
    coefficients, error = _random(0, 1, 2, length, spread=10), _random(1, 1, length, spread=10).abs()
    output = Box(_random(2, 1, length), _random(3, 1, length).abs())
    step = Step(coefficients, (output,), output, F32)
    own = fractions((output.centre.double().abs() + output.radius.double())[0])
    for found, row in zip(fractions(paid(step, error))[0], fractions(coefficients.abs())[0], strict=True):
        units = _total(row, own) * Fraction((COEFFICIENT_UNITS - 1) * UNIT)
        assert found <= -_total(row, fractions(error[0])) - units
    for found, row in zip(
        fractions(paid_units(coefficients, output, F32))[0], fractions(coefficients.abs())[0], strict=True
    ):
        assert found <= -_total(row, own) * Fraction(COEFFICIENT_UNITS * UNIT)


ends = st.one_of(
    st.floats(-(2.0**90), 2.0**90, width=32),
    st.floats(-1.0, 1.0, width=32),
    st.sampled_from([0.0, 2.0**-149, -(2.0**-149), 2.0**-126, -(2.0**-126), 1e-30, -1e-7, 1 + 2.0**-23, -3e9]),
)


@law(150)
@given(
    one=ends,
    other=ends,
    slope=st.sampled_from([0.0, 0.125, *(float(np.float32(s)) for s in (1e-9, 0.01, 1 / 3)), 1 - 2.0**-24, 1.0]),
    choice=st.sampled_from(["zero", "adaptive", torch.full((1, 1, 1), 0.25)]),
)
def test_lines_around_a_kink_hold_exactly(one, other, slope, choice):
    """The numbers that come out of floats are the lines; no unit is lost."""
    low, high = sorted((one, other))
    box = Box(torch.tensor([[low / 2 + high / 2]]), torch.tensor([[high / 2 - low / 2]]))
    step = Step(torch.ones(1, 1, 1), (box,), box, F32, choice)
    lines = kinked(slope, step)
    upper_slope, offset = (Fraction(float(t)) for t in (lines.upper_slope, lines.upper_offset))
    lower_slope, below = Fraction(float(lines.lower_slope)), Fraction(slope)
    left, right = (Fraction(float(end)) for end in step.ends())
    for z in {left, right, (left + right) / 2, *([Fraction(0)] if left <= 0 <= right else [])}:
        value = z if z > 0 else below * z
        assert lower_slope * z <= value <= upper_slope * z + offset
    if left < 0 < right:
        # Not far above the chord either.
        chord = (right - below * left) / (right - left)
        assert offset <= (chord - below) * -left + (right - left) * Fraction(32 * UNIT) + Fraction(2.0**-140)


@pytest.mark.parametrize("length", [40, LONG, LONG + 1])
def test_offsets_of_lines_are_summed_on_the_safe_side(length):
    coefficients = _random(0, 1, 2, length, spread=10)
    offsets = [_random(seed, 1, length, spread=10) for seed in (1, 2)]
    slopes = torch.ones(1, length)
    box = Box(torch.zeros(1, length), torch.ones(1, length))
    back = between(Lines(slopes, offsets[0], slopes, offsets[1]), Step(coefficients, (box,), box, F32))
    below, above = (fractions(offset[0]) for offset in offsets)
    for found, row in zip(fractions(back.constant)[0], fractions(coefficients)[0], strict=True):
        exact = sum((a * (low if a > 0 else high) for a, low, high in zip(row, below, above, strict=True)), Fraction(0))
        size = sum(
            (abs(a) * (abs(low) + abs(high)) for a, low, high in zip(row, below, above, strict=True)), Fraction(0)
        )
        # Off by up to twelve units, the coefficients would give this much less.
        assert found <= exact - sum(
            (
                abs(a * (low if a > 0 else high)) * Fraction(12 * UNIT)
                for a, low, high in zip(row, below, above, strict=True)
            ),
            Fraction(0),
        )
        assert found >= exact - size * Fraction((4 * length + 80) * UNIT)


@pytest.mark.parametrize(("terms", "uses"), [(2, 4000), (600, 2), (40, 40)])
def test_a_linear_layer_pays_for_the_worst_program_and_for_its_own_products(terms, uses):
    """A program that errs as far as theory allows, against the coefficients that were computed, in exact arithmetic."""
    operation = traced("one linear layer")[0].nodes[-1].operation
    weight, bias = _random(0, uses, terms), _random(1, uses) * UNIT
    # Added to -1 one after the other, all the others vanish.
    weight[:, 0], coefficients = 1.0, torch.full((1, 1, uses), -UNIT)
    coefficients[..., 0] = -1.0
    centre = torch.full((1, terms), 2.0**-10)
    centre[:, 0] = 1.0
    inputs_box = Box(centre, torch.zeros_like(centre))
    output = rules_for(operation).interval(operation, {"weight": weight, "bias": bias}, (inputs_box,), F32)
    step = Step(coefficients, (inputs_box,), output, F32)
    back = rules_for(operation).linear(operation, {"weight": weight, "bias": bias}, step)
    x, rows, offsets = fractions(centre[0]), fractions(weight), fractions(bias)
    gamma = Fraction((terms + 1) * UNIT) / (1 - Fraction((terms + 1) * UNIT))
    worst = Fraction(0)
    for a, row, b in zip(fractions(coefficients)[0][0], rows, offsets, strict=True):
        error = gamma * (_total([abs(w) for w in row], [abs(v) for v in x]) + abs(b))
        worst += a * (_total(row, x) + b) - abs(a) * error
    assert _total(fractions(back.coefficients[0])[0][0], x) + fractions(back.constant)[0][0] <= worst


# Every rule by itself: A z >= A' x + d for the program that runs


def _run(graph, params, x, order):
    """Inputs and output of every node, each layer summed in the given order."""
    seen = {}

    def rule(node, values):
        other = OTHER_PROGRAMS.get(type(node.operation))
        weights = node.weights(params)
        if other is None or order is None:
            return node.operation.evaluate(weights, *values)
        return other(node.operation, weights, values[0], order)

    def remember(node, values, output):
        seen[node.name] = (values, output)
        return output

    with torch.no_grad(), direct_sums():
        graph.fold(x, rule, remember)
    return seen


def _coefficients(shape, kind: str, seed: int) -> Tensor:
    found = _random(seed, *shape, spread=8.0)
    if kind == "cancelling":
        # Large and almost the same, with signs that alternate: in images row by row, so that partial sums grow.
        period = shape[-1] if len(shape) > 3 else 1
        signs = 1.0 - 2.0 * (torch.arange(found[0, 0].numel()) // period % 2).view(shape[2:])
        found = signs * 1000.0 + found * 2.0**-8
    return found


def _assert_rules_hold(graph, params, x, eps, kind, seed):
    with torch.no_grad(), direct_sums():
        boxes = layer_boxes(graph, params, outward_box(x, eps), F32)
        backs = {}
        for node in graph.nodes:
            coefficients = _coefficients((len(x), 2, *node.shape), kind, seed)
            step = Step(coefficients, tuple(boxes[name] for name in node.inputs), boxes[node.name], F32)
            rule = rules_for(node.operation).linear
            backs[node.name] = coefficients, rule(node.operation, node.weights(params), step)
    points = points_of(*ball(x, eps), 6, seed)
    for point, order in zip(points, [None, *ORDERS.values(), None, torch.arange], strict=True):
        for name, (values, output) in _run(graph, params, point, order).items():
            coefficients, back = backs[name]
            low, room = back.constant.double(), torch.full(back.constant.shape, 1e-30, dtype=torch.float64)
            for into, value in zip(back.coefficients, values, strict=True):
                product = (into.double() * value.double()[:, None]).flatten(2)
                low = low + product.sum(-1)
                # A rule that does not pay may leave its coefficients four units off.
                room = room + (2.0**-45 if back.paid else 4 * UNIT) * product.abs().sum(-1)
            value = (coefficients.double() * output.double()[:, None]).flatten(2).sum(-1)
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


def test_layers_that_do_not_pay_are_paid_for_by_those_before_them():
    """However many there are in a row: each may leave its coefficients four units off."""
    shapes = [nn.Unflatten(1, (2, 3)), nn.Flatten()] * 6
    graph, params = graph_and_params(trace(nn.Sequential(*shapes), torch.zeros(1, 6)))
    x, specification = _random(0, 1, 6), _random(1, 1, 2, 6, spread=10)
    boxes = layer_boxes(graph, params, outward_box(x, 0.0), F32)
    lower = linear_lower(graph, params, boxes, specification, F32, at_input_only=True)
    for found, row in zip(fractions(lower)[0], fractions(specification)[0], strict=True):
        size = _total([abs(a) for a in row], [abs(v) for v in fractions(x)[0]])
        assert found <= _total(row, fractions(x)[0]) - 4 * len(shapes) * Fraction(UNIT) * size


def test_products_with_the_box_may_underflow():
    """Small coefficients on small inputs: the last sums lose them altogether."""
    graph, params = graph_and_params(trace(nn.Flatten(), torch.zeros(1, 2)))
    x, specification = torch.full((1, 2), 2.0**-140), torch.full((1, 1, 2), -(2.0**-20))
    boxes = layer_boxes(graph, params, outward_box(x, 0.0), F32)
    exact = -2 * Fraction(2) ** -160
    assert fractions(linear_lower(graph, params, boxes, specification, F32, at_input_only=True))[0][0] <= exact


def test_multipliers_may_cancel_coefficients_that_are_off():
    """All that is left of a coefficient then is what it was off by."""
    graph, params = graph_and_params(trace(nn.Sequential(nn.ReLU(), nn.Flatten()), torch.zeros(1, 3)))
    x = torch.tensor([[1.0, 2.0, 4.0]])
    boxes = layer_boxes(graph, params, outward_box(x, 0.0), F32)
    specification = torch.ones(1, 1, 3)
    relu = graph.nodes[0].name
    found = linear_lower(
        graph, params, boxes, specification, F32, at_input_only=True, multipliers={relu: specification}
    )
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
    layer, size = SIDE_BY_SIDE[case]
    net = nn.Sequential(layer(), nn.Flatten())
    graph, params = graph_and_params(trace(net, torch.zeros(1, 2, size, size)))
    for seed, eps in ((0, 0.0), (1, 1e-6), (2, 0.4)):
        x = torch.randn(3, 2, size, size, generator=generator(seed))
        x[1], x[2] = 0.5, x[2].round()
        _assert_rules_hold(graph, params, x, eps, kind, seed)
        lower, upper = linear_bounds(graph, params, outward_box(x, eps), F32)
        for point in points_of(*ball(x, eps), 6, seed):
            outputs = graph.evaluate(params, point).double()
            assert bool((outputs >= lower).all() and (outputs <= upper).all())


def test_a_maximum_that_may_be_anyone_pays_for_its_upper_end():
    """For coefficients that are off, and for the sum over a whole image."""
    operation = trace(nn.Sequential(nn.MaxPool2d(2), nn.Flatten()), torch.zeros(1, 1, 24, 24)).graph.nodes[0].operation
    box = Box(_random(0, 1, 1, 24, 24), 10 + _random(1, 1, 1, 24, 24).abs())
    output = rules_for(operation).interval(operation, {}, (box,), F32)
    coefficients = -_random(2, 1, 2, 1, 12, 12, spread=10).abs()
    back = rules_for(operation).linear(operation, {}, Step(coefficients, (box,), output, F32))
    assert not back.coefficients[0].any()
    top = fractions(output.centre.double().flatten() + output.radius.flatten())
    for found, row in zip(fractions(back.constant)[0], fractions(coefficients.flatten(2))[0], strict=True):
        assert found <= _total(row, top) * (1 + 12 * Fraction(UNIT))


@pytest.mark.parametrize("padding", [0, 1])
def test_what_lies_beyond_an_image_is_never_the_highest(padding):
    """However far down the image itself is: every value within range, and every lower end beyond it."""
    net = nn.Sequential(nn.MaxPool2d(2, padding=padding), nn.Flatten())
    graph, params = graph_and_params(trace(net, torch.zeros(1, 1, 3, 3)))
    box = Box(torch.full((1, 1, 3, 3), -0.9 * 2.0**100), torch.full((1, 1, 3, 3), 0.9 * 2.0**100))
    assert bool(within_range(box))
    lower, _ = linear_bounds(graph, params, box, F32)
    assert bool((lower <= -1.8 * 2.0**100).all())
    boxes = layer_boxes(graph, params, box, F32)
    ones = torch.eye(graph.classes)[None]
    assert bool((linear_lower(graph, params, boxes, ones, F32, at_input_only=True) <= -1.8 * 2.0**100).all())


# Whole networks that lose as many digits as they can


def _sum_in_order(x: Tensor, weight: Tensor, order: Tensor) -> Tensor:
    """Products rounded, and added one after the other: (B, n) and (m, n) -> (B, m)."""
    products = (x[:, None, :] * weight)[..., order].numpy()
    return torch.from_numpy(np.cumsum(products, -1, dtype=products.dtype)[..., -1].copy())


def _linear_case(weight: Tensor):
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False).to(weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return graph_and_params(trace(layer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", LENGTHS)
def test_long_sums_stay_inside_in_every_order(length, dtype):
    """At the corners of the ball, where a linear layer reaches its bound but for rounding."""
    unit = outward(dtype).unit
    stagnant = torch.full((1, length), unit, dtype=dtype)
    stagnant[0, 0] = 1.0
    half = _random(0, 1, length // 2, dtype=dtype)
    cancelling = torch.cat([half, -half, torch.full((1, length % 2), unit, dtype=dtype)], 1)
    weight = torch.cat([stagnant, -stagnant, cancelling, _random(1, 1, length, spread=10, dtype=dtype)])
    graph, params = _linear_case(weight)
    x = torch.stack([torch.ones(length, dtype=dtype), _random(2, length, dtype=dtype)])
    x[1, length // 2 : 2 * (length // 2)] = x[1, : length // 2]
    strayed = torch.zeros((), dtype=torch.float64)
    for eps in (0.0, 1e-6, 0.1):
        lower, upper = linear_bounds(graph, params, outward_box(x, eps), outward(dtype))
        for row in range(len(weight)):
            for sign in (1.0, -1.0):
                low, high = ball(x, eps)
                corner = torch.where(sign * weight[row] > 0, low, high)
                for order in ORDERS.values():
                    found = _sum_in_order(corner, weight[row : row + 1], order(length)).double()[:, 0]
                    assert bool((found >= lower[:, row]).all() and (found <= upper[:, row]).all())
                    exact = (corner.double() * weight[row].double()).sum(-1)
                    strayed = torch.maximum(strayed, (found - exact).abs().max())
    if dtype == torch.float32 and length > LONG:
        assert float(strayed) > 4 * UNIT  # the law was worth testing


@pytest.mark.parametrize("length", [784, 3072, 5000])
def test_wide_networks_stay_inside_for_every_batch_size_and_thread_count(length):
    torch.manual_seed(0)
    graph, params = graph_and_params(trace(nn.Sequential(nn.Linear(length, 40), nn.ReLU(), nn.Linear(40, 3))))
    x = torch.rand(9, length)
    with torch.no_grad(), direct_sums():
        lower, upper = linear_bounds(graph, params, outward_box(x, 0.0), F32)
        for count in (1, 2):
            with threads(count):
                for size in (1, 4, 9):
                    outputs = torch.cat([graph.evaluate(params, part) for part in x.split(size)]).double()
                    assert bool((outputs >= lower).all() and (outputs <= upper).all())
        parts = [linear_bounds(graph, params, outward_box(part, 0.0), F32) for part in x.split(2)]
        alone = torch.cat([low for low, _ in parts])
        assert bool((outputs >= alone).all())


@law(40)
@given(
    exponents=st.lists(st.integers(-80, 30), min_size=2, max_size=7),
    mantissas=st.lists(st.floats(1.0, 2.0, width=32), min_size=7, max_size=7),
    size=st.sampled_from([1.0, 2.0**29, 2.0**-100, 2.0**-149]),
)
def test_small_weights_may_follow_large_ones(exponents, mantissas, size):
    """Products of weights underflow on the way back though no value does on the way forth."""
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in exponents])
    with torch.no_grad():
        for layer, exponent, mantissa in zip(net, exponents, mantissas, strict=False):
            layer.weight.fill_(mantissa * 2.0**exponent)
    graph, params = graph_and_params(trace(net))
    x = torch.tensor([[size], [-size]])
    boxes = layer_boxes(graph, params, outward_box(x, 0.0), F32)
    assume(all(bool(within_range(box)) for box in boxes.values()))
    lower, upper = linear_bounds(graph, params, outward_box(x, 0.0), F32)
    outputs = graph.evaluate(params, x).double()
    assert bool((outputs >= lower).all() and (outputs <= upper).all())


def test_coefficients_that_underflow_by_hand():
    """1.2 2^-75 times 1.2 2^-74 is 0.72 2^-148, which as a float32 is 39% too large or too small."""
    net = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(6)])
    with torch.no_grad():
        for layer, weight in zip(net, (2.0**30, 2.0**30, 2.0**29, 1.2 * 2.0**-75, 1.2 * 2.0**-74, 1.0), strict=True):
            layer.weight.fill_(weight)
    graph, params = graph_and_params(trace(net))
    lower, upper = linear_bounds(graph, params, outward_box(torch.ones(1, 1), 0.0), F32)
    output = float(graph.evaluate(params, torch.ones(1, 1)))
    assert float(lower) <= output <= float(upper)


@law(15)
@given(seed=seeds, scale=st.sampled_from([2.0**-140, 2.0**-126, 1e-20, 1.0, 1e6]), eps=st.sampled_from([0.0, 0.01]))
def test_tiny_and_huge_inputs_stay_inside(seed, scale, eps):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(20, 10), nn.LeakyReLU(0.3), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        net[0].bias.mul_(scale)
        net[2].weight.mul_(2.0**28)
    graph, params = graph_and_params(trace(net))
    x = torch.randn(4, 20) * scale
    lower, upper = linear_bounds(graph, params, outward_box(x, eps * scale), F32)
    for point in points_of(*ball(x, eps * scale), 6, seed):
        for order in ORDERS.values():
            ((_, output),) = [_run(graph, params, point, order)[graph.nodes[-1].name]]
            assert bool((output.double() >= lower).all() and (output.double() <= upper).all())


def _residual(small: float) -> nn.Module:
    """relu(h) minus almost itself: coefficients A and -A meet at h, and at the input."""

    def forward(self: Functional, x: Tensor) -> Tensor:
        hidden = self.first(x)
        bent = functional.relu(hidden)
        return self.last(bent - self.second(bent) + 0.5 * functional.relu(hidden) - 0.5 * hidden)

    second = nn.Linear(12, 12)
    with torch.no_grad():
        second.weight.copy_(torch.eye(12) * (1 + small))
        second.bias.zero_()
    return Functional(forward, first=nn.Linear(6, 12), second=second, last=nn.Linear(12, 3))


@law(15)
@given(seed=seeds, small=st.sampled_from([0.0, 2.0**-23, 1e-5]), eps=st.sampled_from([0.0, 1e-6, 0.1]))
def test_coefficients_that_cancel_where_they_meet(seed, small, eps):
    torch.manual_seed(seed)
    net = _residual(small)
    net.input_shape = (6,)
    with torch.no_grad():
        net.first.bias.mul_(1e4)
    graph, params = graph_and_params(trace(net))
    x = torch.randn(3, 6)
    lower, upper = linear_bounds(graph, params, outward_box(x, eps), F32)
    for point in points_of(*ball(x, eps), 6, seed):
        for order in ORDERS.values():
            output = _run(graph, params, point, order)[graph.nodes[-1].name][1].double()
            assert bool((output >= lower).all() and (output <= upper).all())


CHAINS = {
    "leaky": lambda: [nn.LeakyReLU(0.3) for _ in range(9)],
    "steep": lambda: [nn.LeakyReLU(3.0) for _ in range(6)],
    "relu and shape": lambda: [nn.ReLU(), nn.Unflatten(1, (1, 6, 6)), nn.ReLU(), nn.Flatten(), nn.ReLU(), nn.ReLU()],
    "pooling": lambda: [
        nn.Unflatten(1, (1, 6, 6)),
        *[layer for _ in range(5) for layer in (nn.ReLU(), nn.MaxPool2d(3, 1, 1))],
        nn.Flatten(),
    ],
    "mixed": lambda: [nn.LeakyReLU(0.7), nn.ReLU(), nn.Unflatten(1, (1, 6, 6)), nn.MaxPool2d(1), nn.Flatten()] * 3,
}


@pytest.mark.parametrize("chain", CHAINS)
def test_long_chains_of_layers_without_parameters(chain):
    for seed, eps in ((0, 0.0), (1, 1e-6), (2, 0.05)):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(5, 36), *CHAINS[chain](), nn.Linear(36, 3))
        graph, params = graph_and_params(trace(net))
        x = torch.randn(3, 5)
        with direct_sums():
            for slopes in ("zero", "adaptive"):
                lower, upper = linear_bounds(graph, params, outward_box(x, eps), F32, slopes)
                for point in points_of(*ball(x, eps), 8, seed):
                    output = _run(graph, params, point, torch.arange)[graph.nodes[-1].name][1].double()
                    assert bool((output >= lower).all() and (output <= upper).all())
        if eps == 0.0:
            assert float((upper - lower).max()) < 1e-3 * 3 ** (6 * (chain == "steep"))


# Exact ranges of tiny networks


def _assert_below_exact(net: nn.Sequential, x: Tensor, eps: float, exact_range) -> None:
    low = [v - Fraction(eps) for v in fractions(x[0])]
    high = [v + Fraction(eps) for v in fractions(x[0])]
    exact = exact_range(_layers(net), low, high)
    graph, params = graph_and_params(trace(net))
    double = {key: value.double() for key, value in params.items()}
    cases = [
        (params, outward_box(x, eps), F32, Fraction(0)),
        (double, outward_box(x.double(), eps), F64, Fraction(0)),
        (double, ideal_box(x.double(), eps), IDEAL, Fraction(1, 10**12)),
    ]
    for weights, box, rounding, slack in cases:
        for slopes in ("zero", "adaptive"):
            lower, upper = linear_bounds(graph, weights, box, rounding, slopes)
            for down, up, (smallest, most) in zip(fractions(lower[0]), fractions(upper[0]), exact, strict=True):
                assert down - slack <= smallest and most <= up + slack


slopes_below = st.sampled_from([0.0, 0.25, 2.0])


@law(12)
@given(seed=seeds, slope=slopes_below, eps=st.sampled_from([0.0, 0.01, 0.3, 2.0]), depth=st.integers(1, 3))
def test_the_exact_range_over_an_interval_is_contained(seed, slope, eps, depth):
    net = _network(seed, [1, *[4] * depth, 2], slope)
    _assert_below_exact(
        net, torch.randn(1, 1), eps, lambda ls, lo, hi: _range_on_interval(ls, Fraction(slope), lo[0], hi[0])
    )


@law(12)
@given(seed=seeds, slope=slopes_below, eps=st.sampled_from([0.01, 0.3, 2.0]))
def test_the_exact_range_over_a_rectangle_is_contained(seed, slope, eps):
    net = _network(seed, [2, 5, 2], slope)
    _assert_below_exact(
        net, torch.randn(1, 2), eps, lambda ls, lo, hi: _range_on_rectangle(ls, Fraction(slope), lo, hi)
    )


@law(12)
@given(seed=seeds, eps=st.sampled_from([0.01, 0.3, 2.0]))
def test_the_exact_minimum_of_a_margin_is_not_passed(seed, eps):
    """A margin is one more output of the network: the last layer's first row minus its second."""
    net = _network(seed, [2, 5, 2], 0.0)
    x = torch.randn(1, 2)
    (first, (weight, bias)) = _layers(net)
    difference = [[a - b for a, b in zip(*weight, strict=True)]], [bias[0] - bias[1]]
    low = [v - Fraction(eps) for v in fractions(x[0])]
    high = [v + Fraction(eps) for v in fractions(x[0])]
    ((smallest, _),) = _range_on_rectangle([first, difference], Fraction(0), low, high)
    graph, params = graph_and_params(trace(net))
    boxes = layer_boxes(graph, params, outward_box(x, eps), F32)
    found = linear_lower(graph, params, boxes, torch.tensor([[[1.0, -1.0]]]), F32)
    assert fractions(found)[0][0] <= smallest


# And not absurdly loose


@pytest.mark.parametrize(
    ("widths", "share"), [([784, 64, 10], 0.05), ([784, 64, 32, 10], 0.15), ([3072, 64, 10], 0.15)]
)
def test_rounding_costs_a_small_share_of_the_width(widths, share):
    """Of random weights, whose sums of magnitudes are large beside what the small radius does."""
    torch.manual_seed(0)
    layers = [part for n, m in pairwise(widths) for part in (nn.Linear(n, m), nn.ReLU())][:-1]
    graph, params = graph_and_params(trace(nn.Sequential(*layers)))
    x = torch.rand(2, widths[0])
    lower, upper = linear_bounds(graph, params, outward_box(x, 0.01, (0.0, 1.0)), F32)
    double = {name: p.double() for name, p in params.items()}
    low, high = linear_bounds(graph, double, ideal_box(x.double(), 0.01, (0.0, 1.0)))
    assert bool((lower <= low).all() and (upper >= high).all())
    assert float(((upper - lower) / (high - low)).max()) < 1 + share


def test_an_image_of_any_size_can_be_shifted():
    """The sum over a large layer's offsets is long, but it is made in float64."""
    net = nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net[0].running_mean.fill_(0.5)
    net.eval()
    graph, params = graph_and_params(trace(net, torch.zeros(1, 3, 96, 96)))
    x = torch.rand(1, 3, 96, 96)
    lower, upper = linear_bounds(graph, params, outward_box(x, 0.0), F32)
    output = graph.evaluate(params, x).double()
    assert bool((output >= lower).all() and (output <= upper).all())
