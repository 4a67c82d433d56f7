"""States: parts can be taken out and put back, and what is learned never replaces anything better."""

from dataclasses import fields, replace
from math import inf, nan

import pytest
import torch
from hypothesis import given
from torch import nn

import certibayes as cb
from certibayes.certification._pairs import NO_PAIRS, Pairs
from certibayes.certification.network_bounds import are_finite
from certibayes.certification.state import State, points_of

from ..strategies import generator, law, seeds
from .cases import problem_of

NETWORKS, POINTS, CLASSES = 2, 6, 3


@pytest.fixture(scope="module")
def problem():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nets = [nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES)) for _ in range(NETWORKS)]
    x = torch.rand(POINTS, 4, generator=generator(0))
    return problem_of(cb.Samples.from_modules(nets).predictor(NETWORKS), x, 0.1)


def _random(problem, seed: int) -> State:
    """A state with nothing in common with any other."""
    start, rng = State.start(problem), generator(seed)
    drawn = {}
    for field in fields(State):
        value = getattr(start, field.name)
        if isinstance(value, torch.Tensor):
            noise = torch.rand(value.shape, generator=rng)
            drawn[field.name] = noise > 0.5 if value.dtype == torch.bool else (10 * noise).to(value.dtype)
    return replace(start, **{**drawn, "labels": drawn["labels"] % CLASSES})


def _same(one: State, other: State) -> bool:
    names = [field.name for field in fields(State) if field.name not in ("threshold", "pairs")]
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


@law(15)
@given(seed=seeds)
def test_what_is_taken_and_put_back_was_never_gone(problem, seed):
    state, other = _random(problem, seed), _random(problem, seed + 1)
    points = torch.randperm(POINTS, generator=generator(seed))[:3]
    rest = torch.tensor([point for point in range(POINTS) if point not in points.tolist()])
    assert _same(state.put(points, state.take(points)), state)
    # What is put is there, and all else is as it was.
    changed = state.put(points, other.take(points))
    assert _same(changed.take(points), other.take(points)) and _same(changed.take(rest), state.take(rest))
    assert _same(changed.put(points, state.take(points)), state)
    assert torch.equal(state.take(points).differences, state.differences[points])


def test_pairs_stay_with_their_points(problem):
    """Their numbers would be wrong elsewhere."""
    start = State.start(problem)
    pairs = Pairs.of(start.every_rival, NETWORKS)
    state, points = replace(start, pairs=pairs), torch.tensor([1, 3])
    part = state.take(points)
    assert part.pairs is NO_PAIRS
    assert state.put(points, replace(part, pairs=Pairs.of(part.every_rival, NETWORKS))).pairs is pairs


def test_at_the_start_nothing_is_known_but_what_is_misclassified(problem):
    labels = problem.labels.clone()
    labels[2] = (labels[2] + 1) % CLASSES
    state = State.start(replace(problem, labels=labels))
    assert state.broken.tolist() == [False, False, True, False, False, False] and not state.unbounded.any()
    assert not state.proved.any() and torch.equal(state.counterexamples, problem.x)
    every = torch.arange(CLASSES) != labels[:, None]
    every[2] = False
    assert torch.equal(state.open, every) and torch.equal(state.every_rival, every)
    assert points_of(state.open).tolist() == [0, 1, 3, 4, 5]


@law(15)
@given(seed=seeds)
def test_what_is_learned_never_replaces_anything_better(problem, seed):
    state, rng = _random(problem, seed), generator(seed + 1)
    points = torch.randperm(POINTS, generator=rng)[:4]
    rest = torch.tensor([point for point in range(POINTS) if point not in points.tolist()])
    found = 10 * torch.rand(NETWORKS, 4, CLASSES, generator=rng, dtype=torch.float64)
    logits = state.with_logits(points, found, found + 1)
    assert torch.equal(logits.lower[:, points], torch.maximum(found, state.lower[:, points]))
    assert torch.equal(logits.upper[:, points], torch.minimum(found + 1, state.upper[:, points]))
    margins = state.with_margins(points, found)
    assert torch.equal(margins.margins[:, points], torch.maximum(found, state.margins[:, points]))
    rivals = torch.arange(4) % CLASSES
    joint = state.with_joint(points, rivals, found[0, :, 0])
    expected = state.joint.clone()
    expected[points, rivals] = torch.maximum(found[0, :, 0], expected[points, rivals])
    assert torch.equal(joint.joint, expected)
    differences = state.with_differences(points, found[0])
    for after in (logits, margins, joint, differences, logits.with_values_of_logits(points)):
        assert bool((after.values >= state.values).all() and (after.joint >= state.joint).all())
        assert _same(after.take(rest), state.take(rest))


def test_a_bound_that_is_no_number_says_nothing(problem):
    state, points, rivals = _random(problem, 0), torch.arange(3), torch.zeros(3, dtype=torch.int64)
    wrong = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.float64)
    assert torch.equal(state.with_joint(points, rivals, wrong).joint, state.joint)


def test_infinite_logits_close_a_point_and_tell_nothing_of_it(problem):
    start, points = State.start(problem), torch.arange(POINTS)
    lower = torch.zeros(NETWORKS, POINTS, CLASSES, dtype=torch.float64)
    upper = lower + 1
    lower[1, 2], upper[1, 2] = -torch.inf, torch.inf
    state = start.with_logits(points, lower, upper).with_values_of_logits(points)
    assert state.unbounded.tolist() == [False, False, True, False, False, False]
    assert not state.open[2].any() and not state.proved[2]
    lowest, highest = state.probabilities
    assert bool((lowest[2] == 0).all() and (highest[2] == 1).all())
    assert bool((lowest[[0, 1, 3, 4, 5]] > 0).all() and (highest[[0, 1, 3, 4, 5]] < 1).all())
    assert torch.equal(state.values[:, 2], start.values[:, 2])
    # Better bounds that overflow take nothing back.
    again = state.with_logits(points, torch.full_like(lower, -torch.inf), torch.full_like(upper, torch.inf))
    assert _same(again, state)


def test_softmax_is_bounded_once_for_the_same_logits(problem):
    """Predictions and differences change nothing about it; other logits do."""
    asked = replace(problem, predicted=None)
    lower = torch.zeros(NETWORKS, POINTS, CLASSES, dtype=torch.float64)
    state = State.start(asked).with_logits(slice(None), lower, lower + 1)
    found = state.probabilities
    later = state.with_predictions(asked).with_differences(slice(None), torch.zeros(POINTS, CLASSES).double())
    assert later.predicted.tolist() == problem.labels.tolist() and not later.proved.any()
    assert later.probabilities is found
    tighter = later.with_logits(slice(None), lower, lower + 0.5)
    assert bool((tighter.probabilities[0] > found[0]).all() and (tighter.probabilities[1] < found[1]).all())


@pytest.mark.parametrize("ends", [(-inf, 0.0), (0.0, inf), (inf, inf), (-inf, inf), (nan, 0.0), (0.0, nan)])
def test_bounds_are_finite_where_both_ends_of_every_class_are(ends):
    lower, upper = torch.zeros(2, 2, 3, dtype=torch.float64), torch.ones(2, 2, 3, dtype=torch.float64)
    lower[1, 0, 2], upper[1, 0, 2] = ends
    assert are_finite(lower, upper).tolist() == [[True, True], [False, True]]
    # Two infinite widths of opposite sign do not cancel.
    lower[1, 0, 0], upper[1, 0, 0] = inf, -inf
    assert are_finite(lower, upper).tolist() == [[True, True], [False, True]]


def test_only_real_counterexamples_count(problem):
    state, points = State.start(problem), torch.arange(POINTS)
    assert _same(state.with_inputs(problem, points, problem.x), state)
    far = problem.x + 100 * torch.randn(POINTS, 4, generator=generator(5))
    found = state.with_inputs(problem, points, far)
    broken = problem.predictor.predict(found.counterexamples) != problem.labels
    assert torch.equal(found.broken, broken)
    assert torch.equal(found.counterexamples[~broken], problem.x[~broken])
    assert bool(((found.counterexamples - problem.x).abs() <= 0.1 + 1e-6).all())
