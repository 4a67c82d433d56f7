"""Activations with bends, each alone: on a fine grid, by textbook formulas, and with few cells.

Cells make the error of the certified extremes small; with one or two of them a mistake in that error shows.
"""

import pytest
import torch

from certibayes.bounds import Box, outward, rules_for
from certibayes.bounds._backward import Step
from certibayes.bounds._offset import Offset
from certibayes.bounds.rules import curved
from certibayes.networks import operations as ops

from ..curves import ACTIVATIONS, textbook, weights_of
from ..strategies import generator

every_activation = pytest.mark.parametrize("name", ACTIVATIONS)


@every_activation
def test_points_lie_inside_by_any_formula(name):
    """Boxes without radius, where nothing but the error of the formula matters."""
    operation = ACTIVATIONS[name]
    x = torch.cat([torch.linspace(-12, 12, 6001), torch.logspace(-30, 3, 500), -torch.logspace(-30, 3, 500)])
    x = x.float().view(-1, 1).expand(-1, 3).contiguous()
    box = rules_for(operation).interval(
        operation, weights_of(operation), (Box(x, torch.zeros_like(x)),), outward(x.dtype)
    )
    lower, upper = box.ends()
    exact = operation.evaluate(weights_of(operation, torch.float64), x.double())
    for found in (operation.evaluate(weights_of(operation), x), exact, textbook(operation, x)):
        assert bool((lower <= found.double()).all() and (found.double() <= upper).all())
    # Nor are the bounds of points wide.
    assert bool((upper - lower <= 1e-4 * (1 + x.abs())).all())


@every_activation
def test_the_error_of_the_formula_is_allowed_for(name):
    """Whatever a program with as many units off returns is inside, also where the function is flat."""
    operation, rounding = ACTIVATIONS[name], outward(torch.float32)
    curve = curved_of(operation)
    x = torch.linspace(-12, 12, 4001).view(-1, 1).expand(-1, 3).contiguous()
    box = rules_for(operation).interval(operation, weights_of(operation), (Box(x, torch.zeros_like(x)),), rounding)
    constant, factor = curve.error
    # The program has half of the units, the other half is for the evaluation of the bound.
    off = (constant + factor * x.double().abs()) * curve.units / 2 * rounding.unit
    exact = operation.evaluate(weights_of(operation, torch.float64), x.double())
    lower, upper = box.ends()
    assert bool((lower <= exact - off).all() and (exact + off <= upper).all())


def curved_of(operation):
    known = {
        ops.Clamp: curved._clamp,
        ops.PReLU: curved._prelu,
        ops.ELU: curved._elu,
        ops.Softplus: curved._softplus,
        ops.GELU: curved._gelu,
        ops.SiLU: curved._silu,
        ops.Hardswish: curved._hardswish,
    }
    return known[type(operation)](operation, weights_of(operation), torch.zeros(1, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cells", [1, 2, 32])
@every_activation
def test_lines_hold_on_the_whole_interval(name, cells, dtype, monkeypatch):
    monkeypatch.setattr(curved, "CELLS", cells)
    operation, rounding, rng = ACTIVATIONS[name], outward(dtype), generator(0)
    count = 300
    center = (torch.randn(count, 3, generator=rng) * 6).to(dtype)
    radius = torch.rand(count, 3, generator=rng).to(dtype) * torch.logspace(-5, 1.5, count, dtype=dtype).view(-1, 1)
    box, weights = Box(center, radius), weights_of(operation, dtype)
    rules = rules_for(operation)
    output = rules.interval(operation, weights, (box,), rounding)
    coefficients = torch.eye(3, dtype=dtype).repeat(2, 1)
    coefficients[3:] *= -1
    coefficients = coefficients.expand(count, 6, 3)
    step = Step(coefficients, (box,), output, rounding)
    back = rules.linear(operation, weights, step)
    offset = Offset(coefficients, rounding)
    offset.add_layer(step, back)
    low, high = center.double() - radius.double(), center.double() + radius.double()
    for fraction in torch.linspace(0, 1, 257, dtype=torch.float64):
        z = torch.lerp(low, high, fraction).clamp(low, high)
        value = operation.evaluate(weights_of(operation, torch.float64), z)
        assert bool((output.ends()[0] <= value).all() and (value <= output.ends()[1]).all())
        found = torch.cat([value, -value], 1)
        bound = (back.coefficients[0].double() * z[:, None]).sum(-1) + offset.value
        assert bool((found >= bound).all()), float((bound - found).max())


@every_activation
def test_lines_are_close_where_the_interval_is_small(name):
    """With a width of w the two lines are no more than about w apart, and w² where the function is smooth."""
    operation, dtype = ACTIVATIONS[name], torch.float64
    center = torch.linspace(-9, 9, 301, dtype=dtype).view(-1, 1).expand(-1, 3).contiguous() + 0.0123
    weights, width = weights_of(operation, dtype), 1e-3
    box = Box(center, torch.full_like(center, width / 2))
    rules, rounding = rules_for(operation), outward(dtype)
    output = rules.interval(operation, weights, (box,), rounding)
    coefficients = torch.eye(3, dtype=dtype).repeat(2, 1)
    coefficients[3:] *= -1
    step = Step(coefficients.expand(301, 6, 3), (box,), output, rounding)
    back = rules.linear(operation, weights, step)
    at_center = (back.coefficients[0] * center[:, None]).sum(-1) + back.constant
    gap = -at_center[:, :3] - at_center[:, 3:]
    assert bool((gap >= 0).all()) and float(gap.max()) <= width
    assert float(gap.median()) <= 2 * width**2


def bounds_of_pairs(operation, weights, box):
    """Interval ends, and lower bounds on f and -f as functions of the input, in outward rounding."""
    rules, rounding = rules_for(operation), outward(box.center.dtype)
    output = rules.interval(operation, weights, (box,), rounding)
    width = box.center.shape[1]
    coefficients = torch.cat([torch.eye(width), -torch.eye(width)]).to(box.center).expand(len(box.center), -1, -1)
    step = Step(coefficients, (box,), output, rounding)
    back = rules.linear(operation, weights, step)
    offset = Offset(coefficients, rounding)
    offset.add_layer(step, back)
    return output.ends(), lambda z: (back.coefficients[0].double() * z.double()[:, None]).sum(-1) + offset.value


def test_softplus_jumps_down_where_it_becomes_a_line():
    """In float64 log(1 + exp(-16)) is far more than rounding."""
    operation = ops.Softplus(2.0, 16.0)
    z = torch.tensor([[8.0]], dtype=torch.float64)
    (lower, upper), line = bounds_of_pairs(operation, {}, Box(z, torch.full_like(z, 1e-9)))
    for place in (8.0 - 1e-9, 8.0, 8.0 + 1e-12, 8.0 + 1e-9):
        value = operation.evaluate({}, torch.full_like(z, place))
        assert bool((lower <= value).all() and (value <= upper).all())
        assert bool((line(torch.full_like(z, place)) <= torch.cat([value, -value], 1)).all())


def test_a_slope_that_underflows_meets_numbers_of_any_size():
    """A program may take a slope of 2⁻¹⁴⁰ for 0."""
    z = torch.full((1, 1), -(2.0**90))
    (lower, upper), line = bounds_of_pairs(ops.PReLU(), {"weight": torch.tensor([2.0**-140])}, Box(z, 0 * z))
    for value in (torch.zeros(1, 1), torch.full((1, 1), -(2.0**-50))):
        assert bool((lower <= value).all() and (value <= upper).all())
        assert bool((line(z) <= torch.cat([value, -value], 1)).all())
