"""What is added to the loss beside likelihood and Gaussian prior: curriculum, L1, clipping."""

import dataclasses
import math

import pytest
import torch

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.inference._flat import FLAT, FlatTarget

from .cases import ALGORITHMS, EPOCHS, STEPS, fit, network, target_for

WAY = cb.Curriculum(tightness=0.5, balance=0.5)
ROBUST = cb.RobustCategorical(eps=0.1, ramp=WAY)
PLAIN = cb.RobustCategorical(eps=0.1)
L1, CLIP = 0.01, 0.05


def case(likelihood=ROBUST, l1=0.0, clip=None, progress=0.2):
    target, params, batch = target_for(likelihood, torch.float64)
    # Weights so large that there is something to be regularized.
    params = {name: 4.0 * p for name, p in params.items()}
    weights = cb.GaussianPrior(l1=l1).l1_weights(target.graph, params)
    noise = likelihood.draw(progress, batch, torch.Generator().manual_seed(0))
    return dataclasses.replace(target, l1=weights, clip=clip), params, batch, noise


def norm_of(gradient):
    return math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))


def expected_gradient(target, params, batch, noise, l1):
    """By plain autograd, everything in one loss."""
    leaves = {name: p.clone().requires_grad_(True) for name, p in params.items()}
    loss = -target.log_likelihood(leaves, batch, noise).mean() + target.penalty(leaves, batch, noise)
    loss = loss + l1 * sum(p.abs().sum() for name, p in leaves.items() if name.endswith("weight"))
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize("l1", [0.0, L1])
def test_the_gradient_is_that_of_the_whole_loss(l1):
    target, params, batch, noise = case(l1=l1)
    value, gradient = target.mean_loss_and_gradient(params, batch, noise)
    torch.testing.assert_close(value, -target.log_likelihood(params, batch, noise).mean())
    expected = expected_gradient(target, params, batch, noise, l1)
    for name, g in gradient.items():
        torch.testing.assert_close(g, expected[name])
    plain = case(PLAIN)[0].mean_loss_and_gradient(params, batch, noise)[1]
    assert not torch.allclose(plain["1.weight"], gradient["1.weight"])


def test_summed_gradients_have_it_too_and_squares_do_not():
    target, params, batch, noise = case(l1=L1, clip=CLIP)
    _, mean = target.mean_loss_and_gradient(params, batch, noise)
    found, plain = target.gradients(params, batch, noise), case(PLAIN)[0].gradients(params, batch, noise)
    for name, g in mean.items():
        torch.testing.assert_close(found.gradient[name], -len(batch.inputs) * g)
        torch.testing.assert_close(found.squares[name], plain.squares[name])


class TestClipping:
    def test_a_long_gradient_is_scaled_down_to_the_norm(self):
        target, params, batch, noise = case(clip=CLIP)
        whole = case()[0].mean_loss_and_gradient(params, batch, noise)[1]
        clipped = target.mean_loss_and_gradient(params, batch, noise)[1]
        assert norm_of(whole) > CLIP and norm_of(clipped) == pytest.approx(CLIP)
        for name, g in whole.items():
            torch.testing.assert_close(clipped[name], g * (CLIP / norm_of(whole)))

    def test_a_short_one_stays_as_it_is(self):
        target, params, batch, noise = case(clip=1e6)
        whole = case()[0].mean_loss_and_gradient(params, batch, noise)[1]
        for name, g in target.mean_loss_and_gradient(params, batch, noise)[1].items():
            assert torch.equal(g, whole[name])

    def test_no_gradient_at_all_stays_none(self):
        target, params, *_ = case(clip=1.0)
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        plain = dataclasses.replace(target, likelihood=PLAIN)
        assert all(bool((g == 0).all()) for g in plain._regularized(zeros, params, None, None).values())

    @pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf, "10", True])
    def test_bad_norms(self, clip):
        with pytest.raises(InvalidInput, match="largest norm of the gradient"):
            fit(clip=clip)

    def test_a_sampler_of_trajectories_refuses_it(self):
        with pytest.raises(InvalidInput, match="lead HMC astray"):
            fit(algorithm=ALGORITHMS["hmc"], clip=10.0)


class TestOneVector:
    @pytest.mark.parametrize("settings", [{}, {"l1": L1}, {"l1": L1, "clip": CLIP}], ids=str)
    def test_gradients_are_the_same(self, settings):
        target, params, batch, noise = case(**settings)
        flat = FlatTarget.of(target, params)
        joined = {FLAT: flat.layout.join(params)}
        named, vector = (
            target.mean_loss_and_gradient(params, batch, noise),
            flat.mean_loss_and_gradient(joined, batch, noise),
        )
        torch.testing.assert_close(vector[0], named[0])
        torch.testing.assert_close(vector[1][FLAT], flat.layout.join(named[1]))
        sums, vectors = target.gradients(params, batch, noise), flat.gradients(joined, batch, noise)
        torch.testing.assert_close(vectors.gradient[FLAT], flat.layout.join(sums.gradient))
        torch.testing.assert_close(vectors.squares[FLAT], flat.layout.join(sums.squares))


class TestL1:
    def test_it_is_about_weights_of_layers_alone(self):
        target, *_ = case(l1=L1)
        assert {name: float(w) for name, w in target.l1.items()} == {
            "1.weight": L1, "1.bias": 0.0, "3.weight": L1, "3.bias": 0.0
        }  # fmt: skip
        assert case()[0].l1 == {}

    def test_the_density_has_it(self):
        target, params, *_ = case(l1=L1)
        plain = case()[0]
        total = sum(float(p.abs().sum()) for name, p in params.items() if name.endswith("weight"))
        difference = float(plain.log_prior(params) - target.log_prior(params))
        assert difference == pytest.approx(target.data_size * L1 * total)

    def test_many_weights_go_to_zero(self):
        def small(l1):
            posterior = fit(algorithm=cb.MAP(lr=0.01), prior=cb.GaussianPrior(l1=l1), epochs=60)
            return float((posterior.params["1.weight"].abs() < 0.02).float().mean())

        assert small(0.1) > small(0.0) + 0.3

    def test_it_is_named_in_the_posterior(self):
        posterior = fit(prior=cb.GaussianPrior(l1=L1), clip=CLIP)
        assert posterior.metadata["prior"] == {"name": "GaussianPrior", "variance_scale": 300.0, "l1": L1}
        assert posterior.metadata["clip"] == CLIP
        assert fit().metadata["clip"] is None and "l1" not in fit().metadata["prior"]

    @pytest.mark.parametrize("l1", [-1e-9, math.nan, math.inf])
    def test_bad_weights(self, l1):
        with pytest.raises(InvalidInput, match="l1"):
            cb.GaussianPrior(l1=l1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_goes_the_whole_way(algorithm):
    """With all regularizers, and a lam that begins at 0."""
    clip = None if ALGORITHMS[algorithm].full_batch else CLIP
    posterior = fit(ROBUST, algorithm=ALGORITHMS[algorithm], prior=cb.GaussianPrior(l1=1e-3), clip=clip)
    assert all(torch.isfinite(t).all() for t in posterior.tensors().values() if t.is_floating_point())
    assert posterior.metadata["likelihood"]["ramp"] == WAY.describe()


def test_a_step_sees_the_weights_of_its_point_of_training():
    seen = []

    class Watching(cb.MAP):
        def update(self, target, state, batch, noise, generator):
            seen.append([float(noise.radii[0]), float(noise.log_weights[0].exp())])
            return super().update(target, state, batch, noise, generator)

    fit(PLAIN, algorithm=Watching())
    way, total = PLAIN.curriculum, EPOCHS * STEPS
    expected = [[0.11 * way.radius(step / total), 0.25 * way.lam(step / total)] for step in range(total)]
    assert torch.tensor(seen).flatten().tolist() == pytest.approx(torch.tensor(expected).flatten().tolist(), rel=1e-5)
    assert seen[0] == [0.0, 0.0] and seen[-1] == pytest.approx([0.11, 0.25])


def test_a_full_batch_method_starts_at_the_end():
    seen = []

    class Watching(cb.HMC):
        def update(self, target, state, batch, noise, generator):
            seen.append([float(noise.radii[0]), float(noise.log_weights[0].exp())])
            return super().update(target, state, batch, noise, generator)

    fit(ROBUST, algorithm=Watching(lr=0.01, leapfrog=2, burn_in=1))
    assert len(seen) == EPOCHS + 1 and all(each == pytest.approx([0.11, 0.25]) for each in seen)


def test_the_loss_that_is_reported_is_the_likelihoods_alone():
    plain, way = (fit(likelihood, algorithm=cb.MAP(lr=0.0)).metadata["history"] for likelihood in (PLAIN, ROBUST))
    assert [row["loss"] for row in plain] == pytest.approx([row["loss"] for row in way])


def test_networks_without_relus_are_refused_before_training():
    with pytest.raises(InvalidInput, match="bounds of ReLU layers"):
        fit(ROBUST, net=cb.networks.mlp(4, [6], 3, activation="tanh"))
    fit(ROBUST, net=network())


def test_regularizers_are_left_out_once_they_are_zero():
    """And the steps are the same as if they were not."""
    seen = []

    class Watching(cb.MAP):
        def update(self, target, state, batch, noise, generator):
            seen.append(target.likelihood.regularized)
            return super().update(target, state, batch, noise, generator)

    class Stubborn(cb.RobustCategorical):
        def settled(self, progress):
            return self

    posterior = fit(ROBUST, algorithm=Watching(lr=0.01))
    total = EPOCHS * STEPS
    assert seen == [step / total < 0.35 for step in range(total)]
    assert posterior.metadata["likelihood"]["ramp"]["tightness"] == 0.5
    other = fit(Stubborn(eps=0.1, ramp=WAY), algorithm=cb.MAP(lr=0.01))
    for name, tensor in posterior.tensors().items():
        assert torch.equal(tensor, other.tensors()[name])
    assert PLAIN.settled(1.0) is PLAIN and ROBUST.settled(0.3) is ROBUST
