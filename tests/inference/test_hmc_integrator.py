"""HMC's potential is the negative log joint, and its integrator keeps the energy and can be reversed."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import certibayes as cb
from certibayes.inference import Target
from certibayes.inference._leapfrog import Position, move, trajectory
from certibayes.likelihoods import Batch
from certibayes.networks import trace

from .cases import LIKELIHOODS, SIZE, data_for, target_for

every_likelihood = pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)


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
    return trajectory(energy, energy, Position(start, *energy(start)), momentum, mass, size, steps)[1]


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

    @pytest.mark.parametrize("rough", [False, True])
    def test_it_is_reversible(self, rough):
        """With a force between the ends that is no gradient, too."""
        likelihood = LIKELIHOODS["ibp"]
        target, params, batch = target_for(likelihood, torch.float64)
        target = target.smoothed(0.05)
        noise = likelihood.draw(1.0, batch, None)
        gradients = []

        def energy(stacked):
            value, gradient = target.potential_and_gradient({n: p[0] for n, p in stacked.items()}, batch, noise, SIZE)
            gradients.append(gradient)
            return value[None], {name: g[None] for name, g in gradient.items()}

        def between(stacked):
            value, gradient = energy(stacked)
            if rough:
                gradients[-1] = {name: (0.9 * g).bfloat16().to(g) for name, g in gradients[-1].items()}
                gradient = {name: g[None] for name, g in gradients[-1].items()}
            return value, gradient

        generator = torch.Generator().manual_seed(0)
        start = {name: p[None] for name, p in params.items()}
        momentum = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in start.items()}
        mass = {name: 0.5 + torch.rand(p.shape, generator=generator, dtype=p.dtype) for name, p in params.items()}
        size, steps = torch.tensor(0.02, dtype=torch.float64), 15
        origin = Position(start, *energy(start))
        end, error = trajectory(energy, between, origin, momentum, mass, size, steps)
        # The start brings its own; each step needs one more.
        assert len(gradients) == 1 + steps
        total = {
            name: sum(g[name] for g in gradients) - 0.5 * (gradients[0][name] + gradients[-1][name]) for name in mass
        }
        back = {name: -(p - size * total[name]) for name, p in momentum.items()}
        returned, undone = trajectory(energy, between, end, back, mass, size, steps)
        assert len(gradients) == 1 + 2 * steps
        for name, p in start.items():
            assert (end.params[name] - p).abs().max() > 1e-3
            torch.testing.assert_close(returned.params[name], p, rtol=0, atol=1e-10)
        torch.testing.assert_close(undone, -error, rtol=0, atol=1e-9)
        kinetic = [sum(0.5 * (p.square() / mass[n]).sum() for n, p in side.items()) for side in (momentum, back)]
        torch.testing.assert_close(
            error, end.potential - origin.potential + kinetic[1] - kinetic[0], rtol=0, atol=1e-10
        )


class TestTheChain:
    CHAINS = 40_000

    def moved(self, between, moves=6):
        """Draws from N(0, 1) after some moves, and the mean acceptance."""
        generator = torch.Generator().manual_seed(0)

        def energy(stacked):
            return 0.5 * stacked["w"].square(), dict(stacked)

        start = {"w": torch.randn(self.CHAINS, generator=generator, dtype=torch.float64)}
        position, mass, size = Position(start, *energy(start)), {"w": torch.ones(())}, torch.tensor(0.6).double()
        probabilities = []
        for _ in range(moves):
            found = move(energy, between or energy, position, mass, size, 3, generator)
            position = found.position
            probabilities.append(float(found.acceptance.mean()))
        return position, sum(probabilities) / moves

    @pytest.mark.parametrize("factor", [0.5, 1.0, 1.4])
    def test_a_rough_force_between_the_ends_changes_what_is_accepted_and_not_the_distribution(self, factor):
        def between(stacked):
            w = stacked["w"]
            return 2.0 * w.square(), {"w": (factor * w).bfloat16().double() + 0.3 * w.sin()}

        position, acceptance = self.moved(between)
        drawn = position.params["w"]
        assert acceptance < self.moved(None)[1] - 0.005
        tolerance = 4 / self.CHAINS**0.5
        assert abs(float(drawn.mean())) < tolerance
        assert abs(float(drawn.square().mean()) - 1) < tolerance * 2**0.5
        assert abs(float((drawn.abs() > 1.5).double().mean()) - 0.1336) < tolerance * 0.34
        # What a position carries to the next trajectory belongs to it.
        torch.testing.assert_close(position.potential, 0.5 * drawn.square())
        torch.testing.assert_close(position.gradient["w"], drawn)
