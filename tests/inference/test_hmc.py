"""HMC: the acceptance test, the adapted step, and draws from posteriors that are known in closed form."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import certibayes as cb

from ..strategies import few_of
from .cases import LIKELIHOODS, fixed_hmc, target_for
from .conjugate import coefficients, first_two_moments, fit_linear, linear_net, problem, whitened


@pytest.mark.parametrize("mass", [1.0, 3, "prior", "fisher"])
def test_every_move_is_that_of_the_textbook(mass):
    """Momenta, leapfrog and acceptance written out for each chain, from the same random numbers."""
    likelihood = LIKELIHOODS["ibp"]
    target, params, batch = target_for(likelihood, torch.float64, temperature=0.5)
    noise = likelihood.draw(1.0, batch, None)
    size = {1.0: 0.12, 3: 0.2, "prior": 0.14, "fisher": 0.3}[mass]
    algorithm = fixed_hmc(lr=size, leapfrog=2, chains=3, mass=mass, smoothing=0.01, initial="prior", chunk=7)
    target = dataclasses.replace(target, total_steps=12)
    state = algorithm.init(target, params, torch.Generator().manual_seed(0))
    smooth = dataclasses.replace(likelihood, adversary=cb.IBP(smoothing=0.01))
    mine = {name: p.clone() for name, p in state.position.params.items()}
    names = list(mine)
    first = {name: p[0] for name, p in mine.items()}

    def potential(weights):
        weights = {name: w.clone().requires_grad_(True) for name, w in weights.items()}
        log_joint = smooth.log_likelihood(target.graph, weights, batch, noise).sum()
        log_joint = log_joint - sum(0.5 * target.precision[n] * w.square().sum() for n, w in weights.items())
        value = -log_joint / 0.5
        return value.detach(), dict(zip(names, torch.autograd.grad(value, list(weights.values())), strict=True))

    if mass == "fisher":
        squares = smooth.value_grad_and_squares(target.graph, first, {}, batch, noise).squares
        masses = {name: (squares[name] + target.precision[name]) / 0.5 for name in names}
    elif mass == "prior":
        masses = {name: target.precision[name].expand(first[name].shape) for name in names}
    else:
        masses = {name: torch.full_like(first[name], mass) for name in names}
    theirs, ours = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    moves = 0
    for _ in range(12):
        state, info = algorithm.update(target, state, batch, noise, theirs)
        momenta = {n: torch.randn(p.shape, generator=ours, dtype=p.dtype) * masses[n].sqrt() for n, p in mine.items()}
        uniform = torch.rand(3, generator=ours, dtype=torch.float64)
        probabilities = []
        for chain in range(3):
            w, p = ({n: t[chain].clone() for n, t in side.items()} for side in (mine, momenta))
            u, g = potential(w)
            before = u + sum(0.5 * (p[n] ** 2 / masses[n]).sum() for n in names)
            for _ in range(2):
                p = {n: p[n] - size / 2 * g[n] for n in names}
                w = {n: w[n] + size * p[n] / masses[n] for n in names}
                u, g = potential(w)
                p = {n: p[n] - size / 2 * g[n] for n in names}
            after = u + sum(0.5 * (p[n] ** 2 / masses[n]).sum() for n in names)
            probabilities.append(min(1.0, math.exp(before - after)))
            if float(uniform[chain]) < probabilities[-1]:
                moves += 1
                for n in names:
                    mine[n][chain] = w[n]
        for name in names:
            torch.testing.assert_close(state.position.params[name], mine[name], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(float(info["acceptance"]), sum(probabilities) / 3, rtol=1e-7, atol=0)
    assert 3 < moves < 33
    assert int(state.accepted) == moves


OUTPUTS, DRAWS = 16, 60


# Six steps that add up to 0.26 at mass 1 bring no direction of this problem back to where it was; a length that does,
# such as 2π over the frequency of one, never mixes that direction.
CHAINS = {
    "one mass": (cb.HMC(lr=0.26 / 6, leapfrog=6, burn_in=20, chains=4, target_acceptance=None), 1.0),
    "prior, cold": (cb.HMC(lr=0.13 / 6, leapfrog=6, burn_in=20, chains=4, mass="prior", target_acceptance=None), 0.25),
    "posterior, adapted": (cb.HMC(lr=0.5, leapfrog=3, burn_in=20, chains=4, mass="fisher"), 1.0),
}


@pytest.fixture(scope="module", params=few_of(CHAINS, fast=["posterior, adapted"]))
def chains(request):
    """A posterior, and its draws (draws, chains, 4) in coordinates in which the exact one is N(0, I)."""
    algorithm, temperature = CHAINS[request.param]
    data = problem(60, outputs=OUTPUTS)
    seed = list(CHAINS).index(request.param)
    posterior = fit_linear(algorithm, data, epochs=DRAWS, temperature=temperature, seed=seed)
    drawn = whitened(coefficients(posterior.stacked), data, temperature)
    return posterior, data, drawn.view(algorithm.chains, DRAWS, OUTPUTS, 4).transpose(0, 1).flatten(1, 2)


class TestLinearRegression:
    def test_mean_and_covariance_are_those_of_the_closed_form(self, chains):
        mean, square = first_two_moments(chains[2])
        assert mean.agrees(torch.zeros(4))
        assert square.agrees(torch.eye(4))

    def test_other_means_and_covariances_would_be_noticed(self, chains):
        _, data, drawn = chains
        mean, square = first_two_moments(drawn)
        root = torch.linalg.cholesky(data.precision)
        assert not square.agrees(root.T @ torch.diag(1 / data.precision.diagonal()) @ root)  # mean field
        assert not any(square.agrees(factor * torch.eye(4)) for factor in (0.7, 1.4))
        assert not any(mean.agrees(shift * torch.eye(4)[i]) for shift in (-0.2, 0.2) for i in range(4))

    def test_some_moves_are_rejected_and_none_diverges(self, chains):
        sampler = chains[0].metadata["sampler"]
        assert 0.6 < sampler["acceptance"] < 0.99
        assert 0 < sampler["accepted"] < sampler["proposed"]
        assert sampler["divergences"] == 0


class TestAcceptance:
    @pytest.mark.parametrize("size", [30.0, 1e6, 1e100])
    def test_far_too_large_a_step_never_moves_and_is_counted_as_divergent(self, size):
        """The last leaves the finite numbers."""
        net = linear_net()
        nn.init.constant_(net.weight, 0.3)
        data = problem(50)
        posterior = cb.fit(
            net, (data.x, data.y), algorithm=fixed_hmc(lr=size, chains=2), likelihood=cb.RobustGaussian(0.5), epochs=10,
            progress=False,
        )  # fmt: skip
        assert (posterior.stacked["weight"] == 0.3).all()
        assert (posterior.stacked["bias"] == 0.0).all()
        assert posterior.metadata["sampler"] == {
            "acceptance": 0.0, "accepted": 0, "proposed": 20, "divergences": 20, "step_size": size,
        }  # fmt: skip
        assert all(record["divergences"] == 2.0 for record in posterior.metadata["history"])

    def test_kept_draws_move_exactly_when_accepted_and_repeat_otherwise(self):
        data = problem(50, outputs=4)
        draws, number = 40, 3
        posterior = fit_linear(fixed_hmc(lr=0.08, chains=number), data, epochs=draws)
        sampler = posterior.metadata["sampler"]
        each = coefficients(posterior.stacked).view(number, draws, -1)
        path = torch.cat([torch.zeros(number, 1, each.shape[-1]), each], 1)
        moved = (path[:, 1:] != path[:, :-1]).any(-1)
        # A move moves all weights; nothing is mixed from two places.
        assert ((path[:, 1:] != path[:, :-1]).all(-1) == moved).all()
        assert 0.1 * moved.numel() < int(moved.sum()) < 0.95 * moved.numel()
        assert sampler["accepted"] == int(moved.sum())
        assert sampler["proposed"] == number * draws == len(posterior)
        assert abs(sampler["acceptance"] - float(moved.double().mean())) < 4 * 0.5 / moved.numel() ** 0.5

    def test_kept_draws_are_copies(self):
        posterior = fit_linear(fixed_hmc(lr=0.02), problem(50), epochs=10)
        assert len(coefficients(posterior.stacked).unique(dim=0)) == posterior.metadata["sampler"]["accepted"] == 10

    def test_one_chain_may_move_while_another_stays(self):
        target, params, batch = target_for(LIKELIHOODS["standard"], torch.float64)
        target = dataclasses.replace(target, total_steps=50)
        noise = target.likelihood.draw(1.0, batch, None)
        algorithm = fixed_hmc(lr=0.17, chains=2, leapfrog=4)
        state = algorithm.init(target, params, torch.Generator().manual_seed(0))
        patterns, generator = set(), torch.Generator().manual_seed(0)
        for _ in range(50):
            after, _ = algorithm.update(target, state, batch, noise, generator)
            pairs = [(after.position.params[name], p) for name, p in state.position.params.items()]
            moved = [any(bool((new[chain] != old[chain]).any()) for new, old in pairs) for chain in range(2)]
            patterns.add(tuple(moved))
            state = after
        assert len(patterns) == 4

    def test_potential_and_gradient_are_those_of_where_each_chain_is(self):
        likelihood = LIKELIHOODS["ibp"]
        target, params, batch = target_for(likelihood, torch.float64)
        target = dataclasses.replace(target, total_steps=20)
        noise = likelihood.draw(1.0, batch, None)
        algorithm = fixed_hmc(lr=0.17, chains=3, smoothing=0.01, initial="prior")
        state = algorithm.init(target, params, torch.Generator().manual_seed(0))
        generator, accepted = torch.Generator().manual_seed(0), set()
        for _ in range(20):
            before = float(state.accepted)
            state, _ = algorithm.update(target, state, batch, noise, generator)
            accepted.add(int(float(state.accepted) - before))
            for chain in range(3):
                place = {name: p[chain] for name, p in state.position.params.items()}
                value, slopes = target.smoothed(0.01).potential_and_gradient(place, batch, noise, 1000)
                assert torch.equal(state.position.potential[chain], value)
                assert all(torch.equal(g[chain], slopes[name]) for name, g in state.position.gradient.items())
        assert accepted & {1, 2}, "every trajectory was accepted by all chains or by none"


class TestAdaptation:
    @pytest.mark.parametrize("aim", few_of([(0.7, 1e-3), (0.9, 1.0)], fast=[(0.7, 1e-3)]), ids=str)
    def test_the_wanted_acceptance_is_reached(self, aim):
        wanted, size = aim
        algorithm = cb.HMC(lr=size, leapfrog=5, burn_in=100, chains=2, target_acceptance=wanted)
        posterior = fit_linear(algorithm, problem(60, outputs=4), epochs=80)
        assert abs(posterior.metadata["sampler"]["acceptance"] - wanted) < 0.1

    def test_it_ends_with_burn_in(self):
        """Draws kept while the step still depends on the past would not be from the posterior."""
        algorithm = cb.HMC(lr=0.02, leapfrog=2, burn_in=6, chains=2)
        posterior = fit_linear(algorithm, problem(50), epochs=10)
        used = [record["step_size"] for record in posterior.metadata["history"]]
        assert len(set(used[:6])) == 6
        assert set(used[6:]) == {posterior.metadata["sampler"]["step_size"]}

    def test_without_a_target_the_step_is_what_was_asked_for(self):
        algorithm = cb.HMC(lr=0.02, leapfrog=2, burn_in=3, target_acceptance=None)
        posterior = fit_linear(algorithm, problem(50), epochs=3)
        assert {record["step_size"] for record in posterior.metadata["history"]} == {0.02}
        assert posterior.metadata["sampler"]["step_size"] == 0.02

    def test_without_burn_in_there_is_nothing_to_adapt_in(self):
        posterior = fit_linear(cb.HMC(lr=0.02, leapfrog=2, burn_in=0), problem(50), epochs=3)
        assert {record["step_size"] for record in posterior.metadata["history"]} == {0.02}
