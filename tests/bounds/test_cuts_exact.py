"""Cuts and linear functions in rational arithmetic: every float result is compared with exact fractions.

Random networks rarely come near the worst case of a rounding error, so cuts are tested against the worst program that
the theory of rounding allows, at the corners of their boxes, and tiny networks are followed through every kink.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from certibayes.bounds import (
    IDEAL,
    Box,
    LinearBounder,
    Relaxation,
    ideal_box,
    layer_boxes,
    outward,
    outward_box,
    rules_for,
)
from certibayes.bounds.cuts import Cuts, apply_cuts
from certibayes.bounds.intermediate import box_between_ends, crown_boxes
from certibayes.bounds.optimize import ascend, start_relaxation
from certibayes.bounds.sums import COEFFICIENT_UNITS, LONG, PIECE, dot, sum_error
from certibayes.networks import trace

from ..strategies import fractions, generator, graph_and_params, law, seeds, traced
from .exact_cases import knots_of, layers_of, network, range_on_interval, range_on_rectangle, rescaled
from .rounding_cases import random_numbers, sum_of_products

DTYPES = [torch.float32, torch.float64]
UNITS_OFF = 12
"""Of a coefficient that three layers in a row have passed on without covering its error."""


def _cuts_over_all(units: int, coefficients: Tensor) -> Cuts:
    every = torch.arange(units).expand(1, 1, units).contiguous()
    return Cuts(every, torch.ones_like(every, dtype=torch.bool), coefficients)


def _coefficients(kind: str, seed: int, units: int, width: int, dtype: torch.dtype) -> Tensor:
    """Anything from 0 to 1."""
    drawn = torch.rand(1, 1, units, width, generator=generator(seed), dtype=dtype)
    tiny = torch.finfo(dtype).eps
    return {
        "any": drawn,
        "0 and 1": drawn.round(),
        "all": torch.ones_like(drawn),
        "none": torch.zeros_like(drawn),
        "almost all": 1 - tiny * drawn,
        "almost none": tiny * drawn,
    }[kind]


def _worst_of_units(taken: list, weight: list, bias: list, x: list, unit: Fraction) -> Fraction:
    """Smallest Σ A z: z = relu(w x + b) as far up as rounding takes it, A as far off as it may be."""
    terms = len(x) + 1
    gamma = terms * unit / (1 - terms * unit)
    total = Fraction(0)
    for a, row, b in zip(taken, weight, bias, strict=True):
        magnitude = sum((abs(w * v) for w, v in zip(row, x, strict=True)), start=abs(b))
        value = sum((w * v for w, v in zip(row, x, strict=True)), start=b)
        total -= abs(a) * (1 + UNITS_OFF * unit) * max(value + gamma * magnitude, Fraction(0))
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["any", "0 and 1", "all", "none", "almost all", "almost none"])
@law(40)
@given(
    seed=seeds, octaves=st.sampled_from([0.0, 20.0]), offset=st.sampled_from([None, 1e-20, 1.0, 1e6]),
    radius=st.sampled_from([0.0, 2.0**-30, 1.0]), units=st.sampled_from([1, 5]),
)  # fmt: skip
def test_cuts_are_above_the_worst_program_at_every_corner(dtype, kind, seed, octaves, offset, radius, units):
    """With a box of one point nothing hides what rounding does; elsewhere cuts touch their units at corners."""
    rounding, width = outward(dtype), 3
    weights = {"weight": random_numbers(seed, units, width, octaves=octaves, dtype=dtype)}
    if offset is not None:
        weights["bias"] = random_numbers(seed + 1, units, dtype=dtype) * offset
    center = random_numbers(seed + 2, 1, width, octaves=octaves / 2, dtype=dtype)
    box = Box(center, center.abs() * radius)
    largest = (box.center.abs() + box.radius) @ weights["weight"].abs().T
    largest = largest + weights["bias"].abs() if "bias" in weights else largest
    output = Box(largest / 2, largest / 2)
    coefficients = -random_numbers(seed + 3, 1, 1, units, octaves=octaves, dtype=dtype).abs()
    cuts = _cuts_over_all(units, _coefficients(kind, seed, units, width, dtype))
    relaxed = apply_cuts(cuts, coefficients, weights, box, output, rounding)
    assert relaxed.rest.eq(0).all()
    (taken,), into = fractions(coefficients)[0], fractions(relaxed.coefficients)[0][0]
    rows, unit = fractions(weights["weight"]), Fraction(rounding.unit)
    bias = fractions(weights["bias"]) if "bias" in weights else [Fraction(0)] * units
    constant = fractions(relaxed.constant)[0][0]
    middle, reach = fractions(box.center)[0], fractions(box.radius)[0]
    for signs in product((-1, 1), repeat=width):
        x = [c + s * r for c, s, r in zip(middle, signs, reach, strict=True)]
        below = sum((a * v for a, v in zip(into, x, strict=True)), start=constant)
        # What is rounded to the network's precision at the end is covered by the next layer.
        room = unit * sum((abs(a * v) for a, v in zip(into, x, strict=True)), start=Fraction(0)) + Fraction(1e-40)
        assert below - room <= _worst_of_units(taken, rows, bias, x, unit)


def _balanced(kind: str, seed: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (1, n), a bias (1,) and a point (1, n) with w x = -b, or nearly so."""
    unit = outward(dtype).unit
    weight, x = random_numbers(seed, 1, width, dtype=dtype).abs(), random_numbers(seed + 1, 1, width, dtype=dtype).abs()
    if kind == "stagnant":
        # Added to the first one after the other, all others are lost.
        weight, x = torch.full_like(weight, unit), torch.ones_like(x)
        weight[0, 0] = 1.0
    if kind == "cancelling":
        weight[:, ::2] *= -1
        x = torch.where(weight < 0, 1 + 0 * x, x)
    exact = sum_of_products(fractions(weight)[0], fractions(x)[0])
    return weight, torch.tensor([-float(exact)], dtype=dtype), x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["random", "stagnant", "cancelling"])
@pytest.mark.parametrize("chosen", ["any", "all", "none"])
def test_cuts_cover_programs_that_err_beside_a_kink(chosen, kind, dtype):
    """Where w x and b cancel the unit's own box is tiny, and nothing else hides what rounding does to long sums."""
    rounding, width = outward(dtype), 160
    layer, relu = (node.operation for node in traced("no bias")[0].nodes[:2])
    for seed, sign in product(range(3), (1, -1)):
        weight, bias, x = _balanced(kind, seed, width, dtype)
        weights = {"weight": sign * weight, "bias": sign * bias}
        boxes = [Box(x, torch.zeros_like(x))]
        # Around 0, the cut with all coefficients 0 touches the unit at the corner where w x is largest.
        boxes += [Box(torch.zeros_like(x), x.abs())] if kind == "random" and sign == 1 else []
        for box in boxes:
            fed = rules_for(layer).interval(layer, weights, (box,), rounding)
            output = rules_for(relu).interval(relu, {}, (fed,), rounding)
            cuts = _cuts_over_all(1, _coefficients(chosen, seed, 1, width, dtype))
            relaxed = apply_cuts(cuts, -torch.ones(1, 1, 1, dtype=dtype), weights, box, output, rounding)
            into, corner = fractions(relaxed.coefficients)[0][0], fractions(x)[0]
            unit = Fraction(rounding.unit)
            room = unit * sum_of_products([abs(a) for a in into], [abs(v) for v in corner])
            below = sum_of_products(into, corner) + fractions(relaxed.constant)[0][0]
            rows, offsets = fractions(weights["weight"]), fractions(weights["bias"])
            assert below - room <= _worst_of_units([Fraction(1)], rows, offsets, corner, unit)


def test_cuts_cover_products_that_underflow():
    """Each may be rounded up to the smallest number there is, and a large coefficient follows."""
    rounding, width = outward(torch.float32), 8
    weights = {"weight": torch.full((1, width), 2.0**-80)}
    box = Box(torch.full((1, width), 2.0**-75), torch.zeros(1, width))
    coefficients = torch.full((1, 1, 1), -(2.0**60))
    cuts = _cuts_over_all(1, torch.ones(1, 1, 1, width))
    relaxed = apply_cuts(cuts, coefficients, weights, box, Box(torch.zeros(1, 1), torch.zeros(1, 1)), rounding)
    below = (
        sum_of_products(fractions(relaxed.coefficients)[0][0], fractions(box.center)[0])
        + fractions(relaxed.constant)[0][0]
    )
    assert below <= -(2**60) * width * Fraction(2) ** -149


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 600])
def test_cuts_are_not_far_above_their_units(dtype, width):
    """A box of one point, where every cut is the unit itself but for rounding."""
    rounding = outward(dtype)
    weights = {"weight": random_numbers(0, 2, width, dtype=dtype).abs(), "bias": random_numbers(1, 2, dtype=dtype)}
    box = Box(random_numbers(2, 1, width, dtype=dtype).abs(), torch.zeros(1, width, dtype=dtype))
    largest = box.center @ weights["weight"].T + weights["bias"].abs()
    ones = torch.ones(1, 1, 2, width, dtype=dtype)
    relaxed = apply_cuts(
        _cuts_over_all(2, ones), -torch.ones(1, 1, 2, dtype=dtype), weights, box, Box(largest, 0 * largest), rounding
    )
    below = (
        sum_of_products(fractions(relaxed.coefficients)[0][0], fractions(box.center)[0])
        + fractions(relaxed.constant)[0][0]
    )
    value = -sum(
        sum_of_products(row, fractions(box.center)[0]) + b
        for row, b in zip(fractions(weights["weight"]), fractions(weights["bias"]), strict=True)
    )
    units = (9 + 1.25 if dtype == torch.float64 else 1.25) * (width + 100) + 4 * COEFFICIENT_UNITS
    assert value - below <= Fraction(float(largest.sum()) * units * rounding.unit)


# Sums in pieces


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [LONG, LONG + 1, 3 * LONG + PIECE - 1])
def test_long_sums_err_by_no_more_than_they_say(length, dtype):
    """Of numbers that make every partial sum round the same way."""
    rounding = outward(dtype)
    for values in (
        random_numbers(0, 1, length, octaves=20, dtype=dtype),
        torch.full((1, length), 1 + 2 * rounding.unit, dtype=dtype),
        torch.cat([torch.ones(1, 1, dtype=dtype), torch.full((1, length - 1), rounding.unit, dtype=dtype)], 1),
    ):
        for coefficients in (
            torch.ones(1, 1, length, dtype=dtype),
            random_numbers(1, 1, 1, length, octaves=10, dtype=dtype),
        ):
            found = fractions(dot(coefficients, values))[0][0]
            rows = fractions(coefficients)[0][0], fractions(values)[0]
            magnitude = sum_of_products(*([abs(a) for a in row] for row in rows))
            relative = Fraction(sum_error(values, rounding) - COEFFICIENT_UNITS * rounding.unit) / 2
            assert abs(found - sum_of_products(*rows)) <= relative * magnitude


# Whole networks


def _arbitrary(seed: int, relaxation: Relaxation) -> Relaxation:
    """The same cuts with coefficients and slopes that nobody would choose."""
    rng = generator(seed)

    def drawn(like: Tensor) -> Tensor:
        return (3 * torch.rand(like.shape, generator=rng, dtype=like.dtype) - 1).clamp(0, 1)

    cuts = {name: c._replace(coefficients=drawn(c.coefficients)) for name, c in relaxation.cuts.items()}
    return replace(relaxation, slopes={k: drawn(v) for k, v in relaxation.slopes.items()}, cuts=cuts)


def _cases(net: nn.Sequential, x: Tensor, eps: float) -> list:
    graph, params = graph_and_params(trace(net))
    double = {key: value.double() for key, value in params.items()}
    return [
        (graph, params, outward_box(x, eps), outward(torch.float32), Fraction(0)),
        (graph, double, outward_box(x.double(), eps), outward(torch.float64), Fraction(0)),
        (graph, double, ideal_box(x.double(), eps), IDEAL, Fraction(1, 10**9)),
    ]


def _relaxations(graph, params, box, rounding, seed, tight):
    """A bounder, the coefficients of every output with both signs, and relaxations of all kinds."""
    boxes = layer_boxes(graph, params, box, rounding)
    boxes = crown_boxes(graph, params, boxes, rounding) if tight else boxes
    unit = torch.eye(graph.classes, dtype=box.center.dtype)
    specification = torch.cat([unit, -unit])[None]
    bounder = LinearBounder(graph, params, boxes, rounding)
    start = start_relaxation(bounder, specification, True, {})
    return bounder, specification, (start, ascend(bounder, specification, start, 5), _arbitrary(seed, start))


def _assert_below(net, x, eps, exact, seed, tight):
    for graph, params, box, rounding, slack in _cases(net, x, eps):
        bounder, specification, chosen = _relaxations(graph, params, box, rounding, seed, tight)
        for relaxation in chosen:
            found = fractions(bounder.lower(specification, relaxation))[0]
            lowest, negated = found[: graph.classes], found[graph.classes :]
            for low, negative, (smallest, largest) in zip(lowest, negated, exact, strict=True):
                room = slack * (1 + abs(smallest) + abs(largest))
                assert low - room <= smallest
                assert largest <= -negative + room


octave_ranges = st.sampled_from([0.0, 20.0])


@pytest.mark.parametrize("tight", [False, True])
@law(8)
@given(seed=seeds, eps=st.sampled_from([0.0, 0.01, 2.0]), depth=st.integers(1, 3), octaves=octave_ranges)
def test_the_exact_range_over_an_interval_is_not_left(tight, seed, eps, depth, octaves):
    net = rescaled(network(seed, [1, *[4] * depth, 2], 0.0), seed, octaves)
    x = torch.randn(1, 1, generator=generator(seed))
    center = fractions(x)[0][0]
    exact = range_on_interval(layers_of(net), Fraction(0), center - Fraction(eps), center + Fraction(eps))
    _assert_below(net, x, eps, exact, seed, tight)


@law(30)
@given(seed=seeds, eps=st.sampled_from([0.0, 0.01, 2.0]), octaves=octave_ranges)
def test_the_exact_range_over_a_rectangle_is_not_left(seed, eps, octaves):
    net = rescaled(network(seed, [2, 5, 2], 0.0), seed, octaves)
    x = torch.randn(1, 2, generator=generator(seed))
    low, high = ([v + sign * Fraction(eps) for v in fractions(x)[0]] for sign in (-1, 1))
    if eps > 0:
        exact = range_on_rectangle(layers_of(net), Fraction(0), low, high)
        _assert_below(net, x, eps, exact, seed, False)


@law(25)
@given(seed=seeds, eps=st.sampled_from([0.0, 0.01, 2.0]), depth=st.integers(1, 2), octaves=octave_ranges)
def test_linear_functions_are_below_the_exact_network_at_every_kink(seed, eps, depth, octaves):
    """Between kinks the network is linear, so below it at the kinks is below it everywhere."""
    net = rescaled(network(seed, [1, *[4] * depth, 2], 0.0), seed, octaves)
    x = torch.randn(1, 1, generator=generator(seed))
    center = fractions(x)[0][0]
    knots = knots_of(layers_of(net), center - Fraction(eps), center + Fraction(eps))
    for graph, params, box, rounding, slack in _cases(net, x, eps):
        bounder, specification, chosen = _relaxations(graph, params, box, rounding, seed, False)
        for relaxation in chosen:
            slopes, offsets = (fractions(part)[0] for part in bounder.function(specification, relaxation))
            for (a,), d, sign, row in zip(slopes, offsets, [1, 1, -1, -1], [0, 1, 0, 1], strict=True):
                for place, outputs, _ in knots:
                    assert a * place + d <= sign * outputs[row] + slack * (1 + abs(outputs[row]) + abs(a * place))


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_functions_cover_coefficients_that_are_off(dtype):
    """A layer that only reshapes leaves the error of its coefficients to the function; there is no other error."""
    rounding = outward(dtype)
    graph, params = graph_and_params(trace(nn.Flatten(), torch.zeros(1, 2, 3)))
    x, specification = random_numbers(0, 1, 2, 3, dtype=dtype), random_numbers(1, 1, 4, 6, octaves=10, dtype=dtype)
    boxes = layer_boxes(graph, params, outward_box(x, 0.5), rounding)
    slopes, offset = LinearBounder(graph, params, boxes, rounding).function(specification)
    assert torch.equal(slopes.flatten(2), specification)
    largest = fractions(boxes["input"].center.abs().flatten(1).double() + boxes["input"].radius.flatten(1))[0]
    for row, d in zip(fractions(specification.abs())[0], fractions(offset)[0], strict=True):
        assert d <= -UNITS_OFF * Fraction(rounding.unit) * sum_of_products(row, largest)


def test_a_linear_function_and_the_bound_from_it_agree():
    """The bound at the input is the linear function concretized over the box, a few units aside."""
    net = network(3, [2, 5, 3], 0.0)
    graph, params = graph_and_params(trace(net))
    x, rounding = torch.randn(4, 2, generator=generator(0)), outward(torch.float32)
    boxes = layer_boxes(graph, params, outward_box(x, 0.3), rounding)
    specification = torch.eye(3).expand(4, 3, 3)
    bounder = LinearBounder(graph, params, boxes, rounding)
    (slopes, offset), lower = bounder.function(specification), bounder.at_input(specification)
    box = boxes["input"]
    smallest = (slopes @ box.center[..., None] - slopes.abs() @ box.radius[..., None]).squeeze(-1) + offset
    torch.testing.assert_close(smallest.double(), lower, atol=1e-4, rtol=0)


# Boxes in between


@pytest.mark.parametrize("dtype", DTYPES)
@law(40)
@given(
    seed=seeds, scale=st.sampled_from([1e-300, 1e-44, 1e-38, 1e-10, 1.0, 1e20]),
    width=st.sampled_from([0.0, 1e-17, 1e-9, 1.0, 1e9]),
)  # fmt: skip
def test_boxes_hold_the_ends_they_were_made_from(dtype, seed, scale, width):
    rounding = outward(dtype)
    low = torch.randn(50, generator=generator(seed), dtype=torch.float64) * scale
    high = low + torch.rand(50, generator=generator(seed + 1), dtype=torch.float64) * width * scale
    box = box_between_ends(low, high, dtype, rounding)
    assert box.center.dtype == box.radius.dtype == dtype
    for c, r, a, b in zip(*(fractions(part) for part in (box.center, box.radius, low, high)), strict=True):
        assert c - r <= a
        assert b <= c + r
