"""Stages: each changes nothing that it is given and makes nothing worse, in every method; stopping loses nothing."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import certibayes as cb
from certibayes.certification import BOUNDS, METHODS, Method, stages
from certibayes.certification._stage import Budgeted, InParts, Stage, Tightened, WhereSupported, run
from certibayes.certification.clock import Clock
from certibayes.certification.problem import Problem
from certibayes.certification.state import State
from certibayes.prediction import Predictor

from ..strategies import few_of, generator
from .cases import problem_of

EPS = 0.1

EVERY_METHOD = [
    *(kind(bounds) for kind in METHODS.values() for bounds in BOUNDS if (kind, bounds) != (cb.Joint, "ibp")),
    *(cb.Best("ibp", budget=0.2), cb.Best("alpha-crown", budget=0.2), cb.Best("hull", budget=0.5)),
]
# Every method, all bounds, and splitting.
SOME = [kind(bounds) for kind, bounds in zip(METHODS.values(), (*BOUNDS, *BOUNDS[1:3]), strict=True)]
SOME += [method for method in EVERY_METHOD if method.seconds]
pytestmark = pytest.mark.usefixtures("few_steps")
every_method = pytest.mark.parametrize("method", few_of(EVERY_METHOD, fast=SOME), ids=repr)


@cache
def _problem() -> Problem:
    """Points of which some are proved by the cheapest bounds, some by the costliest, some broken and one mislabeled."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        base = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    params = {name: 2 * value.detach() for name, value in base.named_parameters()}
    std = {name: torch.full_like(value, 0.1) for name, value in params.items()}
    predictor = cb.DiagonalGaussian(base, params, std, input_shape=(4,)).predictor(3, seed=0)
    x = torch.rand(8, 4, generator=generator(1))
    labels = predictor.predict(x)
    labels[3] = (labels[3] + 1) % 3
    return problem_of(predictor, x, EPS, labels, domain=(0.0, 1.0))


def _leaves(listed: tuple[Stage, ...], budgeted: bool = False) -> Iterator[Stage]:
    """The stages of a list one by one, also those inside others."""
    for stage in listed:
        if isinstance(stage, (Budgeted, InParts)):
            yield from _leaves(stage.stages, budgeted or isinstance(stage, Budgeted))
        else:
            yield Budgeted((stage,)) if budgeted else stage


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Predictor):
        yield from value.samples.values()
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        yield from _tensors(tuple(getattr(value, field.name) for field in fields(value)))


def _assert_no_worse(problem: Problem, before: State, after: State) -> None:
    for name in ("lower", "margins", "values", "joint"):
        assert bool((getattr(after, name) >= getattr(before, name)).all()), name
    for name in ("upper", "upper_margins"):
        assert bool((getattr(after, name) <= getattr(before, name)).all()), name
    assert bool((after.broken | ~before.broken).all()) and bool((after.proved | ~before.proved).all())
    assert torch.equal(after.labels, before.labels)
    assert bool((problem.predictor.predict(after.counterexamples) != after.labels)[after.broken].all())
    assert torch.equal(problem.region.project(after.counterexamples), after.counterexamples)


@cache
def _history(method: Method) -> tuple[State, ...]:
    """What is known before and after every stage."""
    problem, clock = _problem(), Clock(method.seconds)
    states = [State.start(problem)]
    for stage in _leaves(method.stages):
        given = list(_tensors((problem, states[-1])))
        copies = [tensor.clone() for tensor in given]
        states.append(stage(problem, states[-1], clock))
        same = (torch.equal(tensor, copy) for tensor, copy in zip(given, copies, strict=True))
        assert all(same), f"{stage} changes what it is given"
    return tuple(states)


@every_method
def test_stages_change_nothing_that_they_are_given(method):
    assert len(_history(method)) > 1  # which is made with that in mind


@every_method
def test_no_stage_makes_anything_worse(method):
    history = _history(method)
    for before, after in pairwise(history):
        _assert_no_worse(_problem(), before, after)
    assert not bool((history[-1].proved & history[-1].broken).any())


def test_the_points_are_of_every_kind():
    """A guard for the tests themselves."""
    history = _history(cb.Best("hull", budget=0.5))
    counts = [int(state.proved.sum()) for state in history]
    assert 0 == counts[0] < counts[1] < max(counts) and len(set(counts)) > 3
    assert int(history[-1].broken.sum()) > 1


def test_every_stage_is_in_some_method():
    met = {type(_unwrapped(stage)) for method in EVERY_METHOD for stage in _leaves(method.stages)}
    met |= {type(stage) for stage in stages.SplitActivations().between}
    assert met == {getattr(stages, name) for name in stages.__all__}


def _unwrapped(stage: Stage) -> Stage:
    if isinstance(stage, Budgeted):
        (stage,) = stage.stages
    return stage.stage if isinstance(stage, (Tightened, WhereSupported)) else stage


LIMITED = [method for method in EVERY_METHOD if method.seconds][1:]


@pytest.mark.parametrize("method", few_of(LIMITED, fast=LIMITED[:1]), ids=repr)
def test_a_spent_budget_keeps_all_that_was_found_up_to_any_stage(method):
    """Stages that the budget limits stop, and lose nothing."""
    listed = list(_leaves(method.stages))
    for done, state in enumerate(_history(method)):
        clock = Clock(1e-9)
        rest = tuple(stage for stage in listed[done:] if isinstance(stage, Budgeted))
        _assert_no_worse(_problem(), state, run(rest, _problem(), state, clock))
        assert clock.left == 0.0 or not rest


@every_method
def test_in_one_go_it_finds_what_stage_by_stage_it_finds(method):
    """But for what time decides."""
    problem, last = _problem(), _history(method)[-1]
    found = cb.certify(problem.predictor, problem.x, problem.labels, eps=EPS, domain=(0.0, 1.0), method=replace(method))
    assert not bool((found.certified & last.broken).any())
    assert torch.equal(found.certified, last.proved) or method.seconds is not None


ONLY_FOR_OPEN_POINTS = [
    stages.LogitBounds("ibp", only_open=True), stages.MarginBounds("crown"), stages.Attack(),
    stages.AttackFromWorstInputs(), stages.Refine("hull"), stages.RefineRegained("hull"), stages.JointBound(),
    stages.SplitInputs(), stages.SplitActivations(), InParts((stages.Refine("hull"),)),
]  # fmt: skip


@pytest.mark.parametrize("stage", ONLY_FOR_OPEN_POINTS, ids=repr)
def test_where_nothing_is_open_nothing_is_done(stage):
    problem = _problem()
    start = State.start(problem)
    closed = replace(start, broken=torch.ones_like(start.broken))
    after = stage(problem, closed, Clock())
    assert after is closed or all(
        torch.equal(getattr(after, name), getattr(closed, name))
        for name in ("lower", "upper", "margins", "upper_margins", "values", "joint", "broken", "counterexamples")
    )
