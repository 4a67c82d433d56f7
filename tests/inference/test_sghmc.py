"""SGHMC: its equation step by step, its cycles, and draws from a posterior that is known in closed form."""

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import certibayes as cb
from certibayes.errors import InvalidInput

from ..strategies import law
from .cases import EPOCHS, LIKELIHOODS, STEPS, fit, target_for
from .conjugate import coefficients, first_two_moments, fit_linear, problem, whitened

TARGET, PARAMS, BATCH = target_for(LIKELIHOODS["ibp"], torch.float64)


def target_of(steps, temperature=1.0):
    return dataclasses.replace(TARGET, total_steps=steps, temperature=temperature), PARAMS, BATCH


def test_every_step_is_that_of_the_equation():
    """Momentum, friction, noise and rate written out, over two cycles, from the same random numbers."""
    steps, lr, friction = 12, 0.03, 0.2
    target, params, batch = target_of(steps, temperature=0.5)
    noise = target.likelihood.draw(1.0, batch, None)
    algorithm = cb.SGHMC(lr=lr, friction=friction, cycles=2, exploration=0.5, samples=2, floor=0.1)
    state = algorithm.init(target, params, torch.Generator().manual_seed(0))
    w = {name: p.clone() for name, p in params.items()}
    p = {name: torch.zeros_like(t) for name, t in w.items()}
    theirs, ours = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    n = target.data_size
    for step in range(steps):
        state, info = algorithm.update(target, state, batch, noise, theirs)
        place = step % 6 / 6
        rate = lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * place)))
        leaves = {name: t.clone().requires_grad_(True) for name, t in w.items()}
        loss = -target.log_likelihood(leaves, batch, noise).mean()
        slopes = dict(zip(w, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        for name in w:
            normal = torch.randn(w[name].shape, generator=ours, dtype=torch.float64)
            heat = math.sqrt(2 * friction * 0.5 / n) if place >= 0.5 else 0.0
            force = slopes[name] + target.precision[name] / n * w[name]
            p[name] = (1 - friction) * p[name] - math.sqrt(rate) * force + heat * normal
            w[name] = w[name] + math.sqrt(rate) * p[name]
            torch.testing.assert_close(state.params[name], w[name], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(float(info["rate"]), rate)
        torch.testing.assert_close(info["loss"], loss.detach())


def test_exploration_is_gradient_descent_whatever_the_random_numbers():
    target, params, batch = target_of(10)
    noise = target.likelihood.draw(1.0, batch, None)
    algorithm = cb.SGHMC(lr=0.05, cycles=1, exploration=0.6, samples=2)
    ends = []
    for seed in (0, 1):
        state = algorithm.init(target, params, torch.Generator().manual_seed(0))
        generator = torch.Generator().manual_seed(seed)
        path = []
        for _ in range(10):
            state, _ = algorithm.update(target, state, batch, noise, generator)
            path.append(state.params["1.weight"])
        ends.append(path)
    same = [torch.equal(one, other) for one, other in zip(*ends, strict=True)]
    assert same == [True] * 6 + [False] * 4


class TestCollecting:
    @law(300)
    @given(
        steps=st.integers(1, 400),
        cycles=st.integers(1, 8),
        per_cycle=st.integers(1, 12),
        exploration=st.floats(0.0, 0.99),
    )
    def test_exactly_as_many_as_asked_for_evenly_and_never_while_exploring(self, steps, cycles, per_cycle, exploration):
        algorithm = cb.SGHMC(cycles=cycles, samples=cycles * per_cycle, exploration=exploration)
        target, params, _ = target_of(steps)
        try:
            algorithm.init(target, params, torch.Generator())
        except InvalidInput:
            assume(False)
        length = math.ceil(steps / cycles)
        chosen = [step for step in range(1, steps + 1) if algorithm.collects(target, step)]
        assert len(chosen) == cycles * per_cycle
        for cycle in range(cycles):
            places = [step - 1 - cycle * length for step in chosen if (step - 1) // length == cycle]
            assert len(places) == per_cycle
            assert min(places) / length >= exploration - 1e-9
            # The last one is where the rate is smallest, and no gap is longer than another by more than a step.
            assert places[-1] == min(length, steps - cycle * length) - 1
            gaps = [later - earlier for earlier, later in pairwise(places)]
            assert not gaps or max(gaps) - min(gaps) <= 1

    @law(100)
    @given(
        per_cycle=st.integers(1, 6),
        cycles=st.integers(1, 6),
        length=st.integers(1, 40),
        exploration=st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.55, 0.7, 0.8, 0.9]),
    )
    def test_it_is_refused_only_where_there_is_no_room(self, per_cycle, cycles, length, exploration):
        algorithm = cb.SGHMC(cycles=cycles, samples=cycles * per_cycle, exploration=exploration)
        target, params, _ = target_of(cycles * length)
        sampled = sum(place / length >= exploration for place in range(length))
        if sampled > per_cycle:
            algorithm.init(target, params, torch.Generator())
        elif sampled < per_cycle:
            with pytest.raises(InvalidInput, match="room"):
                algorithm.init(target, params, torch.Generator())

    def test_with_every_step_sampled_and_kept(self):
        algorithm = cb.SGHMC(cycles=1, samples=9, exploration=0.0)
        assert len(fit(algorithm=algorithm)) == EPOCHS * STEPS == 9

    @pytest.mark.parametrize("exploration", [0.3, 0.5, 0.55, 0.7])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_noise_is_on_wherever_a_draw_may_be_kept(self, exploration, dtype):
        """The update decides in the network's floats, the collection in Python's."""
        for steps in (7, 10, 20, 30, 100):
            algorithm = cb.SGHMC(cycles=1, samples=1, exploration=exploration)
            target, _, _ = target_of(steps)
            explored = math.ceil(exploration * steps)
            place = torch.remainder(torch.tensor(float(explored), dtype=dtype), steps) / steps
            assert bool(place >= exploration)
            assert not any(algorithm.collects(target, step) for step in range(1, explored + 1))

    def test_draws_are_copies_in_order(self, monkeypatch):
        seen, real = [], cb.SGHMC.collect

        def collect(self, target, state):
            seen.append(state.params["1.weight"].clone())
            return real(self, target, state)

        monkeypatch.setattr(cb.SGHMC, "collect", collect)
        posterior = fit(algorithm=cb.SGHMC(lr=0.05, cycles=2, samples=4, exploration=0.5), epochs=8)
        assert len(seen) == 4
        assert torch.equal(posterior.stacked["1.weight"], torch.stack(seen))
        assert len(torch.stack(seen).flatten(1).unique(dim=0)) == 4
        assert posterior.metadata["chains"] == 1
        assert posterior.metadata["sampler"] == {"step_size": pytest.approx(0.05)}


OUTPUTS = 40
DATA = problem(200, outputs=OUTPUTS)


def moments(algorithm, steps, batch_size=200, temperature=1.0, seed=0):
    """Mean and second moments of draws in coordinates in which the exact posterior is N(0, I)."""
    settings = {"epochs": steps * batch_size // 200, "batch_size": batch_size}
    posterior = fit_linear(algorithm, DATA, temperature=temperature, seed=seed, **settings)
    return first_two_moments(whitened(coefficients(posterior.stacked), DATA, temperature))


def constant(lr, **settings):
    """One cycle at a constant rate, the first part not sampled."""
    return cb.SGHMC(**{"lr": lr, "cycles": 1, "exploration": 0.2, "samples": 160, "floor": 1.0, **settings})


@pytest.mark.slow
class TestLinearRegression:
    @pytest.mark.parametrize("temperature", [1.0, 0.25])
    def test_with_all_data_mean_and_covariance_are_right_up_to_a_bias_of_the_order_of_the_rate(self, temperature):
        mean, square = moments(constant(0.02), steps=1600, temperature=temperature)
        assert mean.agrees(torch.zeros(4))
        assert square.agrees(torch.eye(4), bias=0.03)
        assert float(square.error.max()) < 0.05

    def test_the_bias_at_a_large_rate_is_that_of_the_discretization(self):
        """For a quadratic the chain is an AR(2) process, with covariance T/N H⁻¹ (1 - r H / (2 (2 - α)))⁻¹."""
        rate, friction = 0.1, 0.1
        mean, square = moments(constant(rate, friction=friction), steps=1600)
        root, hessian = torch.linalg.cholesky(DATA.precision), DATA.precision / 200
        widened = torch.linalg.inv(torch.eye(4) - rate * hessian / (2 * (2 - friction)))
        expected = root.T @ DATA.covariance @ widened @ root
        assert float((expected - torch.eye(4)).abs().max()) > 0.15
        assert mean.agrees(torch.zeros(4))
        assert square.agrees(expected)

    def test_with_mini_batches_and_a_small_rate(self):
        mean, square = moments(constant(0.005), steps=3200, batch_size=50)
        assert mean.agrees(torch.zeros(4))
        assert square.agrees(torch.eye(4), bias=0.03)

    def test_cycles_add_no_bias_of_their_own(self):
        """Momentum that belongs to a larger rate would widen the draws of every cycle's end by a third."""
        algorithm = cb.SGHMC(lr=0.05, friction=0.05, cycles=10, exploration=0.2, samples=160)
        mean, square = moments(algorithm, steps=3000)
        assert mean.agrees(torch.zeros(4))
        assert square.agrees(torch.eye(4), bias=0.03)
        assert float(square.error.max()) < 0.05

    def test_other_covariances_would_be_noticed(self):
        _, square = moments(constant(0.02), steps=1600)
        root = torch.linalg.cholesky(DATA.precision)
        mean_field = root.T @ torch.diag(1 / DATA.precision.diagonal()) @ root
        assert not square.agrees(mean_field, bias=0.03)
        assert not any(square.agrees(factor * torch.eye(4), bias=0.03) for factor in (0.8, 1.25))


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": -1.0},
        {"lr": math.nan},
        {"friction": 0.0},
        {"friction": 1.1},
        {"friction": math.nan},
        {"exploration": 1.0},
        {"exploration": -0.1},
        {"floor": -0.1},
        {"floor": 1.1},
        {"cycles": 0},
        {"samples": 0},
        {"samples": 7, "cycles": 2},
        {"samples": 2, "cycles": 4},
    ],
    ids=str,
)
def test_bad_settings(bad):
    with pytest.raises(InvalidInput):
        cb.SGHMC(**bad)


def test_too_few_steps_are_reported():
    with pytest.raises(InvalidInput, match="more epochs"):
        fit(algorithm=cb.SGHMC())
