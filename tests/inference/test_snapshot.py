"""Snapshot ensembles: MAP at a rate that comes and goes, and what it has found each time."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import certibayes as cb
from certibayes.errors import InvalidInput

from .cases import EPOCHS, LIKELIHOODS, STEPS, assert_same_posterior, fit, inputs, target_for


def made(algorithm, steps, dtype=torch.float64):
    """Make all steps; return the target, the state, the rates and the iterates of the steps that are collected."""
    likelihood = LIKELIHOODS["standard"]
    target, params, batch = target_for(likelihood, dtype)
    target = replace(target, total_steps=steps)
    noise, generator = likelihood.draw(1.0, batch, None), torch.Generator().manual_seed(0)
    state = algorithm.init(target, params, generator)
    rates, kept = [], {}
    for step in range(1, steps + 1):
        state, info = algorithm.update(target, state, batch, noise, generator)
        rates.append(float(info["rate"]))
        if algorithm.collects(target, step):
            state = algorithm.collect(target, state)
            kept[step] = {name: p.clone() for name, p in state.params.items()}
    return target, state, rates, kept


@given(steps=st.integers(1, 500), members=st.integers(1, 12), start=st.floats(0.0, 0.99))
def test_there_are_as_many_members_as_were_asked_for_and_the_last_is_the_last_iterate(steps, members, start):
    target = replace(target_for(LIKELIHOODS["standard"])[0], total_steps=steps)
    algorithm = cb.SnapshotEnsemble(members=members, start=start)
    before = math.floor(start * steps)
    collected = [step for step in range(1, steps + 1) if algorithm.collects(target, step)]
    if steps - before < members:
        with pytest.raises(InvalidInput, match=f"too few for {members} cycles"):
            algorithm.init(target, {"w": torch.zeros(1)}, torch.Generator())
        return
    assert len(collected) == members and collected[-1] == steps
    lengths = torch.tensor([before, *collected]).diff()
    assert int(lengths.max() - lengths.min()) <= 1


@given(steps=st.integers(1, 60), members=st.integers(1, 4), start=st.sampled_from([0.0, 0.3, 0.5]))
def test_the_rate_falls_from_lr_in_every_cycle_and_is_lr_before_the_first(steps, members, start):
    if steps - math.floor(start * steps) < members:
        return
    algorithm = cb.SnapshotEnsemble(lr=0.1, members=members, start=start)
    _, _, rates, kept = made(algorithm, steps, torch.float32)
    before = math.floor(start * steps)
    assert rates[:before] == pytest.approx([0.1] * before)
    first, length = before, (steps - before) / members
    for last in kept:
        cycle = rates[first:last]
        assert cycle == sorted(cycle, reverse=True)
        # Where the length of a cycle is no whole number, it begins and ends within one step of top and bottom.
        assert cycle[0] >= 0.05 * (math.cos(math.pi / length) + 1) - 1e-6
        assert cycle[-1] <= 0.05 * (math.cos(math.pi * (1 - 1 / length)) + 1) + 1e-6
        first = last


def test_the_rate_is_that_of_the_paper():
    """α(t) = α₀/2 (cos(π mod(t - 1, T/M) / (T/M)) + 1)."""
    _, _, rates, kept = made(cb.SnapshotEnsemble(lr=0.2, members=3, start=0.0), 12)
    expected = [0.1 * (math.cos(math.pi * ((t - 1) % 4) / 4) + 1) for t in range(1, 13)]
    assert rates == pytest.approx(expected)
    assert list(kept) == [4, 8, 12]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("likelihood", ["ibp", "pgd"])
def test_one_cycle_is_map_under_a_cosine(optimizer, likelihood):
    settings = {"lr": 0.02, "optimizer": optimizer, "betas": (0.8, 0.99)}
    one = fit(LIKELIHOODS[likelihood], algorithm=cb.SnapshotEnsemble(members=1, start=0.0, **settings))
    schedule = cb.Schedule("cosine", floor=0.0)
    alone = fit(LIKELIHOODS[likelihood], algorithm=cb.MAP(**settings), schedule=schedule)
    for name, p in alone.params.items():
        torch.testing.assert_close(one[0][name], p, rtol=1e-5, atol=1e-6)


def test_members_are_the_iterates_at_the_ends_of_cycles():
    algorithm = cb.SnapshotEnsemble(lr=0.05, members=4, start=0.25)
    target, state, _, kept = made(algorithm, 29)
    posterior = algorithm.finalize(target, state, (), torch.Generator())
    assert len(posterior) == len(kept) == 4
    for i, iterate in enumerate(kept.values()):
        for name, p in iterate.items():
            assert torch.equal(posterior[i][name], p)
    for tensor in posterior.stacked.values():
        assert len(tensor.flatten(1).unique(dim=0)) == 4


def test_it_may_be_annealed_on_top():
    posterior = fit(algorithm=cb.SnapshotEnsemble(members=2), schedule=cb.Schedule("cosine"))
    rates = [record["rate"] for record in posterior.metadata["history"]]
    constant = [record["rate"] for record in fit(algorithm=cb.SnapshotEnsemble(members=2)).metadata["history"]]
    assert rates[-1] < 0.5 * constant[-1]


def test_members_are_no_chains(tmp_path):
    posterior = fit(algorithm=cb.SnapshotEnsemble(members=3))
    assert "chains" not in posterior.metadata and posterior.held == 3
    posterior.save(tmp_path)
    assert_same_posterior(cb.load(tmp_path), posterior)
    assert posterior.predictor().sample_outputs(inputs()).shape[0] == 3


def test_the_temperature_is_nowhere():
    one, other = (fit(algorithm=cb.SnapshotEnsemble(members=2), temperature=t) for t in (1.0, 0.1))
    assert_same_posterior(one, other)


def test_too_few_steps_are_reported_before_training(monkeypatch):
    monkeypatch.setattr(cb.SnapshotEnsemble, "update", lambda *_: pytest.fail("a step was made"))
    with pytest.raises(InvalidInput, match=f"5 of {EPOCHS * STEPS} steps come after start=0.5.*fewer members"):
        fit(algorithm=cb.SnapshotEnsemble(members=6))


@pytest.mark.parametrize(
    "bad",
    [
        {"members": 0},
        {"start": 1.0},
        {"start": -0.1},
        {"start": float("nan")},
        {"lr": -0.1},
        {"betas": (1.0, 0.9)},
        {"optimizer": "x"},
    ],
    ids=str,
)
def test_bad_settings(bad):
    with pytest.raises(InvalidInput):
        cb.SnapshotEnsemble(**bad)
