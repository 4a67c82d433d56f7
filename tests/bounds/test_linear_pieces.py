"""The pieces of linear bounds cover every rounding, held against exact fractions.

Random networks rarely come near the worst case of a rounding error, so each piece is held against what the text of
``bounds._offset`` promises.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from certibayes.bounds import Box, layer_boxes, outward_box, rules_for
from certibayes.bounds._backward import Backward, Step
from certibayes.bounds._offset import Offset, coefficient_error, error_through
from certibayes.bounds.linear import LinearBounder, _BackwardPass, concretize
from certibayes.bounds.relaxation import Relaxation
from certibayes.bounds.rules.activation import LinearRelaxation, kinked, relax
from certibayes.bounds.sums import COEFFICIENT_UNITS, LONG, PIECE
from certibayes.networks import trace
from certibayes.networks.operations import LeakyReLU, ReLU

from ..strategies import fractions, law, traced
from .rounding_cases import F32, LENGTHS, UNIT, random_numbers, sum_of_products


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("octaves", [0.0, 20.0])
def test_a_bound_over_a_box_is_below_the_exact_minimum_also_where_coefficients_are_off(length, octaves):
    coefficients = random_numbers(0, 1, 2, length, octaves=octaves)
    # What cancels loses most.
    coefficients[..., 1::2] = -coefficients[..., : length - length % 2 : 2]
    center = random_numbers(1, 1, length // 2 + 1, octaves=octaves / 2).repeat_interleave(2, -1)[:, :length]
    radius = random_numbers(2, 1, length).abs() * 2.0**-30 * center.abs()
    found = fractions(concretize(coefficients, Box(center, radius), F32))[0]
    magnitude = [abs(c) + r for c, r in zip(fractions(center)[0], fractions(radius)[0], strict=True)]
    for k, row in enumerate(fractions(coefficients)[0]):
        weights = [abs(a) for a in row]
        smallest = sum_of_products(row, fractions(center)[0]) - sum_of_products(weights, fractions(radius)[0])
        # Three layers that pass coefficients on, four units each.
        smallest -= sum_of_products(weights, magnitude) * Fraction(12 * UNIT)
        assert found[k] <= smallest
        # And not far below: two sums of this length, or of its pieces, twice over.
        units = 4 * ((length if length <= LONG else PIECE) + 8) + 40
        assert found[k] >= smallest - sum_of_products(weights, magnitude) * Fraction(units * UNIT)


@pytest.mark.parametrize("length", LENGTHS)
def test_an_error_of_a_layer_is_covered_in_full(length):
    coefficients, error = random_numbers(0, 1, 2, length, octaves=10), random_numbers(1, 1, length, octaves=10).abs()
    output = Box(random_numbers(2, 1, length), random_numbers(3, 1, length).abs())
    own = fractions((output.center.double().abs() + output.radius.double())[0])
    rows = fractions(coefficients.abs())[0]
    for found, row in zip(fractions(error_through(coefficients, output, error, F32))[0], rows, strict=True):
        units = sum_of_products(row, own) * Fraction((COEFFICIENT_UNITS - 1) * UNIT)
        assert found >= sum_of_products(row, fractions(error[0])) + units
    for found, row in zip(fractions(coefficient_error(coefficients, output, F32))[0], rows, strict=True):
        assert found >= sum_of_products(row, own) * Fraction(COEFFICIENT_UNITS * UNIT)


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
    """The floats that come out are the relaxation itself; no unit is lost."""
    low, high = sorted((one, other))
    box = Box(torch.tensor([[low / 2 + high / 2]]), torch.tensor([[high / 2 - low / 2]]))
    step = Step(torch.ones(1, 1, 1), (box,), box, F32, choice)
    relaxation = kinked(slope, step)
    upper_slope, offset = (Fraction(float(t)) for t in (relaxation.upper_slope, relaxation.upper_offset))
    lower_slope, below = Fraction(float(relaxation.lower_slope)), Fraction(slope)
    left, right = (Fraction(float(end)) for end in step.ends())
    for z in {left, right, (left + right) / 2, *([Fraction(0)] if left <= 0 <= right else [])}:
        value = z if z > 0 else below * z
        assert lower_slope * z <= value <= upper_slope * z + offset
    if left < 0 < right:
        # Not far above the chord either.
        chord = (right - below * left) / (right - left)
        assert offset <= (chord - below) * -left + (right - left) * Fraction(32 * UNIT) + Fraction(2.0**-140)


@law(100)
@given(center=ends, radius=ends)
def test_ends_of_inputs_are_never_inside_the_box(center, radius):
    box = Box(torch.tensor([[center]]), torch.tensor([[abs(radius)]]))
    low, high = (Fraction(float(end)) for end in Step(torch.ones(1, 1, 1), (box,), box, F32).ends())
    exact, reach = Fraction(float(box.center)), Fraction(float(box.radius))
    # What is subnormal is left to the allowance for underflow.
    assert low <= exact - reach + Fraction(2) ** -126
    assert high >= exact + reach - Fraction(2) ** -126


@pytest.mark.parametrize("slope", [0.01, 2.0])
def test_a_leaky_relu_covers_values_that_a_program_takes_for_zero(slope):
    z, coefficients = torch.full((1, 1), -(2.0**-127)), torch.full((1, 1, 1), -(2.0**60))
    box, operation = Box(z, torch.zeros_like(z)), LeakyReLU(slope)
    output = rules_for(operation).interval(operation, {}, (box,), F32)
    step, offset = Step(coefficients, (box,), output, F32), Offset(coefficients, F32)
    back = rules_for(operation).linear(operation, {}, step)
    offset.add_layer(step, back)
    (into,) = back.coefficients
    assert Fraction(float(into)) * Fraction(float(z)) + Fraction(float(offset.value)) <= 0


@pytest.mark.parametrize("length", [40, LONG, LONG + 1])
def test_offsets_of_lines_are_summed_on_the_safe_side(length):
    coefficients = random_numbers(0, 1, 2, length, octaves=10)
    offsets = [random_numbers(seed, 1, length, octaves=10) for seed in (1, 2)]
    slopes = torch.ones(1, length)
    box = Box(torch.zeros(1, length), torch.ones(1, length))
    back = relax(LinearRelaxation(slopes, offsets[0], slopes, offsets[1]), Step(coefficients, (box,), box, F32))
    below, above = (fractions(offset[0]) for offset in offsets)
    for found, row in zip(fractions(back.constant)[0], fractions(coefficients)[0], strict=True):
        exact = sum((a * (low if a > 0 else high) for a, low, high in zip(row, below, above, strict=True)), Fraction(0))
        magnitude = sum(
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
        assert found >= exact - magnitude * Fraction((4 * length + 80) * UNIT)


class _Shifted(nn.Module):
    def __init__(self, offset):
        super().__init__()
        self.offset = nn.Parameter(offset)

    def forward(self, x):
        return x + self.offset


@pytest.mark.parametrize("length", [LONG, LONG + 1])
def test_constants_that_are_added_are_summed_on_the_safe_side(length):
    """In the worst order: the sum over a layer is longer than anything that its own program adds up."""
    network = trace(_Shifted(random_numbers(0, length, octaves=10)), torch.zeros(1, length))
    (node,), coefficients = network.graph.nodes, random_numbers(1, 1, 2, length, octaves=10)
    box = Box(torch.zeros(1, length), torch.zeros(1, length))
    weights = node.weights(network.params)
    output = rules_for(node.operation).interval(node.operation, weights, (box,), F32)
    step, offset = Step(coefficients, (box,), output, F32), Offset(coefficients, F32)
    offset.add_layer(step, rules_for(node.operation).linear(node.operation, weights, step))
    added = fractions(network.params["offset"])
    for found, row in zip(fractions(offset.value)[0], fractions(coefficients)[0], strict=True):
        magnitude = sum_of_products([abs(a) for a in row], [abs(d) for d in added])
        terms = length if length <= LONG else PIECE
        assert found <= sum_of_products(row, added) - magnitude * Fraction((terms + 60) * UNIT)


@pytest.mark.parametrize(("terms", "uses"), [(2, 4000), (600, 2), (40, 40)])
def test_a_linear_layer_covers_the_worst_program_and_its_own_products(terms, uses):
    """A program that errs as far as theory allows, against the coefficients that were computed, in exact arithmetic."""
    operation = traced("one linear layer")[0].nodes[-1].operation
    weight, bias = random_numbers(0, uses, terms), random_numbers(1, uses) * UNIT
    # Added to -1 one after the other, all the others are lost.
    weight[:, 0], coefficients = 1.0, torch.full((1, 1, uses), -UNIT)
    coefficients[..., 0] = -1.0
    center = torch.full((1, terms), 2.0**-10)
    center[:, 0] = 1.0
    inputs_box = Box(center, torch.zeros_like(center))
    output = rules_for(operation).interval(operation, {"weight": weight, "bias": bias}, (inputs_box,), F32)
    step = Step(coefficients, (inputs_box,), output, F32)
    back = rules_for(operation).linear(operation, {"weight": weight, "bias": bias}, step)
    offset = Offset(coefficients, F32)
    offset.add_layer(step, back)
    x, rows, offsets = fractions(center[0]), fractions(weight), fractions(bias)
    gamma = Fraction((terms + 1) * UNIT) / (1 - Fraction((terms + 1) * UNIT))
    worst = Fraction(0)
    for a, row, b in zip(fractions(coefficients)[0][0], rows, offsets, strict=True):
        error = gamma * (sum_of_products([abs(w) for w in row], [abs(v) for v in x]) + abs(b))
        worst += a * (sum_of_products(row, x) + b) - abs(a) * error
    assert sum_of_products(fractions(back.coefficients[0])[0][0], x) + fractions(offset.value)[0][0] <= worst


def test_what_a_multiplier_cancels_may_still_be_off():
    """Of coefficients that cancel nothing is left that later layers would cover, but for what they were off by."""
    graph, params = traced("relu", 0)
    node = next(node for node in graph.nodes if isinstance(node.operation, ReLU))
    x = torch.randn(3, *graph.input_shape, generator=torch.Generator().manual_seed(0))
    boxes = layer_boxes(graph, params, outward_box(x, 0.1), F32)
    z = boxes[node.inputs[0]]
    coefficients = torch.randn(3, 2, *node.shape, generator=torch.Generator().manual_seed(1))
    fixed = Relaxation(multipliers={node.name: coefficients.abs()}, signs={node.name: coefficients.sign()})
    backward = _BackwardPass(LinearBounder(graph, params, boxes, F32), torch.zeros(3, 2, graph.classes), fixed)
    back = Backward((coefficients,), torch.zeros(3, 2))
    (left,) = backward._subtract_multipliers(node, back).coefficients
    assert not left.any()
    off = COEFFICIENT_UNITS * UNIT * coefficients.double().abs()
    worst = (off * (z.center.double().abs() + z.radius)[:, None]).flatten(2).sum(-1)
    assert bool((backward.offset.total(torch.zeros(3, 2)) <= -worst).all())
