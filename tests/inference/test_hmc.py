"""HMC: the integrator, the acceptance test, and draws from posteriors that are known in closed form."""

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.errors import InvalidInput, RunExists
from certibayes.inference import Target
from certibayes.inference.hmc import trajectory
from certibayes.likelihoods import Batch
from certibayes.networks import trace

from .cases import (
    EPOCHS,
    LIKELIHOODS,
    SIZE,
    Mapped,
    assert_same_posterior,
    batch_norm_net,
    classes,
    data_for,
    fit,
    inputs,
    target_for,
)
from .conjugate import coefficients, first_two_moments, fit_linear, linear_net, problem, whitened

every_likelihood = pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)


def fixed(**settings):
    """A step size that is not adapted, and everything kept."""
    return cb.HMC(**{"burn_in": 0, "target_acceptance": None, "leapfrog": 3, **settings})


class TestThePotential:
    @every_likelihood
    @pytest.mark.parametrize("temperature", [1.0, 0.25])
    def test_it_is_the_negative_log_joint_over_the_temperature(self, likelihood, temperature):
        target, params, batch = target_for(likelihood, torch.float64, temperature)
        noise = likelihood.draw(1.0, batch, torch.Generator().manual_seed(0))
        leaves = {name: p.clone().requires_grad_(True) for name, p in params.items()}
        log_joint = likelihood.log_likelihood(target.graph, leaves, batch, noise).sum()
        for name, p in leaves.items():
            log_joint = log_joint - 0.5 * target.precision[name] * (p * p).sum()
        direct = -log_joint / temperature
        value, gradient = target.potential_and_gradient(params, batch, noise, 1000)
        torch.testing.assert_close(value, direct.detach(), rtol=1e-12, atol=1e-12)
        slopes = torch.autograd.grad(direct, list(leaves.values()))
        for (name, g), slope in zip(gradient.items(), slopes, strict=True):
            torch.testing.assert_close(g, slope, rtol=1e-10, atol=1e-12, msg=name)

    @every_likelihood
    @pytest.mark.parametrize("chunk", [1, 7, 23, 24, 25])
    def test_chunks_sum_to_the_whole(self, likelihood, chunk):
        target, params, batch = target_for(likelihood, torch.float64)
        noise = likelihood.draw(1.0, batch, torch.Generator().manual_seed(0))
        whole, slopes = target.potential_and_gradient(params, batch, noise, SIZE)
        value, gradient = target.potential_and_gradient(params, batch, noise, chunk)
        torch.testing.assert_close(value, whole, rtol=1e-12, atol=1e-12)
        for name, g in gradient.items():
            torch.testing.assert_close(g, slopes[name], rtol=1e-10, atol=1e-12)

    def test_of_a_float32_network_it_is_float64_and_as_exact_in_prior_as_in_likelihood(self):
        """The acceptance test looks at differences of this sum far below its own size."""
        wide = trace(cb.networks.mlp(100, [2000], 3))
        generator = torch.Generator().manual_seed(0)
        precision = cb.GaussianPrior().precisions(wide.graph, wide.params)
        params = {
            name: torch.randn(p.shape, generator=generator) * precision[name].rsqrt() for name, p in wide.params.items()
        }
        batch = Batch(torch.rand(4, 100, generator=generator), torch.arange(4) % 3)
        likelihood = cb.Categorical()
        noise = likelihood.draw(1.0, batch, None)
        value, _ = Target(wide.graph, {}, likelihood, precision, 4).potential_and_gradient(params, batch, noise, 4)
        precise = Target(wide.graph, {}, likelihood, {name: p.double() for name, p in precision.items()}, 4)
        doubles = {name: p.double() for name, p in params.items()}
        exact, _ = precise.potential_and_gradient(doubles, Batch(batch.inputs.double(), batch.targets), noise, 4)
        assert value.dtype == torch.float64
        assert abs(float(value - exact)) < 1e-3


def integrated(activation, tau, steps, chains=12, length=0.4):
    """Energy errors (C,) of trajectories of one length on the robust potential of a small network, by vmap."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), activation, nn.Linear(8, 3)).double()
    likelihood = LIKELIHOODS["ibp"]
    batch = data_for(likelihood, torch.float64)
    traced = trace(net, batch.inputs)
    precision = cb.GaussianPrior().precisions(traced.graph, traced.params)
    target = Target(traced.graph, {}, likelihood, precision, SIZE).smoothed(tau)
    noise = likelihood.draw(1.0, batch, None)
    generator = torch.Generator().manual_seed(1)
    start = {name: p.expand(chains, *p.shape).clone() for name, p in traced.params.items()}
    momentum = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in start.items()}
    mass = {name: torch.ones_like(p) for name, p in traced.params.items()}

    def energy(params):
        return torch.vmap(lambda one: target.potential_and_gradient(one, batch, noise, SIZE))(params)

    size = torch.tensor(length / steps, dtype=torch.float64)
    return trajectory(energy, start, momentum, mass, size, steps)[1]


class TestTheIntegrator:
    def test_the_energy_error_falls_with_the_square_of_the_step(self):
        errors = [float(integrated(nn.Tanh(), 0.1, steps).abs().mean()) for steps in (8, 16, 32, 64)]
        for coarse, fine in pairwise(errors):
            assert 3.7 < coarse / fine < 4.3

    def test_a_smaller_smoothing_needs_a_smaller_step_for_the_same_law(self):
        coarse, fine = (float(integrated(nn.Tanh(), 0.01, steps, length=0.2).abs().mean()) for steps in (64, 128))
        assert 3.7 < coarse / fine < 4.3

    def test_absolute_values_cost_an_order(self):
        kinked = [float(integrated(nn.Tanh(), 0.0, steps).abs().mean()) for steps in (32, 64)]
        assert kinked[0] / kinked[1] < 3.0
        assert float(integrated(nn.Tanh(), 0.01, 64).abs().mean()) < 0.1 * kinked[1]

    def test_smoothing_helps_a_relu_network_as_well(self):
        errors = [float(integrated(nn.ReLU(), tau, 64).abs().mean()) for tau in (0.0, 0.01)]
        assert errors[1] < errors[0]

    def test_it_is_reversible(self):
        likelihood = LIKELIHOODS["ibp"]
        target, params, batch = target_for(likelihood, torch.float64)
        target = target.smoothed(0.05)
        noise = likelihood.draw(1.0, batch, None)
        gradients = []

        def energy(stacked):
            value, gradient = target.potential_and_gradient({n: p[0] for n, p in stacked.items()}, batch, noise, SIZE)
            gradients.append(gradient)
            return value[None], {name: g[None] for name, g in gradient.items()}

        generator = torch.Generator().manual_seed(0)
        start = {name: p[None] for name, p in params.items()}
        momentum = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in start.items()}
        mass = {name: 0.5 + torch.rand(p.shape, generator=generator, dtype=p.dtype) for name, p in params.items()}
        size, steps = torch.tensor(0.02, dtype=torch.float64), 15
        end, error, ends = trajectory(energy, start, momentum, mass, size, steps)
        assert len(gradients) == steps + 1
        total = {
            name: sum(g[name] for g in gradients) - 0.5 * (gradients[0][name] + gradients[-1][name]) for name in mass
        }
        back = {name: -(p - size * total[name]) for name, p in momentum.items()}
        returned, undone, _ = trajectory(energy, end, back, mass, size, steps)
        for name, p in start.items():
            assert (end[name] - p).abs().max() > 1e-3
            torch.testing.assert_close(returned[name], p, rtol=0, atol=1e-10)
        torch.testing.assert_close(undone, -error, rtol=0, atol=1e-9)
        kinetic = [sum(0.5 * (p.square() / mass[n]).sum() for n, p in side.items()) for side in (momentum, back)]
        torch.testing.assert_close(error, ends.end - ends.start + kinetic[1] - kinetic[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("mass", [1.0, 3, "prior", "fisher"])
def test_every_move_is_that_of_the_textbook(mass):
    """Momenta, leapfrog and acceptance written out for each chain, from the same random numbers."""
    likelihood = LIKELIHOODS["ibp"]
    target, params, batch = target_for(likelihood, torch.float64, temperature=0.5)
    noise = likelihood.draw(1.0, batch, None)
    size = {1.0: 0.12, 3: 0.2, "prior": 0.14, "fisher": 0.3}[mass]
    algorithm = fixed(lr=size, leapfrog=2, chains=3, mass=mass, smoothing=0.01, initial="prior", chunk=7)
    target = dataclasses.replace(target, total_steps=12)
    state = algorithm.init(target, params, torch.Generator().manual_seed(0))
    smooth = dataclasses.replace(likelihood, adversary=cb.IBP(smoothing=0.01))
    mine = {name: p.clone() for name, p in state.params.items()}
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
            torch.testing.assert_close(state.params[name], mine[name], rtol=1e-8, atol=1e-10)
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


@pytest.fixture(scope="module", params=CHAINS)
def chains(request):
    """A posterior, and its draws (draws, chains, 4) in coordinates in which the exact one is N(0, I)."""
    algorithm, temperature = CHAINS[request.param]
    data = problem(60, outputs=OUTPUTS)
    seed = list(CHAINS).index(request.param)
    posterior = fit_linear(algorithm, data, epochs=20 + DRAWS, temperature=temperature, seed=seed)
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
            net, (data.x, data.y), algorithm=fixed(lr=size, chains=2), likelihood=cb.RobustGaussian(0.5), epochs=10,
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
        posterior = fit_linear(fixed(lr=0.08, chains=number), data, epochs=draws)
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
        posterior = fit_linear(fixed(lr=0.02), problem(50), epochs=10)
        assert len(coefficients(posterior.stacked).unique(dim=0)) == posterior.metadata["sampler"]["accepted"] == 10

    def test_one_chain_may_move_while_another_stays(self):
        target, params, batch = target_for(LIKELIHOODS["standard"], torch.float64)
        target = dataclasses.replace(target, total_steps=50)
        noise = target.likelihood.draw(1.0, batch, None)
        algorithm = fixed(lr=0.17, chains=2, leapfrog=4)
        state = algorithm.init(target, params, torch.Generator().manual_seed(0))
        patterns, generator = set(), torch.Generator().manual_seed(0)
        for _ in range(50):
            after, _ = algorithm.update(target, state, batch, noise, generator)
            moved = [any(bool((after.params[n][c] != p[c]).any()) for n, p in state.params.items()) for c in range(2)]
            patterns.add(tuple(moved))
            state = after
        assert len(patterns) == 4


class TestAdaptation:
    @pytest.mark.parametrize(("wanted", "size"), [(0.7, 1e-3), (0.9, 1.0)])
    def test_the_wanted_acceptance_is_reached(self, wanted, size):
        algorithm = cb.HMC(lr=size, leapfrog=5, burn_in=100, chains=2, target_acceptance=wanted)
        posterior = fit_linear(algorithm, problem(60, outputs=4), epochs=180)
        assert abs(posterior.metadata["sampler"]["acceptance"] - wanted) < 0.1

    def test_it_ends_with_burn_in(self):
        """Draws kept while the step still depends on the past would not be from the posterior."""
        algorithm = cb.HMC(lr=0.02, leapfrog=2, burn_in=6, chains=2)
        posterior = fit_linear(algorithm, problem(50), epochs=16)
        sizes = [record["step_size"] for record in posterior.metadata["history"]]
        assert len(set(sizes[:6])) == 6
        assert set(sizes[6:]) == {posterior.metadata["sampler"]["step_size"]}

    def test_without_a_target_the_step_is_what_was_asked_for(self):
        algorithm = cb.HMC(lr=0.02, leapfrog=2, burn_in=3, target_acceptance=None)
        posterior = fit_linear(algorithm, problem(50), epochs=6)
        assert {record["step_size"] for record in posterior.metadata["history"]} == {0.02}
        assert posterior.metadata["sampler"]["step_size"] == 0.02

    def test_without_burn_in_there_is_nothing_to_adapt_in(self):
        posterior = fit_linear(cb.HMC(lr=0.02, leapfrog=2, burn_in=0), problem(50), epochs=3)
        assert {record["step_size"] for record in posterior.metadata["history"]} == {0.02}


class TestTheRun:
    @pytest.fixture
    def calls(self, monkeypatch):
        """How often the potential was computed, trajectory by trajectory."""
        counts, real_potential, real_update = [], Target.potential_and_gradient, cb.HMC.update

        def potential(self, *arguments):
            counts[-1] += 1
            return real_potential(self, *arguments)

        def update(self, *arguments):
            counts.append(0)
            return real_update(self, *arguments)

        monkeypatch.setattr(Target, "potential_and_gradient", potential)
        monkeypatch.setattr(cb.HMC, "update", update)
        return counts

    def test_burn_in_has_its_own_length(self, calls):
        fit(algorithm=cb.HMC(leapfrog=2, burn_in=3, burn_in_leapfrog=7, chains=2), epochs=5)
        assert calls == [16, 16, 16, 6, 6]

    def test_burn_in_is_as_long_as_later_unless_said(self, calls):
        fit(algorithm=cb.HMC(leapfrog=2, burn_in=1), epochs=2)
        assert calls == [3, 3]

    def test_burn_in_is_neither_kept_nor_counted(self, monkeypatch):
        real, places = cb.HMC.update, []

        def update(self, *arguments):
            state, info = real(self, *arguments)
            places.append(state.params["1.weight"].clone())
            return state, info

        monkeypatch.setattr(cb.HMC, "update", update)
        posterior = fit(algorithm=cb.HMC(lr=0.01, leapfrog=2, burn_in=4, chains=3), epochs=10)
        assert len(posterior) == posterior.metadata["sampler"]["proposed"] == 18
        assert posterior.metadata["chains"] == 3
        # Chain by chain, and in each in order.
        expected = torch.stack(places[4:], 1).flatten(0, 1)
        assert torch.equal(posterior.stacked["1.weight"], expected)
        accepted = posterior.metadata["sampler"]["acceptance"] * 6
        counted = sum(record["acceptance"] for record in posterior.metadata["history"][4:])
        assert accepted == pytest.approx(counted)

    def test_the_diagnostics_find_their_chains(self):
        pytest.importorskip("arviz_stats")
        posterior = fit_linear(cb.HMC(lr=0.5, leapfrog=3, burn_in=10, chains=4, mass="fisher"), problem(50), epochs=60)
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert float(cb.diagnose(posterior, x).predictions.rhat.max()) < 1.2

    @pytest.mark.parametrize("name", ["pgd", "rayleigh"])
    def test_one_function_of_the_weights_for_the_whole_run(self, name, monkeypatch):
        likelihood, seen, drawn = LIKELIHOODS[name], [], []
        real_update, real_draw = cb.HMC.update, type(likelihood).draw

        def update(self, target, state, batch, noise, generator):
            seen.append((batch, noise))
            return real_update(self, target, state, batch, noise, generator)

        def draw(self, progress, *arguments):
            drawn.append(progress)
            return real_draw(self, progress, *arguments)

        monkeypatch.setattr(cb.HMC, "update", update)
        monkeypatch.setattr(type(likelihood), "draw", draw)
        fit(likelihood, algorithm=cb.HMC(leapfrog=1, burn_in=1, chains=2), epochs=4, batch_size=5)
        # At the full radius, whatever the ramp says, and once.
        assert drawn == [1.0]
        (batch, noise), *others = seen
        assert len(others) == 3
        assert torch.equal(batch.inputs, inputs())
        assert torch.equal(batch.targets, classes())
        for other_batch, other_noise in others:
            assert torch.equal(other_batch.inputs, batch.inputs)
            assert torch.equal(other_noise.radii, noise.radii)
            assert noise.starts is None or torch.equal(other_noise.starts, noise.starts)

    @pytest.mark.parametrize("name", ["pgd", "rayleigh"])
    def test_it_is_the_same_function_after_a_resume(self, name, monkeypatch, tmp_path):
        seen, real = [], cb.HMC.update
        settings = {"algorithm": cb.HMC(leapfrog=1, burn_in=1, mass="fisher"), "checkpoint": tmp_path, "epochs": 4}

        def update(self, target, state, batch, noise, generator):
            seen.append(noise)
            return real(self, target, state, batch, noise, generator)

        def break_off(record):
            if record["epoch"] == 2:
                raise RuntimeError("power cut")

        monkeypatch.setattr(cb.HMC, "update", update)
        with pytest.raises(RuntimeError, match="power cut"):
            fit(LIKELIHOODS[name], callbacks=[break_off], **settings)
        fit(LIKELIHOODS[name], resume=True, **settings)
        assert len(seen) >= 4
        assert all(torch.equal(noise.radii, seen[0].radii) for noise in seen)
        assert seen[0].starts is None or all(torch.equal(noise.starts, seen[0].starts) for noise in seen)

    def test_other_chains_do_not_depend_on_batch_size(self):
        algorithm = cb.HMC(lr=0.01, leapfrog=2, burn_in=1)
        one, other = (fit(algorithm=algorithm, batch_size=size) for size in (3, 24))
        assert_same_posterior(one, other)

    def test_a_loader_is_gathered_whole(self):
        algorithm = cb.HMC(lr=0.01, leapfrog=2, burn_in=1)
        loader = DataLoader(TensorDataset(inputs(), classes()), batch_size=7)
        posterior = fit(train=loader, algorithm=algorithm)
        assert_same_posterior(posterior, fit(algorithm=algorithm))
        assert posterior.metadata["data"]["size"] == SIZE

    def test_a_shuffled_loader_loses_nothing(self, monkeypatch):
        seen, real = [], cb.HMC.update
        monkeypatch.setattr(
            cb.HMC, "update", lambda self, t, s, b, *rest: (seen.append(b), real(self, t, s, b, *rest))[1]
        )
        fit(train=DataLoader(TensorDataset(inputs(), classes()), batch_size=7, shuffle=True), algorithm=fixed(lr=0.01))
        for batch in seen:
            assert torch.equal(batch.inputs.sort(0).values, inputs().sort(0).values)
            assert torch.equal(batch.inputs, seen[0].inputs)

    def test_a_data_set_whose_size_the_batches_do_not_divide_loses_nothing(self):
        posterior = fit(train=Mapped(23), algorithm=fixed(lr=0.01), batch_size=8)
        assert posterior.metadata["data"]["size"] == 23

    def test_batch_norm_is_sampled_as_one_function(self):
        posterior = fit(net=batch_norm_net(), algorithm=cb.HMC(lr=0.01, leapfrog=2, burn_in=1, chains=2))
        assert torch.isfinite(posterior.predictor()(inputs())).all()


class TestTheStart:
    def test_given_starts_every_chain_from_the_network(self):
        target, params, _ = target_for(LIKELIHOODS["standard"])
        state = cb.HMC(chains=3, burn_in=0).init(target, params, torch.Generator().manual_seed(0))
        for name, p in params.items():
            assert torch.equal(state.params[name], p.expand(3, *p.shape))

    def test_prior_starts_chains_apart_with_the_priors_spread(self):
        target, params, _ = target_for(LIKELIHOODS["standard"])
        algorithm = cb.HMC(chains=4000, burn_in=0, initial="prior")
        state = algorithm.init(target, params, torch.Generator().manual_seed(0))
        for name, p in state.params.items():
            drawn, width = p.flatten(1), float(target.precision[name].rsqrt())
            assert (drawn.mean(0).abs() < 5 * width / 4000**0.5).all()
            assert ((drawn.std(0) / width - 1).abs() < 5 / 8000**0.5).all()
            assert len(drawn.unique(dim=0)) == 4000

    def test_the_networks_own_parameters_are_left_alone(self):
        net = linear_net()
        data = problem(50)
        cb.fit(
            net, (data.x, data.y), algorithm=fixed(lr=0.01), likelihood=cb.RobustGaussian(), epochs=3, progress=False
        )
        assert (net.weight == 0).all()


class TestSmoothing:
    @pytest.fixture
    def used(self, monkeypatch):
        """The smoothing of every bound that was asked for while sampling."""
        seen, real = set(), cb.IBP.worst_logits

        def worst_logits(self, *arguments):
            seen.add(self.smoothing)
            return real(self, *arguments)

        monkeypatch.setattr(cb.IBP, "worst_logits", worst_logits)
        return seen

    def test_bounds_are_smoothed_while_sampling(self, used):
        fit(LIKELIHOODS["ibp"], algorithm=cb.HMC(leapfrog=1, burn_in=1, smoothing=0.02, mass="fisher"))
        assert used == {0.02}

    def test_it_is_on_record(self):
        posterior = fit(LIKELIHOODS["ibp"], algorithm=cb.HMC(leapfrog=1, burn_in=1, smoothing=0.02))
        assert 0.02 in (value for key, value in posterior.metadata.items() if "smoothing" in key)

    def test_another_smoothing_is_another_run(self, tmp_path):
        settings = {"likelihood": LIKELIHOODS["ibp"], "checkpoint": tmp_path}
        fit(algorithm=cb.HMC(leapfrog=1, burn_in=1, smoothing=0.02), **settings)
        with pytest.raises(RunExists, match="smoothing"):
            fit(algorithm=cb.HMC(leapfrog=1, burn_in=1, smoothing=0.05), resume=True, **settings)


class TestBadSettings:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("lr", -1.0),
            ("lr", math.nan),
            ("leapfrog", 0),
            ("burn_in", -1),
            ("burn_in_leapfrog", 0),
            ("burn_in_leapfrog", -2),
            ("chains", 0),
            ("chunk", 0),
            ("target_acceptance", 0.0),
            ("target_acceptance", 1.0),
            ("target_acceptance", math.nan),
            ("mass", 0.0),
            ("mass", -1.0),
            ("mass", math.nan),
            ("mass", math.inf),
            ("mass", "unit"),
            ("initial", "posterior"),
            ("smoothing", -1e-3),
            ("smoothing", math.nan),
            ("smoothing", math.inf),
        ],
    )
    def test_they_are_named(self, name, value):
        with pytest.raises(InvalidInput, match=name.removeprefix("burn_in_")):
            cb.HMC(**{name: value})

    @pytest.mark.parametrize("burn_in", [EPOCHS, EPOCHS + 1])
    def test_a_burn_in_that_leaves_nothing(self, burn_in):
        with pytest.raises(InvalidInput, match="nothing after a burn-in"):
            fit(algorithm=cb.HMC(burn_in=burn_in))
