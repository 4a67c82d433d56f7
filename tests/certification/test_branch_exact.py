"""Leaves of branch and bound in rational arithmetic: each bound holds on its own leaf, and none is forgotten."""

import sys
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from certibayes.bounds import Box, layer_boxes, outward, outward_box
from certibayes.bounds._backward import Step
from certibayes.bounds.linear import LinearBounder
from certibayes.certification._branch import Search
from certibayes.networks import Graph, Node, trace
from certibayes.networks.graph import INPUT
from certibayes.networks.operations import Add, MaxPool2d, Operation, ReLU, Reshape, Sigmoid, Tanh

from ..bounds.exact_cases import knots_of, layers_of, network, rescaled
from ..strategies import Functional, fractions, generator, graph_and_params, inputs, law, seeds, traced
from .cases import asked, is_done, search_of


def _assert_leaves_hold(trees, knots, sign_of_margin):
    """Every leaf holds at every kink that belongs to it, and every kink belongs to a leaf of every problem."""
    problems, bounds, signs = (getattr(trees.leaves, name).tolist() for name in ("problem", "bound", "signs"))
    for problem, margin in enumerate(sign_of_margin):
        for _, outputs, seen in knots:
            value, homes = margin(outputs), 0
            for leaf, bound, fixed in zip(problems, bounds, signs, strict=True):
                if leaf == problem and all(s * z >= 0 for s, z in zip(fixed, seen, strict=False)):
                    homes += 1
                    assert Fraction(bound) <= value
            assert homes > 0
            assert Fraction(float(trees.bounds[problem])) <= value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@law(6)
@given(
    seed=seeds, eps=st.sampled_from([0.01, 2.0]), depth=st.integers(1, 2), octaves=st.sampled_from([0.0, 6.0]),
    stop=st.integers(0, 4),
)  # fmt: skip
def test_every_leaf_is_below_the_exact_network_also_when_time_runs_out(dtype, seed, eps, depth, octaves, stop):
    net = rescaled(network(seed, [1, *[4] * depth, 2], 0.0), seed, octaves)
    x = torch.randn(1, 1, generator=generator(seed))
    center = fractions(x)[0][0]
    knots = knots_of(layers_of(net), center - Fraction(eps), center + Fraction(eps))
    graph, params = graph_and_params(trace(net))
    params = {name: value.to(dtype) for name, value in params.items()}
    with torch.no_grad():
        search, trees, _ = search_of(graph, params, outward_box(x.to(dtype), eps), torch.tensor([0]), outward(dtype))
        _assert_leaves_hold(trees, knots, [lambda z: z[0] - z[1]])
        for _ in range(5):
            before, asked_so_far = trees.bounds, 0

            def ended():
                nonlocal asked_so_far
                asked_so_far += 1
                return asked_so_far > stop

            trees = search.advance(trees, asked(trees), ended)
            assert (trees.bounds >= before).all()
            _assert_leaves_hold(trees, knots, [lambda z: z[0] - z[1]])


def test_a_leaf_that_time_did_not_reach_still_counts(monkeypatch):
    """One leaf at a time, and time for only some of them: the others stay, with their bounds."""
    monkeypatch.setattr(sys.modules[Search.__module__], "LEAVES", 1)
    net = network(1, [1, 6, 6, 2], 0.0)
    x = torch.randn(1, 1, generator=generator(1))
    center = fractions(x)[0][0]
    knots = knots_of(layers_of(net), center - 2, center + 2)
    graph, params = graph_and_params(trace(net))
    left = 0
    with torch.no_grad():
        search, trees, _ = search_of(graph, params, outward_box(x, 2.0), torch.tensor([0]), outward(torch.float32))
        for stop in (1, 1, 2, 1, 3, 0, 2):
            left += max(0, int(trees.open(asked(trees)).sum()) - stop)
            calls = iter(range(1000))
            trees = search.advance(trees, asked(trees), lambda calls=calls, stop=stop: next(calls) >= stop)
            _assert_leaves_hold(trees, knots, [lambda z: z[0] - z[1]])
    assert len(trees.leaves.problem) > 3
    assert left > 3  # time was up while leaves were open


@pytest.mark.parametrize("nonsense", [torch.nan, torch.inf, -torch.inf])
def test_a_bound_that_is_no_number_says_nothing_about_its_leaf(nonsense, monkeypatch):
    """As after an overflow of the backward pass: what was known of the leaf that was split is all that is known."""
    honest = LinearBounder.lower_with_coefficients

    def overflowing(self, specification, *relaxation):
        lower, on, function = honest(self, specification, *relaxation)
        lower, offset = lower.clone(), function.offset.clone()
        lower[::2], offset[::2] = nonsense, nonsense
        return lower, on, function._replace(offset=offset)

    net = network(1, [1, 6, 6, 2], 0.0)
    x = torch.randn(1, 1, generator=generator(1))
    center = fractions(x)[0][0]
    knots = knots_of(layers_of(net), center - 2, center + 2)
    graph, params = graph_and_params(trace(net))
    with torch.no_grad():
        search, trees, _ = search_of(graph, params, outward_box(x, 2.0), torch.tensor([0]), outward(torch.float32))
        monkeypatch.setattr(LinearBounder, "lower_with_coefficients", overflowing)
        for _ in range(3):
            known, offset = trees.bounds, trees.offsets
            trees = search.advance(trees, asked(trees))
            assert torch.equal(trees.bounds, known) and torch.equal(trees.offsets, offset)
            _assert_leaves_hold(trees, knots, [lambda z: z[0] - z[1]])
    assert len(trees.leaves.problem) > 1


def _two_readers():
    """A ReLU and another activation have the same input: tanh(z) + relu(z) / 2^20."""

    def forward(self, x):
        z = self.first(x)
        return self.last(torch.tanh(z) + functional.relu(z) * 2.0**-20)

    net = Functional(forward, first=nn.Linear(1, 1), last=nn.Linear(1, 2))
    with torch.no_grad():
        net.first.weight.fill_(2.0**20)
        net.first.bias.fill_(2.0**20 - 1)
        net.last.weight.copy_(torch.tensor([[1.0], [0.0]]))
        net.last.bias.zero_()
    net.input_shape = (1,)
    return net


def test_a_cut_interval_is_not_shown_to_other_activations():
    """Cut intervals stay clear of zero by units of their width, which is all that tanh ever sees."""
    graph, params = graph_and_params(trace(_two_readers()))
    with torch.no_grad():
        search, trees, _ = search_of(
            graph, params, outward_box(torch.zeros(1, 1), 1.0), torch.tensor([0]), outward(torch.float32)
        )
        nothing = trees.leaves._replace(bound=torch.full((1,), -1e6, dtype=torch.float64))
        for sign in (1, -1):
            grown = search.with_signs(nothing._replace(signs=torch.full_like(nothing.signs, sign)), trees.coefficients)
            # At z = 0, which both leaves hold, the margin is 0.
            assert -1e6 < float(grown.leaves.bound) <= 0


@dataclass(frozen=True)
class _Elsewhere(Operation):
    """An operation that certibayes does not know."""


@pytest.mark.parametrize(
    ("maker", "reader", "expected"),
    [
        (MaxPool2d((2, 2), (2, 2), (0, 0), (1, 1), False), Reshape((4,)), 1),
        (_Elsewhere(), Reshape((4,)), 0),
        (Tanh(), _Elsewhere(), 0),
        (Tanh(), Sigmoid(), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Operation) else str(value),
)
def test_only_values_that_familiar_operations_make_and_read_are_cut(maker, reader, expected):
    nodes = (
        Node("maker", maker, (INPUT,), {}, (4,)),
        Node("reader", reader, ("maker",), {}, (4,)),
        Node("relu", ReLU(), ("maker",), {}, (4,)),
        Node("sum", Add(), ("reader", "relu"), {}, (4,)),
    )
    nothing = torch.zeros(0)
    search = Search(Graph(nodes, (4,), ()), {}, {}, nothing, nothing, outward(torch.float32))
    assert len(search.relus) == expected


@pytest.mark.parametrize("name", ["tanh", "one linear layer", "leaky relu", "max pool, dilated"])
def test_without_relus_there_is_nothing_to_split(name):
    graph, params = traced(name)
    with torch.no_grad():
        search, trees, _ = search_of(
            graph, params, outward_box(inputs(name, 2, 0), 0.3), torch.tensor([0, 1]), outward(torch.float32)
        )
        assert is_done(trees)
        after = search.advance(trees, asked(trees))
    assert torch.isfinite(trees.bounds).all()
    assert torch.equal(after.bounds, trees.bounds)


def relu_is_unstable(box: Box) -> bool:
    low, high = Step(torch.ones(1, 1, *box.center.shape[1:]), (box,), box, outward(torch.float32)).ends()
    return bool(((low < 0) & (high > 0)).any())


@law(40)
@given(seed=seeds, high=st.sampled_from([1e-42, 1e-30, 1.0, 1e20]), low=st.sampled_from([1e-44, 1e-3, 1.0, 1e25]))
def test_cut_intervals_hold_all_but_a_few_units_and_make_relus_stable(seed, high, low):
    graph, params = traced("no bias", seed)
    x = inputs("no bias", 1, seed)
    rounding = outward(torch.float32)
    with torch.no_grad():
        boxes = layer_boxes(graph, params, outward_box(x, 0.1), rounding)
        relu = next(node for node in graph.nodes if isinstance(node.operation, ReLU))
        source, shape = relu.inputs[0], boxes[relu.inputs[0]].center.shape
        center, radius = torch.full(shape, (high - low) / 2), torch.full(shape, (high + low) / 2)
        boxes[source] = Box(center, radius)
        specification = torch.tensor([[[1.0, -1.0, 0.0]]])
        search = Search(graph, params, boxes, torch.tensor([0]), specification, rounding)
        top, bottom = (fractions(end)[0][0] for end in (center.double() + radius, center.double() - radius))
        for sign, end in ((1, top), (-1, bottom)):
            signs = torch.full((1, sum(search.unit_counts)), sign, dtype=torch.int8)
            cut = search.boxes_of(torch.tensor([0]), signs)[source]
            c, r = fractions(cut.center)[0][0], fractions(cut.radius)[0][0]
            near, far = sorted((c - r, c + r), key=abs)
            assert near * sign >= 0
            assert abs(far) >= abs(end) and abs(near) <= abs(far) * 9 * Fraction(rounding.unit) + Fraction(2) ** -149
            assert not relu_is_unstable(cut)
