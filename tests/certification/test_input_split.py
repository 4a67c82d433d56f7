"""Splitting few inputs: parts cover the box, and the mean over networks is decided as a fine grid decides it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.attacks import as_attack
from certibayes.bounds import IDEAL, Box, outward, outward_box
from certibayes.certification._input_split import halves, proved_in_parts
from certibayes.certification._stage import Budgeted
from certibayes.certification.clock import Clock
from certibayes.certification.stages import LogitBounds, SplitInputs, logits
from certibayes.certification.state import State

from ..strategies import in_turn, law, points_of, seeds
from .cases import problem_of


@law(30)
@given(seed=seeds)
def test_every_float_of_a_box_is_in_one_of_its_halves(seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 3, generator=g)
    box = outward_box(x, 0.3)
    side = torch.randint(3, (4,), generator=g)
    both = halves(box, side, outward(torch.float32))
    low, high = (end.view(2, 4, 3) for end in both.ends())
    for z in torch.cat([points_of(box.lower, box.upper, 100, seed), box.center[None], box.lower[None]]):
        inside = ((low <= z.double()) & (z.double() <= high)).all(-1)
        # In floats a corner may round out of the box.
        outside = ((z.double() - box.center.double()).abs() > box.radius.double()).any(-1)
        assert (inside.any(0) | outside).all()
    assert torch.allclose(both.radius.view(2, 4, 3)[:, torch.arange(4), side] * 2, box.radius[torch.arange(4), side])


def test_what_is_not_finished_in_time_is_not_proved():
    box = Box(torch.zeros(2, 1), torch.ones(2, 1))
    nothing_lost = lambda whose: torch.zeros_like(whose, dtype=torch.bool)  # noqa: E731
    always = lambda parts, whose: torch.ones_like(whose, dtype=torch.bool)  # noqa: E731
    never = lambda parts, whose: whose == 1  # noqa: E731
    ticks = iter(range(100))
    assert not proved_in_parts(box, IDEAL, always, nothing_lost, lambda: next(ticks) > 5).any()
    ticks = iter(range(100))
    assert proved_in_parts(box, IDEAL, never, nothing_lost, lambda: next(ticks) > 5).tolist() == [True, False]
    assert not proved_in_parts(box, IDEAL, never, lambda whose: whose >= 0, lambda: False).any()
    assert not proved_in_parts(box, IDEAL, never, nothing_lost, lambda: True).any()


@law(60)
@given(seed=seeds, place=st.sampled_from([-1.0, 0.0, 0.5, 1.0, None]))
def test_a_box_is_not_proved_while_one_place_of_it_is_open(seed, place):
    """However small the parts become, one of them holds that place, at an end or a cut as well as anywhere else."""
    g = torch.Generator().manual_seed(seed)
    box = Box(torch.randn(4, 2, generator=g), torch.rand(4, 2, generator=g) + 0.1)
    where = 2 * torch.rand(4, 2, generator=g) - 1 if place is None else torch.full((4, 2), place)
    hidden = box.center.double() + where * box.radius.double()
    open_of = torch.rand(4, generator=g) < 0.5

    def is_open(parts, whose):
        low, high = parts.ends()
        holds = ((low <= hidden[whose]) & (hidden[whose] <= high)).all(1)
        # The others are large at first, and then proved.
        return (holds & open_of[whose]) | (parts.radius.amax(1) > 0.05)

    ticks = iter(range(1000))
    nothing_lost = lambda whose: torch.zeros_like(whose, dtype=torch.bool)  # noqa: E731
    proved = proved_in_parts(box, outward(torch.float32), is_open, nothing_lost, lambda: next(ticks) > 30)
    assert torch.equal(proved, ~open_of)


def predictor(seed, networks=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nets = [nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3)) for _ in range(networks)]
        for net in nets:
            net[0].weight.data.mul_(3.0)
            net[2].weight.data.mul_(3.0)
    return cb.Samples.from_modules(nets).predictor(networks)


@pytest.mark.parametrize(("seed", "rounding"), in_turn(range(4), ["outward", "ideal"]))
def test_two_inputs_are_decided_as_a_fine_grid_decides_them(seed, rounding):
    model, x = predictor(seed), torch.rand(6, 2, generator=torch.Generator().manual_seed(seed))
    eps = 0.25
    axis = torch.linspace(-eps, eps, 61)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        labels = model.predict(x)
        logs = torch.stack([model(point + grid) for point in x])
    own = logs.gather(-1, labels[:, None, None].expand(-1, logs.shape[1], 1)).squeeze(-1)
    rivals = logs.scatter(-1, labels[:, None, None].expand(-1, logs.shape[1], 1), -torch.inf).amax(-1)
    smallest = (own - rivals).amin(-1)
    found = cb.certify(model, x, eps=eps, rounding=rounding, method=cb.Best(bounds="crown", budget=20.0))
    assert not (found.certified & (smallest <= 0)).any()
    assert found.certified[smallest > 0.02].all()
    assert found.attacked[smallest < -0.02].all()


def test_it_proves_what_single_networks_cannot():
    """Three wild networks that disagree: without splitting little is proved, with it all that a grid says is true."""
    model, x = predictor(1), torch.rand(12, 2, generator=torch.Generator().manual_seed(7))
    plain = cb.certify(model, x, eps=0.15, method=cb.Best(bounds="crown"))
    split = cb.certify(model, x, eps=0.15, method=cb.Best(bounds="crown", budget=30.0))
    assert int(split.certified.sum()) > int(plain.certified.sum())
    assert int(split.unknown.sum()) <= 1
    attacked = cb.attack(model, x[split.certified], eps=0.15, method=as_attack("ensemble", restarts=8))
    assert attacked.robust_accuracy == 1.0


def test_parts_whose_bounds_overflow_are_not_proved(monkeypatch):
    """Nothing is known of them, which is not the same as that nothing is open."""
    problem = problem_of(predictor(1), torch.rand(4, 2, generator=torch.Generator().manual_seed(7)), 0.15)
    before = LogitBounds("ibp")(problem, State.start(problem), Clock())
    split = Budgeted((SplitInputs(),))
    assert bool((split(problem, before, Clock(20.0)).proved & ~before.proved).any())

    def overflowing(model, box, *_):
        nothing = torch.full((model.size, len(box.center), model.classes), torch.inf, dtype=torch.float64)
        return -nothing, nothing

    monkeypatch.setattr(logits, "logit_bounds", overflowing)
    assert torch.equal(split(problem, before, Clock(0.5)).proved, before.proved)
